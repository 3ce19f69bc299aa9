"""`kproc fault add|list|remove`: rules by which a broker for tests makes requests fail, wait or disappear."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    INT_MAX,
    Bootstrap,
    Format,
    OutputFormat,
    chosen_names,
    print_done,
    print_json,
    usage_error,
)
from kproc.cli.completion import complete_groups, complete_topics, complete_transactional_ids
from kproc.cli.connection import connect
from kproc.cli.consent import DryRun
from kproc.cli.lines import print_line
from kproc.cli.monitor import api_names
from kproc.cli.tables import print_table, shortened
from kproc.common.printable import printable

if TYPE_CHECKING:
    from kproc.client import Client

app = typer.Typer(help="Make requests fail on purpose, in tests.", no_args_is_help=True)

_VERSIONS: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_HEADER: Final = ("ID", "ACTION", "API", "REQUESTS", "SCHEDULE", "MATCHES", "HITS")
_NAME_MAX: Final = 60
"""Longest name that is shown whole, also in a pipe. --format json has all of it."""
_FREE_BYTES_MAX: Final = (1 << 62) - 1
_CUT: Final = ("REQUESTS", "API", "SCHEDULE")


class Action(StrEnum):
    """The effect of a rule."""

    FAIL = "fail"
    DELAY = "delay"
    CLOSE = "close"
    DROP_REQUEST = "drop-request"
    DROP_ANSWER = "drop-answer"
    DELAY_ANSWER = "delay-answer"
    CUT_ANSWER = "cut-answer"
    THROTTLE = "throttle"
    ADVERTISE = "advertise"
    FILL_DISK = "fill-disk"
    FAIL_WRITE = "fail-write"
    FAIL_SYNC = "fail-sync"


@dataclass(frozen=True)
class Requests:
    """Options that choose requests, and how many of them."""

    api: Annotated[
        list[str] | None,
        typer.Option("--api", metavar="NAME", help="Only this API, such as Produce; may be repeated."),
    ] = None
    versions: Annotated[
        str | None,
        typer.Option("--versions", metavar="RANGE", help="Only these versions of the API, such as 3-7."),
    ] = None
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="Only requests that name this topic, or a prefix with *. `fail` spares the other topics.",
            autocompletion=complete_topics,
        ),
    ] = None
    partition: Annotated[
        int | None,
        typer.Option("--partition", metavar="N", min=0, max=INT_MAX, help="Only this partition."),
    ] = None
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="ID", help="Only this group.", autocompletion=complete_groups),
    ] = None
    transactional_id: Annotated[
        str | None,
        typer.Option(
            "--transactional-id",
            metavar="ID",
            help="Only this transactional id.",
            autocompletion=complete_transactional_ids,
        ),
    ] = None
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="ID", help="Only this client id, or a prefix with *."),
    ] = None
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="Only this user.")] = None
    times: Annotated[
        int | None,
        typer.Option("--times", metavar="N", min=1, max=INT_MAX, help="Act on N requests at most."),
    ] = None
    after: Annotated[
        int, typer.Option("--after", metavar="N", min=0, max=INT_MAX, help="Skip N matching requests first.")
    ] = 0
    every: Annotated[
        int, typer.Option("--every", metavar="N", min=1, max=INT_MAX, help="Act on each N-th of the others.")
    ] = 1
    probability: Annotated[
        float, typer.Option("--probability", metavar="N", min=0, max=1, help="Act with this probability.")
    ] = 1.0
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, max=INT_MAX, help="Seed of the probability.")
    ] = 0

    def fields(self) -> dict[str, Any]:
        """Return the members of the rule for the options that are given."""
        defaults = vars(Requests())
        given = {
            name: value
            for name, value in vars(self).items()
            if name not in ("api", "versions") and value != defaults[name]
        }
        apis = {"apis": chosen_names("--api", self.api, api_names())}
        if self.versions is None:
            return apis | given
        return apis | {"versions": _parse_range("--versions", self.versions)} | given


@dataclass(frozen=True)
class Effect:
    """The options of `kproc fault add` that describe an action, such as its error or its delay."""

    error: Annotated[
        str,
        typer.Option(
            "--error",
            metavar="NAME",
            help="fail: the error code, such as NOT_LEADER_OR_FOLLOWER. fail-write, fail-sync: EIO or another errno.",
        ),
    ] = ""
    ms: Annotated[
        int,
        typer.Option(
            "--ms", metavar="MS", min=0, max=INT_MAX, help="delay, delay-answer, throttle: the time."
        ),
    ] = 0
    close: Annotated[
        bool, typer.Option("--close", help="drop-request, drop-answer: close the connection, too.")
    ] = False
    size: Annotated[
        int | None,
        typer.Option(
            "--bytes",
            metavar="N",
            min=0,
            max=INT_MAX,
            help="cut-answer: bytes to send. Default: half of them.",
        ),
    ] = None
    free_bytes: Annotated[
        int,
        typer.Option(
            "--free-bytes", metavar="N", min=0, max=_FREE_BYTES_MAX, help="fill-disk: bytes that still fit."
        ),
    ] = 0
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="NAME=RANGE",
            help="advertise: versions of an API, such as Produce=3-7, or Fetch=none; may be repeated.",
        ),
    ] = None

    def fields(self) -> dict[str, Any]:
        """Return the members of the rule for the options that are given."""
        ranges = dict(map(_parse_advertised, self.ranges or ()))
        found = {"error": self.error.upper(), "ms": self.ms, "closes": self.close, "ranges": ranges,
                 "free_bytes": self.free_bytes}  # fmt: skip
        given = {name: value for name, value in found.items() if value}
        return given | ({} if self.size is None else {"bytes_sent": self.size})


def _connect(bootstrap: str) -> Client:
    """Connect without an ApiVersions request: a rule for all APIs would act on it, and it could not be removed."""
    return connect(bootstrap, introduces=False)


def _parse_range(option: str, text: str) -> tuple[int, int]:
    found = _VERSIONS.fullmatch(text)
    if found is None:
        usage_error(f"{option} {text}: expected a version or a range, such as 3-7")
    return int(found[1]), int(found[2] or found[1])


def _parse_advertised(text: str) -> tuple[str, tuple[int, int] | None]:
    name, equals, versions = text.partition("=")
    if not equals:
        usage_error(f"--range {text}: expected API=N-N or API=none, such as Produce=3-7")
    [api] = chosen_names("--range", [name], api_names())
    return api, None if versions == "none" else _parse_range("--range", versions)


@app.command("add", short_help="Add a rule.")
def add(
    action: Annotated[Action, typer.Argument(help="What happens to the requests.")],
    requests: Requests,
    effect: Effect,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Add a rule. It acts in all processes when the command ends, until it is removed or the broker stops.

    fail: answer --error instead of the work. delay: do the work --ms later. close: close the connection instead of the
    work. drop-request: no work and no answer. drop-answer: the work without an answer. delay-answer: the work now, the
    answer --ms later. cut-answer: the work and half of the answer, then close. throttle: the work, and --ms as
    throttle_time_ms. advertise: answer ApiVersions with --range. fill-disk: writes fail with ENOSPC. fail-write,
    fail-sync: writes or syncs of the logs of --topic fail with EIO. The broker must run with kproc.faults.enable=true,
    as `kproc dev` does.
    """
    rule = {"action": action.value, **requests.fields(), **effect.fields()}
    if action is Action.ADVERTISE and not rule["apis"]:
        rule["apis"] = ["ApiVersions"]
    with _connect(bootstrap) as client:
        row = client.operate("add-fault", rule=rule, is_dry_run=dry_run)
        if not dry_run:
            client.operate("keep-fault", id=row["id"])
    result = "would add" if dry_run else f"added {row['id']}:"
    print_done([{**row, "result": result, "words": _words(row["rule"])}], "{result} {words}", output)


@app.command("list", short_help="List the rules with their counts.")
def list_rules(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: OutputFormat = Format.TABLE) -> None:
    """List the rules. MATCHES counts the requests that fit a rule, and HITS those on which it has acted."""
    with _connect(bootstrap) as client:
        rows = client.operate("list-faults").rows("rules")
    if output is Format.JSON:
        print_json(rows)
    elif not rows:
        print_line("there are no fault rules")
    else:
        print_table(_HEADER, map(_cells, rows), drop=("MATCHES", "SCHEDULE"), cut=_CUT)


@app.command("remove", short_help="Remove rules.")
def remove(
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="ID", help="Rules, as `kproc fault list` shows them.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Remove all rules.")] = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Remove rules, and print how often they have acted. Requests that are already delayed stay delayed."""
    if bool(ids) == every:
        usage_error("give the ids of rules, or --all")
    with _connect(bootstrap) as client:
        rules = {row["id"]: row for row in client.operate("list-faults").rows("rules")}
        wanted = list(rules) if every else list(dict.fromkeys(ids or ()))
        unknown = [f"fault rule {each} does not exist" for each in wanted if each not in rules]
        rows = [rules[each] for each in wanted if each in rules]
        if not dry_run:
            rows = [
                row for each in rows for row in client.operate("remove-fault", id=each["id"]).rows("rules")
            ]
    result = "would remove" if dry_run else "removed"
    print_done(
        [{**row, "result": result, "words": _words(row["rule"])} for row in rows],
        "{result} {id}: {words} ({hits} hits)",
        output,
        unknown,
    )


def _cells(row: dict[str, Any]) -> list[object]:
    rule = row["rule"]
    apis = ",".join(rule.get("apis", ())) or ("-" if _is_about_disk(rule) else "all")
    return [row["id"], _effect(rule), apis, _conditions(rule) or "all", _schedule(rule) or "always",
            row["matches"], row["hits"]]  # fmt: skip


def _words(rule: dict[str, Any]) -> str:
    """Format a rule in one line."""
    apis = ",".join(rule.get("apis", ())) or ("" if _is_about_disk(rule) else "all requests")
    return " ".join(filter(None, (_effect(rule), apis, _conditions(rule), _schedule(rule))))


def _is_about_disk(rule: dict[str, Any]) -> bool:
    return rule["action"] in (Action.FILL_DISK, Action.FAIL_WRITE, Action.FAIL_SYNC)


def _effect(rule: dict[str, Any]) -> str:
    ranges = ",".join(
        f"{name}={'none' if each is None else f'{each[0]}-{each[1]}'}"
        for name, each in rule.get("ranges", {}).items()
    )
    ms = f"{rule['ms']}ms" if rule.get("ms") else ""
    size = f"{rule['bytes_sent']}B" if "bytes_sent" in rule else ""
    free = f"{rule['free_bytes']}B free" if "free_bytes" in rule else ""
    close = "close" if rule.get("closes") else ""
    return " ".join(filter(None, (rule["action"], rule.get("error"), ms, close, size, free, ranges)))


def _conditions(rule: dict[str, Any]) -> str:
    names = ("topic", "partition", "group", "transactional_id", "client", "user")
    found = [f"{name}={_shown(printable(str(rule[name])))}" for name in names if name in rule]
    if "versions" in rule:
        found.append("versions={}-{}".format(*rule["versions"]))
    return " ".join(found)


def _shown(name: str) -> str:
    return name if len(name) <= _NAME_MAX else shortened(name, _NAME_MAX)


def _schedule(rule: dict[str, Any]) -> str:
    names = ("times", "after", "every", "probability", "seed")
    return " ".join(f"{name}={rule[name]:.15g}" for name in names if name in rule)
