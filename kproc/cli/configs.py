"""`kproc config get|set`: shows and changes the present settings of the broker, topics and groups, and log levels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    pairs,
    print_done,
    print_json,
    usage_error,
)
from kproc.cli.completion import (
    complete_groups,
    complete_setting_names,
    complete_settings,
    complete_topics,
)
from kproc.cli.config_requests import (
    BROKER,
    GROUP,
    HIDDEN,
    LOGGERS,
    TOPIC,
    Resource,
    alter_configs,
    find_resource,
    read_configs,
)
from kproc.cli.connection import connect
from kproc.cli.consent import Consent
from kproc.cli.lines import print_line, print_note
from kproc.cli.tables import print_table
from kproc.common.regular_file import FILE_BYTES_MAX, read_bounded_text

if TYPE_CHECKING:
    from kproc.client import Client

app = typer.Typer(help="Show and change settings of a running broker.", no_args_is_help=True)


def unset_option(complete: Callable[..., list[str]]) -> Any:
    """Return the option --unset, which resets settings. `complete` returns names for shell completion."""
    return typer.Option(
        "--unset",
        metavar="NAME",
        help="Reset this setting to its default; may be repeated.",
        autocompletion=complete,
    )


Topic = Annotated[
    str | None,
    typer.Option(
        "--topic", "-t", metavar="TOPIC", help="This topic's settings.", autocompletion=complete_topics
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", metavar="GROUP", help="This group's settings.", autocompletion=complete_groups
    ),
]
Loggers = Annotated[
    bool,
    typer.Option(
        "--loggers", help="The levels of the broker's loggers: FATAL, ERROR, WARN, INFO, DEBUG or TRACE."
    ),
]

_SET, _DELETE = 0, 1


SettingNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="Only these settings.", autocompletion=complete_setting_names),
]
ShowAll = Annotated[bool, typer.Option("--all", "-a", help="Also show settings with their default value.")]


@app.command("get")
def get_configs(
    names: SettingNames = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    topic: Topic = None,
    group: Group = None,
    loggers: Loggers = False,
    show_all: ShowAll = False,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Show settings and where each value comes from.

    The settings are those of the broker, unless a topic or a group is named.

    With --loggers: the level of each logger. A logger without a level has that of root.
    """
    with connect(bootstrap) as client:
        resource = find_resource(client, topic, group, loggers=loggers)
        rows = read_configs(client, resource, names or None)
    _reject_unknown(resource, set(names or ()) - {row["name"] for row in rows})
    shown = [row for row in rows if names or show_all or row["source"] != "default"]
    if output is Format.JSON:
        print_json(shown)
        return
    print_table(
        ("NAME", "VALUE", "FROM", "NOTE"),
        [(row["name"], row["value"], row["source"], _remark(row, has_reason=bool(names))) for row in shown],
        cut=("VALUE", "NOTE"),
        fold=True,
    )
    if len(shown) < len(rows) and sys.stdout.isatty():
        print_line()
        print_line(f"{len(rows) - len(shown)} more settings have their default: --all shows them")


def _reject_unknown(resource: Resource, missing: set[str]) -> None:
    """Raise Failure if settings were requested that a resource does not have."""
    from kproc.broker.config import KNOWN_UNHONOURED

    unhonoured = sorted(missing & KNOWN_UNHONOURED)
    if unhonoured:
        raise Failure(
            f"{resource} does not store these settings of Kafka, which have no effect in kproc: {', '.join(unhonoured)}"
        )
    if missing:
        raise Failure(f"{resource} has no setting {', '.join(sorted(missing))}")


ChangedSettings = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME=VALUE", help="Settings to change.", autocompletion=complete_settings),
]
Unset = Annotated[list[str] | None, unset_option(complete_setting_names)]
ChangesFile = Annotated[
    str | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="Also set the lines NAME=VALUE of this file; - reads the standard input. Use it for passwords.",
    ),
]


@app.command("set")
def set_configs(
    settings: ChangedSettings = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    topic: Topic = None,
    group: Group = None,
    loggers: Loggers = False,
    unset: Unset = None,
    file: ChangesFile = None,
    consent: Consent = Consent(),
    output: OutputFormat = Format.TABLE,
) -> None:
    """Change settings of the broker, a topic or a group.

    A change that resets a setting or can delete records (a shorter retention) is shown and confirmed first, unless
    --yes is given.

    Every user of the host can read a command line. Give passwords with --file instead.

    With --loggers: change log levels until the broker ends, as in `kproc config set --loggers
    kproc.broker.processor=DEBUG`. A package's level applies to its modules without a level. --unset gives a logger the
    level of the package above it.
    """
    changes = config_changes("config set", settings, unset)
    _warn_of_secrets(changes)
    changes += _changes_in(file)
    if not changes:
        usage_error("nothing to change: give NAME=VALUE, --file FILE or --unset NAME")
    with connect(bootstrap) as client:
        resource = find_resource(client, topic, group, loggers=loggers)
        _reject_unset_of_read_only(client, resource, unset)
        plan = confirm_changes(client, resource, changes, consent, "config set")
        alter_configs(client, resource, changes, dry_run=consent.dry_run)
    done = "would change" if consent.dry_run else "changed"
    print_done([{"result": done, **row} for row in plan], f"{{result}} {CHANGE}", output)


def _warn_of_secrets(changes: list[dict[str, Any]]) -> None:
    from kproc.broker.config.settings import is_secret

    for change in changes:
        if change["value"] is not None and is_secret(change["name"]):
            print_note(
                f"kproc: warning: {change['name']}: every user of this host can read a command line; use --file"
            )


def _changes_in(file: str | None) -> list[dict[str, Any]]:
    """Return the changes in a file of NAME=VALUE lines, or in the standard input if `file` is `-`."""
    from kproc.broker.config.sources import parse_properties

    if file is None:
        return []
    try:
        text = _standard_input() if file == "-" else read_bounded_text(file)
        # In the C locale, Python keeps other bytes as surrogates. The error of a later encode() would show a password.
        text.encode()
    except UnicodeError:
        usage_error(f"--file {file}: it is not UTF-8")
    return [
        {"name": name, "config_operation": _SET, "value": value}
        for name, value in parse_properties(text).items()
    ]


def _standard_input() -> str:
    text = sys.stdin.read(FILE_BYTES_MAX + 1)
    if len(text) > FILE_BYTES_MAX:
        usage_error(f"--file -: larger than {FILE_BYTES_MAX} characters")
    return text


def _reject_unset_of_read_only(client: Client, resource: Resource, names: list[str] | None) -> None:
    """Raise a Failure if a setting to unset is read-only.

    The broker itself, as Kafka, accepts such a request silently.
    """
    if not names:
        return
    fixed = [row["name"] for row in read_configs(client, resource, names) if row["read_only"]]
    if fixed:
        raise Failure(
            f"{', '.join(fixed)}: read-only; change the file, variable or option that the broker starts with"
        )


def _remark(row: dict[str, Any], *, has_reason: bool) -> str:
    """Return the remarks on a setting: read-only, or no effect. With `has_reason`, add the reason for no effect."""
    if row["no_effect"] and not has_reason:
        return "no effect"
    remarks = ["read-only"] if row["read_only"] else []
    return ", ".join([*remarks, f"no effect: {row['no_effect']}"] if row["no_effect"] else remarks)


def config_changes(option: str, settings: list[str] | None, unset: list[str] | None) -> list[dict[str, Any]]:
    """Convert NAME=VALUE arguments, and names to unset, to changes for IncrementalAlterConfigs.

    Raise a usage error for an argument without `=`.
    """
    changes: list[dict[str, Any]] = [
        {"name": name, "config_operation": _SET, "value": value}
        for name, value in pairs(option, settings or ())
    ]
    return changes + [{"name": name, "config_operation": _DELETE, "value": None} for name in unset or ()]


# _RETENTION: settings that make the broker delete records sooner if they are lowered. _POLICIES: settings that list the
# policies by which records are deleted.
_RETENTION: Final = frozenset(
    (
        "retention.ms",
        "retention.bytes",
        "log.retention.ms",
        "log.retention.minutes",
        "log.retention.hours",
        "log.retention.bytes",
    )
)
_POLICIES: Final = frozenset(("cleanup.policy", "log.cleanup.policy"))
# By kind of resource, the source that shows that a client has set the value for this resource.
_CHOSEN_IN: Final = {TOPIC: "topic", BROKER: "broker", GROUP: "group"}


CHANGE: Final = "{setting} of {resource}: {from} -> {to}"
"""The template that makes a line of a row of `confirm_changes`."""


def confirm_changes(
    client: Client, resource: Resource, changes: list[dict[str, Any]], consent: Consent, command: str
) -> list[dict[str, str]]:
    """Return a row for each change, with the values before and after it.

    Ask for a confirmation if a change resets a value that a client has set, or can delete records. Raise a Failure if
    the user declines, or if the resource has no setting of a name to unset.
    """
    from kproc.broker.config.dynamic import split_listener_key

    names = [change["name"] for change in changes]
    before = {row["name"]: row for row in read_configs(client, resource, names)}
    if resource.kind != LOGGERS:
        # Brokers accept to unset a name that they do not know, so a typing error would be reported as done. They list
        # a listener's own setting only if it has a value.
        unset = {change["name"] for change in changes if change["value"] is None}
        _reject_unknown(resource, {name for name in unset - before.keys() if not split_listener_key(name)[0]})
    rows = [_change_row(resource, before.get(change["name"]), change) for change in changes]
    if not consent.needs_plan or consent.dry_run or resource.kind == LOGGERS:
        return rows
    risky = [
        row
        for row, change in zip(rows, changes, strict=True)
        if change["name"] in before and _is_risky(resource, before[change["name"]], change["value"])
    ]
    if risky:
        consent.check(f"{command} {', '.join(row['setting'] for row in risky)}")
        consent.obtain(risky, CHANGE, Format.TABLE, question="change?")
    return rows


def _change_row(resource: Resource, before: dict[str, Any] | None, change: dict[str, Any]) -> dict[str, str]:
    """Return the row of a change. Hide the values of secrets. `before` is None for a setting without a value.

    The broker says which values are secrets. It does not know a plugin's setting before its first value, so hide that.
    """
    from kproc.broker.config.settings import is_secret

    name, value = change["name"], change["value"]
    is_unknown = before is None and resource.kind == BROKER
    hides = is_secret(name, if_unknown=is_unknown) or (before is not None and before["value"] == HIDDEN)
    return {
        "setting": name,
        "resource": str(resource),
        "from": "not set" if before is None else HIDDEN if hides else _text(before["value"]),
        "to": HIDDEN if hides and value is not None else _text(value),
    }


def _text(value: str | None) -> str:
    return "default" if value is None else value or "(empty)"


def _is_risky(resource: Resource, before: dict[str, Any], value: str | None) -> bool:
    """Return True if a change to `value` loses a client's value, or deletes records that the present value keeps."""
    name, old = before["name"], before["value"]
    if value is None:
        return _is_chosen(resource, before)
    if name in _POLICIES:
        return bool(_listed(value) - _listed(old or ""))
    return name in _RETENTION and _limit(value) < _limit(old)


def _is_chosen(resource: Resource, row: dict[str, Any]) -> bool:
    """Return True if a client has set the value for this resource, so that a reset loses it."""
    return bool(row["source"] == _CHOSEN_IN.get(resource.kind))


def _listed(value: str) -> set[str]:
    return {each.strip() for each in value.split(",")}


def _limit(value: str | None) -> float:
    """Parse a retention limit in ms or bytes. Return infinity if the value is empty, negative or no number."""
    try:
        number = float(value) if value else -1.0
    except ValueError:
        return inf  # The broker rejects a value that is no number.
    return inf if number < 0 else number
