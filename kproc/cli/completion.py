"""Shell completion of topics, groups and loggers of the broker, and of names of settings.

If the broker does not run or does not respond within WAIT_S, nothing is completed, because a user is waiting.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from kproc.cli.common import Failure, topic_metadata
from kproc.cli.connection import connect, connection_settings
from kproc.cli.profile_store import find_connection

if TYPE_CHECKING:
    from kproc.client import Client

WAIT_S: Final = 1.5
"""Total time for the name server, the connection and the responses."""
# Names that are safe to complete. A leading dash would make an option, and zsh replaces a leading `=` by a command's
# path.
_HARMLESS: Final = re.compile(r"[A-Za-z0-9._:@/+][A-Za-z0-9._:@/+=-]{0,254}", re.ASCII)


def mend_bash_words() -> None:
    """Join words of the command line that bash has split at `:` and `=`, such as `127.0.0.1:9092` and `--group=g`."""
    if os.environ.get("_KPROC_COMPLETE") != "complete_bash":
        return
    words = os.environ.get("COMP_WORDS", "").split("\n")
    current = int(os.environ.get("COMP_CWORD", "0"))
    if current >= len(words):
        return  # The variables are not those of the script that --install-completion writes.
    whole: list[str] = []
    index = 0
    for position, word in enumerate(words):
        if whole and (_is_break(word) or _is_break(words[position - 1])):
            whole[-1] += word
        else:
            whole.append(word)
        if position == current:
            index = len(whole) - 1
    os.environ.update(COMP_WORDS="\n".join(whole), COMP_CWORD=str(index))


def _is_break(word: str) -> bool:
    return bool(word) and not word.strip(":=")


def complete_topics(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of topics that begin with `incomplete`."""
    return _names_from_broker(context, incomplete, _topics)


def complete_groups(context: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of groups that begin with `incomplete`."""
    return _names_from_broker(context, incomplete, _groups)


def complete_transactional_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Return the transactional ids that begin with `incomplete`."""
    return _names_from_broker(context, incomplete, _transactional_ids)


def complete_setting_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of settings of the resource on the command line: a topic, a group, the loggers, or the broker."""
    if context.params.get("loggers"):
        return _names_from_broker(context, incomplete, _loggers)
    return _beginning(incomplete, _setting_names(context.params))


def complete_described_settings(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of settings of the resource on the command line, or of all kinds of resources if it names none."""
    if context.params.get("topic") or context.params.get("group"):
        return complete_setting_names(context, incomplete)
    from kproc.cli.setting_reference import all_descriptions

    return _beginning(incomplete, {each.name for each in all_descriptions()})


def complete_settings(context: typer.Context, incomplete: str) -> list[str]:
    """Return `complete_setting_names` with `=` behind each name, because a value follows."""
    return [f"{name}=" for name in complete_setting_names(context, incomplete)]


def complete_topic_setting_names(incomplete: str) -> list[str]:
    """Return the names of settings of topics that begin with `incomplete`."""
    from kproc.broker.cluster.topic_config import TOPIC_CONFIGS

    return _beginning(incomplete, TOPIC_CONFIGS)


def complete_topic_settings(incomplete: str) -> list[str]:
    """Return `complete_topic_setting_names` with `=` behind each name, because a value follows."""
    return [f"{name}=" for name in complete_topic_setting_names(incomplete)]


def _setting_names(given: dict[str, object]) -> Iterable[str]:
    if given.get("topic"):
        from kproc.broker.cluster.topic_config import TOPIC_CONFIGS

        return TOPIC_CONFIGS
    if given.get("group"):
        from kproc.broker.cluster.group_config import GROUP_CONFIGS

        return GROUP_CONFIGS
    from kproc.broker.config import SETTINGS

    return SETTINGS


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _topics(client: Client) -> list[str]:
    return [str(row["name"]) for row in topic_metadata(client, None)]


def _groups(client: Client) -> list[str]:
    from kproc.wire.header import ApiKey

    answer = client.call_latest(ApiKey.LIST_GROUPS, {"states_filter": [], "types_filter": []})
    return [str(row["group_id"]) for row in answer["groups"]]


def _transactional_ids(client: Client) -> list[str]:
    from kproc.cli.transaction_requests import request_transactions

    return [str(row["transactional_id"]) for row in request_transactions(client)]


def _loggers(client: Client) -> list[str]:
    from kproc.cli.config_requests import find_resource, read_configs

    rows = read_configs(client, find_resource(client, None, None, loggers=True), None)
    return [str(row["name"]) for row in rows]


def _names_from_broker(
    context: typer.Context, incomplete: str, ask: Callable[[Client], list[str]]
) -> list[str]:
    """Return the names that the broker returns within WAIT_S and that begin with `incomplete`.

    The request runs in a daemon thread, because resolving a host name can block `connect` for longer than its timeout.
    """
    found: list[str] = []

    def run() -> None:
        from kproc.broker.config.values import ConfigError
        from kproc.client import ClientError
        from kproc.common.errors import KafkaError

        try:
            connection = find_connection(context.params.get("bootstrap"), context.params.get("profile"))
            given = context.params.get("command_config")
            with (
                connection_settings(connection, Path(given) if given else None),
                connect(connection.bootstrap, timeout_ms=int(1000 * WAIT_S)) as client,
            ):
                found.extend(ask(client))
        except (ClientError, ConfigError, KafkaError, Failure):
            return  # Without a broker there are no names. The command itself will report the reason.

    thread = threading.Thread(target=run, daemon=True, name="completion")
    thread.start()
    thread.join(WAIT_S)
    return _beginning(incomplete, filter(_is_harmless, found))


def _is_harmless(name: str) -> bool:
    """Return True for a name that no shell expands or runs, and that is not an option.

    Clients choose these names, and shells evaluate completions: zsh runs `\\$(id)` when TAB is pressed, bash and fish
    run `$(id)` and `(id)` when the line is entered. Quoting depends on the shell and on the text before the cursor, so
    other names are not offered at all.
    """
    return _HARMLESS.fullmatch(name) is not None
