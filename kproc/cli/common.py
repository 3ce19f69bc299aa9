"""Shared code of the commands: common options, their addition to commands, metadata of topics, and JSON output."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from kproc.cli.connection import DEFAULT_CLIENT_ID, connection_settings
from kproc.cli.failure import DEFAULT_BOOTSTRAP as DEFAULT_BOOTSTRAP
from kproc.cli.failure import DEFAULT_PORT as DEFAULT_PORT
from kproc.cli.failure import Failure as Failure
from kproc.cli.failure import usage_error as usage_error
from kproc.cli.lines import print_document, print_line
from kproc.cli.profile_store import (
    BOOTSTRAP_VARIABLE,
    COMMAND_CONFIG_VARIABLE,
    PROFILE_VARIABLE,
    complete_profiles,
    find_connection,
)
from kproc.common.printable import printable_json

if TYPE_CHECKING:
    from kproc.client import Client


class Format(StrEnum):
    """The output format of a command."""

    TABLE = "table"
    JSON = "json"


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT",
        # Do not let typer read the variable: find_connection() does, because the variable ranks between --profile and
        # the profile in use.
        help=f"The broker to talk to. [env: {BOOTSTRAP_VARIABLE}; default: {DEFAULT_BOOTSTRAP}]",
        show_default=False,
    ),
]
_BROKERS = {"bootstrap", "from_broker"}  # The parameters by which commands name the broker to connect to.
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help=f"Properties file for TLS and login, with the names of Kafka's clients. [env: {COMMAND_CONFIG_VARIABLE}]",
    ),
]
GivenClientId = Annotated[
    str | None,
    typer.Option(
        "--client-id",
        metavar="NAME",
        help="Name of this client in quotas, logs and kproc clients. "
        f"[default: client.id of the file, or {DEFAULT_CLIENT_ID}]",
    ),
]
UsedProfile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help=f"The saved connection to use (kproc profile list). [env: {PROFILE_VARIABLE}]",
        autocompletion=complete_profiles,
    ),
]
OutputFormat = Annotated[Format, typer.Option("--format", "-f", help="Format of the output.")]
_SURROGATE = re.compile("[\ud800-\udfff]")
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
SECONDS_MAX = INT_MAX // 1000
"""The longest time of an option in seconds. It is an int in ms for the broker and for librdkafka."""


def interval_option(text: str) -> Any:
    """Return the option for the time over which a command measures rates. 0 switches the measurement off."""
    return typer.Option("--interval", "-i", metavar="S", min=0, max=SECONDS_MAX, help=text)


def with_command_config(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --command-config and --client-id to a command whose parameters show that it connects to a broker.

    Add --profile, too, if its --bootstrap has the usual default.
    """
    parameters = inspect.signature(command, eval_str=True).parameters
    if not _BROKERS & parameters.keys():
        return command

    takes_profile = "bootstrap" in parameters and parameters["bootstrap"].default == DEFAULT_BOOTSTRAP

    @functools.wraps(command)
    def run(
        *arguments: Any, command_config: Path | None = None, client_id: str | None = None, **options: Any
    ) -> Any:
        connection = None
        if takes_profile:
            connection = find_connection(options["bootstrap"], options.pop("profile"))
            options["bootstrap"] = connection.bootstrap
        with connection_settings(connection, command_config, client_id):
            return command(*arguments, **options)

    everything = [
        # Set the default of --bootstrap to None, so that a value shows that the user gave the option.
        each.replace(default=None) if takes_profile and each.name == "bootstrap" else each
        for each in parameters.values()
    ]
    added: dict[str, Any] = {"command_config": CommandConfig}
    # A pipeline's --bootstrap has no default. Its specification has the client id of each source and sink.
    if "bootstrap" not in parameters or parameters["bootstrap"].default is not None:
        added["client_id"] = GivenClientId
    if takes_profile:
        added["profile"] = UsedProfile
    everything += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in added.items()
    ]
    run.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in everything}
    return run


def with_option_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace each parameter that is a dataclass by an option for each field, so that commands can share options."""
    parameters = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: each.annotation for name, each in parameters.items() if is_dataclass(each.annotation)
    }
    if not groups:
        return command

    @functools.wraps(command)
    def run(**options: Any) -> Any:
        for name, group in groups.items():
            options[name] = group(**{each.name: options.pop(each.name) for each in fields(group)})
        return command(**options)

    flat: list[inspect.Parameter] = []
    for name, parameter in parameters.items():
        flat += _options_in(groups[name]) if name in groups else [parameter]
    # Python requires that parameters without a default come first in a signature.
    flat.sort(key=lambda each: each.default is not inspect.Parameter.empty)
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in flat}
    return run


def _options_in(group: Any) -> list[inspect.Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=each.default,
            annotation=kinds[each.name],
        )
        for each in fields(group)
    ]


def topic_metadata(
    client: Client, names: list[str] | None, *, with_operations: bool = False
) -> list[dict[str, Any]]:
    """Return the broker's metadata of topics, or of all topics for None. Never create a topic.

    with_operations: also request the operations that the user may do on each topic (kproc/cli/rights.py).
    """
    topics: list[dict[str, Any]] = request_metadata(client, names, with_operations=with_operations)["topics"]
    return topics


def request_metadata(
    client: Client, names: list[str] | None, *, with_operations: bool = False
) -> dict[str, Any]:
    """Return the Metadata response, with brokers and topics: those in `names`, or all topics for None."""
    from kproc.wire.header import ApiKey

    fields = {
        "topics": None if names is None else [{"topic_id": None, "name": name} for name in names],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": with_operations,
    }
    return client.call_latest(ApiKey.METADATA, fields)


def print_json(value: Any) -> None:
    """Print one indented JSON document, with keys in the order in which they were built."""
    print_document(format_json(value))


def format_json(value: Any) -> str:
    """Format one indented JSON document with control characters escaped.

    A byte of a path that is not UTF-8 is written as in tables, \\udcff, because JSON has no way to express it.
    """
    import orjson

    try:
        document = orjson.dumps(value, option=orjson.OPT_INDENT_2)
    except orjson.JSONEncodeError:
        import json

        text = json.dumps(value, indent=2, ensure_ascii=False)
        document = _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text).encode()
    return printable_json(document).decode() + "\n"


def print_done(
    rows: Sequence[dict[str, Any]], words: str, output: Format, refusals: Sequence[str] = ()
) -> None:
    """Print a line for each row by the template `words`, or JSON. Then raise a Failure if there are refusals."""
    if output is Format.JSON:
        print_json(rows)
    else:
        for row in rows:
            print_line(words.format_map(row))
    if refusals:
        raise Failure("; ".join(refusals))


def chosen_names(option: str, given: Iterable[str] | None, known: Sequence[str]) -> list[str]:
    """Return the given names in the spelling of `known`, ignoring case. Raise a usage error for an unknown name."""
    spelling = {name.lower(): name for name in known}
    for name in given or ():
        if name.lower() not in spelling:
            usage_error(f"{option} {name!r}: expected one of {', '.join(known)}")
    return [spelling[name.lower()] for name in given or ()]


def pairs(option: str, items: Iterable[str]) -> list[tuple[str, str]]:
    """Parse `name=value` arguments to pairs. Raise a usage error for an argument without `=`."""
    answer = []
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            usage_error(f"{option} {item!r}: expected name=value")
        answer.append((name, value))
    return answer
