"""`kproc config explain`: explains a setting: purpose, type, range, default, and if it is dynamic.

The texts are those of SETTINGS.md. The command needs no broker; if one answers, it shows the present value, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    print_json,
    usage_error,
)
from kproc.cli.completion import complete_described_settings
from kproc.cli.config_requests import find_resource, read_configs
from kproc.cli.configs import Group, Topic
from kproc.cli.connection import connect
from kproc.cli.lines import print_line, print_text

if TYPE_CHECKING:
    from kproc.cli.setting_reference import SettingDescription

# Wait only shortly for the broker, because a user is waiting and most of the output needs no broker.
_WAIT_MS: Final = 1500
# By the source of a value as `config get` shows it: the source in a sentence.
_SOURCES: Final = {
    "topic": "set for this topic",
    "group": "set for this group",
    "broker": "set at run time for this broker",
    "all brokers": "set at run time for all brokers",
    "start": "set at the start by file, environment or command line",
    "default": "the default",
}

# By the scope of a setting: the option of `config set` that names the resource.
_WHOSE: Final = {"broker": "", "topic": "--topic NAME ", "group": "--group NAME "}


def explain_settings(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME", help="Names of settings.", autocompletion=complete_described_settings),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    topic: Topic = None,
    group: Group = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Explain settings: what they control, type, range, default, and whether they can change at run time.

    No broker is needed. If the broker answers, its present value is shown, too. `kproc config set` changes dynamic
    settings of a running broker.
    """
    from kproc.cli import setting_reference as reference

    scope = reference.TOPIC if topic is not None else reference.GROUP if group is not None else None
    found = [each for name in names for each in _find(name, scope)]
    values, problem = _present_values(bootstrap, found, topic, group)
    if output is Format.JSON:
        print_json([_as_json(each, values.get((each.scope, each.name))) for each in found])
        return
    for number, each in enumerate(found):
        if number:
            print_line()
        _print_description(each, values.get((each.scope, each.name)))
    if problem is not None:
        print_line()
        print_text(f"The present value is unknown: {problem}")


def _find(name: str, scope: str | None) -> list[SettingDescription]:
    from kproc.cli import setting_reference as reference

    found = [each for each in reference.find_descriptions(name) if scope in (None, each.scope)]
    if found:
        return found
    if scope is None and reference.is_known_to_kafka(name):
        return [reference.of_unsupported(name)]
    similar = reference.similar_names(name, scope)
    hint = f"; similar: {', '.join(similar)}" if similar else "; kproc/SETTINGS.md lists all settings"
    usage_error(f"no setting{f' of a {scope}' if scope else ''} is called {name}{hint}")


def _present_values(
    bootstrap: str, found: list[SettingDescription], topic: str | None, group: str | None
) -> tuple[dict[tuple[str, str], dict[str, Any]], str | None]:
    """Return (rows of `config get` by scope and name, the reason if the broker's values are unknown, else None)."""
    from kproc.cli.setting_reference import BROKER, GROUP, TOPIC
    from kproc.client import ClientError

    # Without --topic or --group show only values of the broker's settings: topic and group settings differ by resource.
    named = TOPIC if topic is not None else GROUP if group is not None else BROKER
    names = [each.name for each in found if each.scope == named]
    if not names:
        return {}, None
    try:
        client = connect(bootstrap, timeout_ms=_WAIT_MS)
    except (ClientError, OSError) as error:
        return {}, str(error)
    with client:
        try:
            rows = read_configs(client, find_resource(client, topic, group), names)
        # Show the description even without the value, for example if the user has no right to read it.
        except (ClientError, Failure) as error:
            return {}, str(error)
    return {(named, row["name"]): row for row in rows}, None


def _print_description(described: SettingDescription, row: dict[str, Any] | None) -> None:
    print_line(described.title)
    print_text(f"  {described.text}", "  ")
    facts = list(described.facts)
    if described.unhonoured is not None:
        facts.insert(0, ("no effect", described.unhonoured))
    if row is not None:
        value = "none" if row["value"] is None else row["value"] or "empty"
        facts.append(("now", f"{value} ({_SOURCES.get(row['source'], row['source'])})"))
    whose = _WHOSE.get(described.scope)
    if described.unhonoured is None and whose is not None and ("dynamic", "yes") in facts:
        facts.append(("change", f"kproc config set {whose}{described.name}=VALUE"))
    if facts:
        print_line()
    width = max((len(label) for label, _ in facts), default=0)
    for label, text in facts:
        print_text(f"  {label.ljust(width)}  {text}", " " * (width + 4))


def _as_json(described: SettingDescription, row: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "name": described.name,
        "scope": described.scope,
        "text": described.text,
        "no_effect": described.unhonoured,
        **{label.replace(" ", "_"): text for label, text in described.facts},
        "value": row["value"] if row is not None else None,
        "source": row["source"] if row is not None else None,
    }
