"""`kproc time show|advance|freeze|unfreeze`: the time of a broker for tests."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import typer

from kproc.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, Format, OutputFormat, print_done, usage_error
from kproc.cli.connection import connect
from kproc.cli.consent import DryRun
from kproc.cli.human import format_duration

app = typer.Typer(help="Move the time of a broker for tests.", no_args_is_help=True)

_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_DURATION: Final = re.compile(r"(?:[0-9]{1,9}(?:ms|[dhms]))+")
_PART: Final = re.compile(r"([0-9]+)(ms|[dhms])")
_YEARS_MAX: Final = 100
_SHOWN_MAX: Final = 80
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@app.command("show", short_help="Show the broker's date.")
def show(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: OutputFormat = Format.TABLE) -> None:
    """Show the broker's date, how far it is ahead of the host's clock, and whether it stands still.

    The broker must run with kproc.time.movable=true, as `kproc dev` does.
    """
    _move(bootstrap, output, "", "show")


@app.command("advance", short_help="Let time jump ahead.")
def advance(
    duration: Annotated[
        str, typer.Argument(metavar="DURATION", help="Units are d, h, m, s and ms, as in 8d or 1h30m.")
    ],
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Advance the broker's time. The command ends when everything that became due has run.

    Records, sessions, transactions, offsets and tokens expire as if that time had passed. Time never runs backwards:
    only a restart of the broker returns to the host's date.
    """
    ms = parse_duration(duration)
    if dry_run:
        _move(bootstrap, output, f"would advance by {duration} from ", "show")
    else:
        _move(bootstrap, output, f"advanced by {duration} to ", "advance", ms)


@app.command("freeze", short_help="Let time stand still.")
def freeze(
    dry_run: DryRun = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: OutputFormat = Format.TABLE
) -> None:
    """Let the broker's time stand still until `kproc time unfreeze`. `kproc time advance` still moves it."""
    _move(bootstrap, output, "would freeze at " if dry_run else "froze at ", "show" if dry_run else "freeze")


@app.command("unfreeze", short_help="Let time continue.")
def unfreeze(
    dry_run: DryRun = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: OutputFormat = Format.TABLE
) -> None:
    """Let the broker's time continue from where it was frozen."""
    _move(
        bootstrap,
        output,
        "would continue from " if dry_run else "continues from ",
        "show" if dry_run else "unfreeze",
    )


def parse_duration(text: str) -> int:
    """Parse a duration such as 1h30m to milliseconds. Raise a usage error for any other text, and above 100 years."""
    if not _DURATION.fullmatch(text):
        shown = text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
        usage_error(
            f"{shown!r} is no duration: give numbers with the units d, h, m, s or ms, such as 8d or 1h30m"
        )
    ms = sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))
    if ms > _YEARS_MAX * 366 * _UNITS_MS["d"]:
        usage_error(f"{text} is longer than {_YEARS_MAX} years")
    return ms


def _move(bootstrap: str, output: Format, result: str, action: str, ms: int = 0) -> None:
    """Carry out `action` on the broker's time and print the new date. The printed line begins with `result`.

    ms: the duration of the action advance.
    """
    with connect(bootstrap) as client:
        row = client.operate("move-time", action=action, ms=ms)
    print_done([{**row, "result": f"{result}{_words(row)}"}], "{result}", output)


def _words(row: dict[str, Any]) -> str:
    """Format the broker's date and its lead over the host's clock in one line."""
    date = (_EPOCH + timedelta(milliseconds=row["now_ms"])).isoformat(sep=" ", timespec="milliseconds")
    lead_ms, is_frozen = row["lead_ms"], row["is_frozen"]
    # A broker of an earlier release measures the lead of a clock that was not moved as -1 ms.
    if lead_ms in (-1, 0) and not is_frozen:
        where = "not moved"
    elif abs(lead_ms) < 1000:
        where = "less than 1s from the host's time"
    else:
        where = f"{format_duration(abs(lead_ms))} {'ahead of' if lead_ms > 0 else 'behind'} the host's time"
    return f"{date.removesuffix('+00:00')} UTC, {where}{', frozen' if is_frozen else ''}"
