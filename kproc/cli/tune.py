"""`kproc tune` proposes process counts for this machine by measuring. `kproc tune list` checks settings of the host."""

from __future__ import annotations

import os
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kproc.cli.common import Failure, Format, OutputFormat, print_json, usage_error
from kproc.cli.connection import connect
from kproc.cli.consent import Consent
from kproc.cli.lines import print_block, print_line, print_notes, print_text
from kproc.cli.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kproc.tools.tune.choice import Proposal, Standing
    from kproc.tools.tune.live import LiveProposal

_TRANSPORT = "kproc.transport"
app = typer.Typer(rich_markup_mode=None)


class WorkloadName(StrEnum):
    """The workload to measure, a key of kproc.tools.tune.measure.WORKLOADS."""

    SMALL = "small"
    PRODUCE = "produce"
    FETCH = "fetch"
    MIXED = "mixed"


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Write the counts to this file, which serve --config reads.",
    ),
]
Workload = Annotated[
    WorkloadName,
    typer.Option("--workload", "-w", help="small: one record a request. mixed: produce and fetch."),
]
Seconds = Annotated[
    float, typer.Option("--seconds", min=0.2, max=60, help="Duration of each run in seconds.")
]
Rounds = Annotated[
    int,
    typer.Option(
        "--rounds", min=1, max=50, help="Runs of each layout. At least two are needed to judge the noise."
    ),
]
Connections = Annotated[
    int | None,
    typer.Option(
        "--connections", min=1, max=10_000, help="Number of connections, instead of the workload's."
    ),
]
FromBroker = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="HOST:PORT",
        help="Use the figures of a running broker over --seconds instead of a load.",
    ),
]


@app.callback(invoke_without_command=True)
def tune(
    context: typer.Context,
    config: ConfigFile = None,
    workload: Workload = WorkloadName.SMALL,
    seconds: Seconds = 3.0,
    rounds: Rounds = 3,
    connections: Connections = None,
    consent: Consent = Consent(),
    from_broker: FromBroker = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Propose process counts for this machine, by measuring a few layouts with temporary brokers.

    Each run has a temporary broker on a free port, in a temporary directory, under the C load generator (which needs a
    C compiler once). Layouts are processors x handlers, one thread each, or all inline; of those that noise cannot
    tell from the best, the one with the fewest processes is proposed. Run it while the machine has nothing else to do.
    Counts that were set by kproc scale win over those in a file.
    """
    if context.invoked_subcommand is not None:
        return
    if config is None and consent.yes:
        usage_error("--yes: there is nothing to write without --config FILE")
    if config is not None:
        # Check before measuring, which takes a minute, that the file can be written.
        _check_writable(config, consent)
    if from_broker is not None:
        live = _propose_live(from_broker, seconds)
        _show_live(live, output)
        _keep(config, live.settings, consent, output)
        return
    proposal = _measure(workload, seconds, rounds, connections)
    _show(proposal, workload, output)
    _keep(config, proposal.settings, consent, output)


def _measure(workload: WorkloadName, seconds: float, rounds: int, connections: int | None) -> Proposal:
    from rich.console import Console
    from rich.progress import track

    from kproc.broker.config.cpus import available_cpus
    from kproc.tools.tune.choice import NothingMeasured, candidates, choose
    from kproc.tools.tune.measure import WORKLOADS, CannotMeasure, RunOptions, require_generator, run_rounds

    try:
        require_generator()
    except CannotMeasure as problem:
        raise Failure(str(problem)) from None
    cpus = available_cpus()
    layouts = candidates(cpus)
    console = Console(stderr=True)
    about = WORKLOADS[workload.value].about
    console.print(
        f"{cpus:g} CPUs by affinity and cgroup; {len(layouts)} layouts, {rounds} rounds of {seconds:g} s: {about}",
        highlight=False,
    )
    count, is_hidden = len(layouts) * rounds, not console.is_terminal
    steps = iter(track(range(count), "measuring", console=console, transient=True, disable=is_hidden))
    samples = run_rounds(
        [(layout, connections) for layout in layouts],
        WORKLOADS[workload.value],
        RunOptions(seconds=seconds, partitions=max(each.handlers for each in layouts)),
        rounds=rounds,
        on_sample=lambda _sample: next(steps, None),
    )
    next(steps, None)
    try:
        return choose(samples)
    except NothingMeasured as problem:
        raise Failure(str(problem)) from None


def _show(proposal: Proposal, workload: WorkloadName, output: Format) -> None:
    if output is Format.JSON:
        print_json(
            {
                "workload": workload.value,
                "layout": str(proposal.layout),
                "settings": proposal.settings,
                "margin": proposal.margin,
                "layouts": [each.row() for each in proposal.standings],
                "remarks": list(proposal.remarks),
            }
        )
        return
    unit = "MB/s" if workload is not WorkloadName.SMALL else "requests/s"
    print_table(
        ["LAYOUT", unit, "RANGE", "OF BEST", "P50 us", "P99 us", "CPU us/REQ", "CORES", "BOTTLENECK"],
        map(_standing_cells, proposal.standings),
    )
    print_line()
    print_line(
        "Layouts are processors x handlers; = marks layouts that noise cannot tell from the best (less than"
        f" {100 * proposal.margin:.0f} % apart)."
    )
    for remark in proposal.remarks:
        print_line(f"- {remark}")
    layout = proposal.layout
    print_line(
        f"proposed: processors={layout.processors} handlers={layout.handlers} transport={layout.transport}"
    )


def _standing_cells(standing: Standing) -> list[object]:
    if standing.failed:
        return [standing.layout, *[None] * 7, f"failed: {standing.failed}"]
    return [
        standing.layout,
        f"{standing.throughput:.0f}",
        f"{standing.low:.0f}-{standing.high:.0f}",
        f"{100 * standing.ratio:.0f} %{' =' if standing.is_as_good else ''}",
        f"{standing.p50_us:.0f}",
        f"{standing.p99_us:.0f}",
        f"{standing.cpu_us_per_request:.1f}",
        f"{standing.cores_used:.2f}",
        standing.bottleneck,
    ]


def _propose_live(bootstrap: str, seconds: float) -> LiveProposal:
    from kproc.broker.config.cpus import available_cpus
    from kproc.tools.tune.live import TooQuiet, propose

    with connect(bootstrap) as client:
        before, begun = client.operate("status"), time.monotonic()
        time.sleep(seconds)
        after, passed = client.operate("status"), time.monotonic() - begun
    try:
        return propose(before, after, passed, available_cpus())
    except TooQuiet as problem:
        raise Failure(f"{bootstrap}: {problem}") from None


def _live_json(live: LiveProposal) -> dict[str, Any]:
    """Return the proposal as --format json prints it."""
    roles = [
        {**vars(use), "demand_us": use.demand_us, "rate_max": use.rate_max, "waiting": use.waiting}
        for use in live.uses
    ]
    return {
        "settings": live.settings,
        "seconds": live.seconds,
        "cpus": live.cpus,
        "roles": roles,
        "remarks": list(live.remarks),
    }


def _show_live(live: LiveProposal, output: Format) -> None:
    if output is Format.JSON:
        print_json(_live_json(live))
        return
    print_table(
        ["ROLE", "COUNT", "BUSY", "ON CPU", "WAITED", "us/REQUEST", "REQUESTS/s", "AT MOST", "WANTED"],
        [
            [
                use.role,
                use.count,
                f"{use.busy:.2f}",
                f"{use.on_cpu:.2f}",
                f"{use.waiting:.2f}",
                f"{use.demand_us:.1f}",
                f"{use.requests_per_s:.0f}",
                f"{use.rate_max:.0f}",
                use.count_wanted,
            ]
            for use in live.uses
        ],
    )
    print_line()
    print_line(
        "WANTED: number of processes with which each role is busy less than 70 % of its time at this load."
    )
    for remark in live.remarks:
        print_line(f"- {remark}")


def _check_writable(config: Path, consent: Consent) -> None:
    from kproc.tools.tune import config_file

    is_toml = config.suffix.lower() == ".toml"
    config_file.edited(config_file.read(config), {"num.io.threads": "1"}, is_toml=is_toml)
    consent.check(f"--config {config}")
    if not consent.dry_run and not os.access(config.resolve().parent, os.W_OK):
        raise Failure(f"{config}: its directory cannot be written to")


def _keep(config: Path | None, settings: Mapping[str, str], consent: Consent, output: Format) -> None:
    """Offer to write the proposed settings into the file: show the change, ask, write. Without a file print them.

    Print to stderr if stdout has JSON.
    """
    say = print_notes if output is Format.JSON else print_block
    if config is None:
        if output is Format.TABLE:
            say("".join(f"{name}={value}\n" for name, value in settings.items()))
        return
    from kproc.tools.tune import config_file

    before = config_file.read(config)
    is_toml = config.suffix.lower() == ".toml"
    wanted = dict(settings)
    if wanted.get(_TRANSPORT) == "process" and _TRANSPORT not in config_file.names(before, is_toml=is_toml):
        del wanted[_TRANSPORT]  # `process` is the default, so do not add it to the file.
    after = config_file.edited(before, wanted, is_toml=is_toml)
    change = config_file.diff(before, after, config)
    if not change:
        say(f"{config} has these settings already\n")
        return
    say(change)
    if consent.dry_run:
        say(f"{config} is left as it is (--dry-run)\n")
        return
    consent.require(f"write {config}?")
    config_file.write(config, after)
    say(f"written to {config}; it holds from the broker's next start\n")


Data = Annotated[
    Path,
    typer.Option("--data", metavar="DIR", help="The broker's data directory, for checks of its file system."),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="NAME", help="Ignore this setting for the exit code; may be repeated."),
]


@app.command("list")
def list_settings(
    data: Data = Path(),
    ignore: Ignore = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Check settings of this host, with reason and remedy. Exit code 1 if one is not as wanted."""
    from kproc.tools.tune.host import Host
    from kproc.tools.tune.host_checks import CHECKS, CheckResult, check_host

    ignored = set(ignore or ())
    unknown = ignored - {check.name for check in CHECKS}
    if unknown:
        usage_error(f"--ignore {min(unknown)}: there is no such setting in kproc tune list")
    rows = check_host(Host(data=data))
    wrong = [row for row in rows if row.verdict is CheckResult.CHANGE and row.name not in ignored]
    if output is Format.JSON:
        print_json([{**row._asdict(), "is_ignored": row.name in ignored} for row in rows])
    else:
        print_table(
            ["SETTING", "VALUE", "WANTED", ""],
            [
                [row.name, row.value, row.wanted, "ignored" if row.name in ignored else row.verdict]
                for row in rows
            ],
            drop=("WANTED",),
            cut=("VALUE",),
        )
        for row in wrong:
            print_line()
            print_text(f"{row.name} is {row.value}, wanted {row.wanted}")
            print_text(f"  why: {row.why}", indent="       ")
            print_text(f"  how: {row.change}", indent="       ")
    if wrong:
        raise typer.Exit(1)
