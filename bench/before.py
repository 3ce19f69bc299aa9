"""This checkout beside another one, in interleaved rounds: what did a change give, and what did it cost?

    git worktree add /tmp/before v0.1.0
    python -m bench.before /tmp/before                  small requests and 1 MB batches, 7 rounds of 3 s
    python -m bench.before /tmp/before --cells one-1,fetch-1m --rounds 15
    python -m bench.before /tmp/before --cells end-to-end-1,end-to-end-all --flush group      produce to consume
    python -m bench.before . --python-before /usr/bin/python3     the same code, two builds of Python
    python -m bench.before /tmp/before --set num.io.threads=2 --set num.network.threads=2

Both brokers are up at once, with this checkout's generator and settings, and take turns at each cell within seconds, in
an order shuffled each round. A ratio is taken within a round; the median of the ratios is what to quote, with their
range, and where that straddles 1 there is no difference to speak of. An unquiet machine widens the range.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.progress import Progress

from bench import machine
from bench.cells import Cell, Metric, cpu_per, percentiles
from bench.peers.base import PeerFailed
from bench.peers.kproc import TRANSPORTS, KprocPeer
from bench.scenarios import Run, generate
from bench.workloads import CELLS, FILLS
from kproc.tools.load.run import LoadFailed, run_load

BEFORE, NOW = "before", "now"
DEFAULT_CELLS: Final = ("one-1", "one-16", "one-64", "bulk-100")
END_TO_END_RATE: Final = 1000


def _end_to_end(name: str, acks: int) -> Cell:
    title = f"produce to consume, {END_TO_END_RATE:,} records/s of 100 B, acks={acks}, from the intended send"
    metrics = (*percentiles("p50", "p99"), Metric("CPU", "s/million", False, cpu_per("requests", 1e6)))
    return Cell(name, title, "latency", "load", "latency", metrics, {"rate": END_TO_END_RATE, "acks": acks})


# The comparison with Kafka measures produce-to-consume at acks=1 only, at several rates.
END_TO_END: Final = (_end_to_end("end-to-end-1", 1), _end_to_end("end-to-end-all", -1))
BY_NAME: Final = {
    cell.name: cell
    for cell in (*CELLS, *END_TO_END)
    if cell.how == "load"
    and cell.does in ("produce", "fetch", "latency", "tail")
    and "codec" not in cell.options
}


class Sample(NamedTuple):
    """One measured run. `figures`: the shown metrics by name. CPU in seconds a million requests, or a GB."""

    cell: str
    who: str
    round: int
    figures: dict[str, float]
    cpu: float


def measure(peer: KprocPeer, name: str, who: str, number: int, seconds: float) -> Sample:
    """Run a cell once on one of the two brokers."""
    cell = BY_NAME[name]
    run = Run(number, seconds, seconds / 4)
    machine.prepare(cell.filling_seconds(run.seconds + run.warmup))
    result = generate(peer, cell, run)
    shown, cpu = _shown(cell), _cpu(cell)
    figures = {metric.name: value for metric in shown if (value := metric.read(result)) is not None}
    seconds_of_cpu = cpu.read(result)
    if len(figures) < len(shown) or seconds_of_cpu is None:
        raise LoadFailed(f"{name}: nothing was measured", result)
    return Sample(name, who, number, figures, seconds_of_cpu)


def _shown(cell: Cell) -> list[Metric]:
    """Return the metrics that get a row: p50 and p99 of a latency, or else the rate, which comes first."""
    latencies = [metric for metric in cell.metrics if metric.name in ("p50", "p99")]
    return latencies if cell.metrics[0] in latencies else [cell.metrics[0]]


def _cpu(cell: Cell) -> Metric:
    return next(metric for metric in cell.metrics if metric.name == "CPU")


def rounds(options: argparse.Namespace, note: Callable[[str], None]) -> list[Sample]:
    """All rounds, on two brokers that stay up."""
    shuffled = random.Random(options.seed).sample
    runs: list[Sample] = []
    with ExitStack() as stack:
        peers = {
            who: stack.enter_context(
                KprocPeer(
                    transport=options.transport, flush=options.flush, settings=options.settings,
                    checkout=checkout, python=python,
                )
            )
            for who, checkout, python in (
                (BEFORE, options.checkout, options.python_before),
                (NOW, Path(__file__).resolve().parents[1], sys.executable),
            )
        }
        for who, peer in peers.items():
            note(f"warming {who}")
            for fill in {cell.fill for name in options.cells if (cell := BY_NAME[name]).fill}:
                run_load("prepare", peer.bootstrap, topic=fill, **FILLS[fill])
            run_load("produce", peer.bootstrap, topic="warm", connections=16, seconds=2, warmup=0)
        try:
            for number in range(1, options.rounds + 1):
                for name in shuffled(options.cells, len(options.cells)):
                    for who in shuffled(list(peers), len(peers)):
                        note(f"round {number}, {name}, {who}")
                        runs.append(measure(peers[who], name, who, number, options.seconds))
        except KeyboardInterrupt:
            note("interrupted: what there is follows")
    return runs


def table(runs: Sequence[Sample]) -> str:
    """Markdown: medians, and the ratios within the rounds."""
    lines = [
        "| cell | before | now | now / before | CPU before | CPU now | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(run.cell for run in runs):
        by_round = {(run.who, run.round): run for run in runs if run.cell == name}
        pairs = [
            (by_round[BEFORE, number], by_round[NOW, number])
            for who, number in by_round
            if who == NOW and (BEFORE, number) in by_round
        ]
        if not pairs:
            continue
        cell = BY_NAME[name]
        for position, metric in enumerate(_shown(cell)):
            values = [(a.figures[metric.name], b.figures[metric.name]) for a, b in pairs]
            # CPU is of the whole run: it stands in the cell's first row.
            cpu = _cpu_columns(cell, pairs) if position == 0 else "| | | |"
            lines.append(
                f"| {name}: {metric.name} | {statistics.median(a for a, _ in values):,.0f} {metric.unit} "
                f"| {statistics.median(b for _, b in values):,.0f} | {_range([b / a for a, b in values])} {cpu}"
            )
    return "\n".join(lines) + "\n"


def _cpu_columns(cell: Cell, pairs: Sequence[tuple[Sample, Sample]]) -> str:
    return (
        f"| {statistics.median(a.cpu for a, _ in pairs):,.2f} {_cpu(cell).unit} "
        f"| {statistics.median(b.cpu for _, b in pairs):,.2f} | {_range([b.cpu / a.cpu for a, b in pairs])} |"
    )


def _range(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.before", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("checkout", type=Path, help="the other one: a directory with its kproc/")
    parser.add_argument(
        "--python-before", default=sys.executable, metavar="PATH",
        help="the interpreter that runs the other one, with what kproc needs installed; this one if not given",
    )  # fmt: skip
    parser.add_argument("--cells", default=",".join(DEFAULT_CELLS), help=f"of: {', '.join(BY_NAME)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured in each run")
    parser.add_argument("--transport", default="process", choices=TRANSPORTS)
    parser.add_argument("--flush", default="none", help="kproc.flush of both")
    parser.add_argument(
        "--set", action="append", default=[], dest="settings", metavar="NAME=VALUE", help="a setting of both"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order")
    parser.add_argument("--out", type=Path, help="a JSON file for every run")
    options = parser.parse_args(arguments)
    options.checkout = options.checkout.resolve()
    options.cells = options.cells.split(",")
    unknown = [name for name in options.cells if name not in BY_NAME]
    if unknown:
        parser.error(f"no such cell: {', '.join(unknown)} (there are {', '.join(BY_NAME)})")
    if not (options.checkout / "kproc" / "__main__.py").exists():
        parser.error(f"{options.checkout} is no checkout of kproc")
    for each in options.settings:
        if "=" not in each:
            parser.error(f"--set {each}: NAME=VALUE is meant")
    options.settings = dict(each.split("=", 1) for each in options.settings)
    if shutil.which(options.python_before) is None:
        parser.error(f"{options.python_before} is no program")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    about: dict[str, Any] = machine.describe()
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=2 * options.rounds * len(options.cells))

        def note(words: str) -> None:
            progress.update(task, description=words, advance=words.startswith("round"))

        try:
            runs = rounds(options, note)
        except (PeerFailed, LoadFailed) as problem:
            progress.console.print(f"failed: {problem}")
            return 1
    sys.stdout.write(
        f"{about['cpu']}, {about['cores']} cores, {about['commit']}, kproc.flush={options.flush}, "
        f"load before {about['load_before']}\n\n"
    )
    sys.stdout.write(table(runs))
    if options.out is not None:
        document = {"about": about, "runs": [run._asdict() for run in runs]}
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if runs else 1


if __name__ == "__main__":
    raise SystemExit(main())
