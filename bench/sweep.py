"""Measure how throughput scales: with connections at fixed process counts, and with processes at a fixed load.

    python -m bench.sweep                                    1x1 to 2x2, 1 to 256 connections, 3 rounds
    python -m bench.sweep --layouts 1x1,2x2,4x4 --connections 1,4,16,64,256,512 --workload small --rounds 5
    python -m bench.sweep --scale                            one broker, scaled live instead of a fresh one each

    for each round:  for each (layout, connections), shuffled anew:  broker -> warm-up -> load -> sample

The question: where does throughput peak, and what holds it back? X(N) = gN / (1 + a(N-1) + bN(N-1)) is fitted twice: N
is the number of connections for each layout, then the number of processes at the greatest load. A fit whose points do
not support it says so, and one of fewer than six different N is refused: on two cores, a fit over processes always is.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from bench import machine
from bench.command_line import make_parser
from bench.usl import CannotFit, Point, fit
from kproc.broker.config.cpus import available_cpus
from kproc.client import Client, ClientError
from kproc.embedded import Broker, BrokerFailed
from kproc.tools.load.run import LoadFailed
from kproc.tools.tune.measure import (
    WORKLOADS,
    ProcessCounts,
    RunOptions,
    Sample,
    bottleneck,
    load_running,
    middle,
    run_rounds,
)

CONNECTIONS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_LAYOUT: Final = re.compile(r"([1-9]\d?)x([1-9]\d?)")


def run_scaled(
    layouts: Sequence[ProcessCounts],
    connections: Sequence[int | None],
    options: argparse.Namespace,
    on_sample: Callable[[Sample], None],
) -> list[Sample]:
    """Measure the cells on one broker that `kproc scale` brings to each layout. Page cache and topics are kept."""
    draw = random.Random(options.seed)
    samples = []
    with Broker({"kproc.flush": "group", "num.network.threads": 1, "num.io.threads": 1}) as broker:
        now = ProcessCounts(1, 1)
        for number in range(1, options.rounds + 1):
            for layout, cells in _by_layout(draw, layouts, connections):
                try:
                    now = _scale(broker, now, layout)
                except ClientError as problem:
                    failed = Sample(layout, number, 0, int(available_cpus()), failed=f"scale: {problem}")
                    samples.append(failed)
                    on_sample(failed)
                    continue
                for count in cells:
                    run = RunOptions(number, options.seconds, count, options.partitions)
                    sample = load_running(broker, layout, WORKLOADS[options.workload], run)
                    samples.append(sample)
                    on_sample(sample)
    return samples


def _by_layout(
    draw: random.Random, layouts: Sequence[ProcessCounts], connections: Sequence[int | None]
) -> list[tuple[ProcessCounts, list[int | None]]]:
    """Layouts in a new order, connections in a new order within each: one change of counts for each layout."""
    return [
        (layout, draw.sample(list(connections), len(connections)))
        for layout in draw.sample(list(layouts), len(layouts))
    ]


def _scale(broker: Broker, now: ProcessCounts, wanted: ProcessCounts) -> ProcessCounts:
    """Kafka's rule is half to double at a time for configs; the private operation takes any step."""
    if now != wanted:
        with Client.connect(broker.host, broker.port, timeout_ms=60_000) as client:
            client.scale(processors=wanted.processors, handlers=wanted.handlers)
    return wanted


def fits_of(samples: Sequence[Sample], cpus: float) -> list[dict[str, Any]]:
    """A fit over connections for each layout, and one over processes at the greatest number of connections."""
    good = [sample for sample in samples if sample.failed is None and sample.throughput > 0]
    answer = []
    for layout in sorted({sample.layout for sample in good}):
        mine = [s for s in good if s.layout == layout]
        points = [Point(s.connections, s.throughput) for s in mine]
        answer.append({"over": "connections", "at": str(layout), **_fit(points)})
    for connections in sorted({sample.connections for sample in good})[-1:]:
        square = [s for s in good if s.connections == connections and s.layout.transport == "process"]
        points = [
            # Without a core for each process and one for the generator, N is not a number of workers.
            Point(s.layout.processes, s.throughput, is_within_cores=s.layout.processes + 1 <= cpus)
            for s in square
        ]
        answer.append({"over": "processes", "at": f"{connections} connections", **_fit(points)})
    return answer


def _fit(points: Sequence[Point]) -> dict[str, Any]:
    try:
        return fit(points).as_dict()
    except CannotFit as problem:
        return {"is_supported": False, "refused": str(problem), "objections": [str(problem)]}


def markdown(samples: Sequence[Sample], fits: Sequence[dict[str, Any]], about: dict[str, Any]) -> str:
    """The table of cells, then the fits, then what they do not support."""
    unit = next((sample.unit for sample in samples if sample.unit), "")
    lines = [
        f"# Sweep: {about['workload']}, {about['rounds']} rounds of {about['seconds']:g} s",
        "",
        f"{about['cpu']}, {about['cpus']:g} CPUs, kernel {about['kernel']}, Python {about['python']}, commit "
        f"{about['commit']}{' with changes' if about['has_local_changes'] else ''}; generator on the same CPUs."
        f"{'' if about['is_quiet'] else ' NOT A QUIET MACHINE: do not quote.'}",
        "",
        f"| layout | connections | {unit} | range "
        "| p50 us | p99 us | CPU us/request | broker cores | generator | held up by |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for layout, connections in sorted({(s.layout, s.connections) for s in samples}):
        mine = [s for s in samples if (s.layout, s.connections) == (layout, connections)]
        lines.append(f"| {layout} | {connections} | {' | '.join(_cells(mine))} |")
    lines += ["", "## X(N) = gN / (1 + a(N-1) + bN(N-1))", ""]
    lines += [
        "| N | at | g | a (contention) | b (coherency) | peak N* | X(N*) | worst residual | R2 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [f"| {row['over']} | {row['at']} | {' | '.join(_law_cells(row))} |" for row in fits]
    lines.append("")
    for row in fits:
        word = "supported by its points" if row["is_supported"] else "; ".join(row["objections"])
        lines.append(f"- {row['over']}, {row['at']}: {word}")
    return "\n".join(lines) + "\n"


def _cells(mine: Sequence[Sample]) -> list[str]:
    good = [s for s in mine if s.failed is None]
    if not good:
        return [f"failed: {mine[0].failed}", *["-"] * 7]
    rates = [s.throughput for s in good]
    lost = f" ({len(mine) - len(good)} failed)" if len(good) < len(mine) else ""
    return [
        f"{middle(rates):,.0f}{lost}",
        f"{min(rates):,.0f}-{max(rates):,.0f}",
        f"{middle(s.p50_us for s in good):,.0f}",
        f"{middle(s.p99_us for s in good):,.0f}",
        f"{middle(1e6 * s.broker_cpu_s / max(1, s.requests) for s in good):.1f}",
        f"{middle(s.broker_cpu_s / s.seconds for s in good):.2f}",
        f"{middle(s.generator_cpu_s / s.seconds for s in good):.2f}",
        bottleneck(sorted(good, key=lambda s: s.throughput)[len(good) // 2]),
    ]


def _law_cells(row: dict[str, Any]) -> list[str]:
    if "refused" in row:
        return [f"refused: {row['refused']}", *["-"] * 6]

    def with_range(name: str, form: str) -> str:
        low, high = row["intervals_95"][name]
        value = row[name]
        shown = [("inf" if each is None else format(each, form)) for each in (value, low, high)]
        return f"{shown[0]} [{shown[1]}-{shown[2]}]"

    return [
        with_range("g", ",.0f"),
        with_range("a", ".3g"),
        with_range("b", ".2g"),
        with_range("peak_n", ".3g"),
        with_range("peak_throughput", ",.0f"),
        f"{100 * row['worst_residual']:.0f} %",
        f"{row['r_squared']:.3f}",
    ]


def plot(samples: Sequence[Sample], fits: Sequence[dict[str, Any]], path: Path) -> bool:
    """Measured points and the fitted law for each layout; False without matplotlib."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot
    except ModuleNotFoundError:
        return False
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for index, row in enumerate(each for each in fits if each["over"] == "connections"):
        mine = [s for s in samples if str(s.layout) == row["at"] and s.failed is None]
        colour = f"C{index % 10}"
        axes.plot([s.connections for s in mine], [s.throughput for s in mine], "o", color=colour, alpha=0.6)
        if "points" in row:
            seen = sorted({(point["n"], point["fitted"]) for point in row["points"]})
            style = "-" if row["is_supported"] else ":"
            axes.plot(*zip(*seen, strict=True), style, color=colour, label=row["at"])
    axes.set(xscale="log", xlabel="connections, one request in flight each", ylabel=samples[0].unit)
    axes.set_title("Measured (points) and fitted (lines; dotted: not supported)")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(title="processors x handlers")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    about = (
        "Measure how the throughput grows with connections and with processes, and fit the Universal "
        "Scalability Law to it. A fit needs at least six different numbers."
    )
    parser = make_parser("sweep", about)
    what = parser.add_argument_group("what to measure")
    what.add_argument(
        "--layouts", default="1x1,1x2,2x1,2x2", metavar="LIST",
        help="PROCESSORSxHANDLERS, inline or thread (default: 1x1,1x2,2x1,2x2)",
    )  # fmt: skip
    known = ",".join(map(str, CONNECTIONS))
    what.add_argument(
        "--connections", default=known, metavar="LIST", help=f"numbers of connections (default: {known})"
    )
    what.add_argument(
        "--workload", choices=sorted(WORKLOADS), default="small", help="kind of load (default: small)"
    )
    what.add_argument(
        "--partitions", type=int, default=0, metavar="N", help="partitions (default: the most Handlers)"
    )
    what.add_argument("--scale", action="store_true", help="scale one broker instead of starting new ones")
    length = parser.add_argument_group("how long")
    length.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds (default: 3)")
    length.add_argument(
        "--seconds", type=float, default=2.0, metavar="S", help="measured time of each run (default: 2)"
    )
    length.add_argument("--seed", type=int, default=1, metavar="N", help="of the random order (default: 1)")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--out", type=Path, default=None, metavar="DIR", help="directory for JSON, Markdown and PNG"
    )
    options = parser.parse_args(arguments)
    options.layouts = [_layout(parser, each) for each in options.layouts.split(",")]
    try:
        options.connections = [int(each) for each in options.connections.split(",")]
    except ValueError:
        parser.error(f"--connections {options.connections}: numbers with commas between")
    if not all(1 <= each <= 10_000 for each in options.connections):
        parser.error("--connections: each from 1 to 10000")
    if options.rounds < 1 or not 0.05 <= options.seconds <= 600 or options.partitions < 0:
        parser.error("--rounds of at least 1, --seconds from 0.05 to 600, --partitions not negative")
    if options.scale and any(layout.transport != "process" for layout in options.layouts):
        parser.error("--scale: only processes can be scaled, not inline or thread")
    options.partitions = options.partitions or max(layout.handlers for layout in options.layouts)
    return options


def _layout(parser: argparse.ArgumentParser, text: str) -> ProcessCounts:
    if text in ("inline", "thread"):
        return ProcessCounts(1, 1, text)
    match = _LAYOUT.fullmatch(text)
    if match is None:
        parser.error(f"--layouts {text}: PROCESSORSxHANDLERS such as 2x3 is wanted, or inline or thread")
    return ProcessCounts(int(match[1]), int(match[2]))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    console = Console(stderr=True, highlight=False)
    about = machine.describe() | {
        "cpus": available_cpus(),
        **{
            name: getattr(options, name)
            for name in ("workload", "rounds", "seconds", "seed", "partitions", "scale")
        },
    }
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    samples: list[Sample] = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(options.layouts) * len(options.connections) * options.rounds)

        def on_sample(sample: Sample) -> None:
            samples.append(sample)
            shown = sample.failed or f"{sample.throughput:,.0f} {sample.unit}"
            progress.update(
                task, advance=1, description=f"{sample.layout} {sample.connections}: {shown[:60]}"
            )

        try:
            if options.scale:
                run_scaled(options.layouts, options.connections, options, on_sample)
            else:
                run_rounds(
                    [(layout, count) for layout in options.layouts for count in options.connections],
                    WORKLOADS[options.workload],
                    RunOptions(seconds=options.seconds, partitions=options.partitions),
                    rounds=options.rounds, seed=options.seed, on_sample=on_sample,
                )  # fmt: skip
        except KeyboardInterrupt:
            console.print("interrupted: what there is follows")
        except (BrokerFailed, LoadFailed) as problem:
            console.print(f"stopped: {problem}")
    if not samples:
        return 1
    fits = fits_of(samples, about["cpus"])
    table = markdown(samples, fits, about)
    sys.stdout.write(table)
    if options.out:
        write(options.out, about, samples, fits, table, console)
    return int(any(sample.failed for sample in samples))


def write(
    out: Path, about: dict[str, Any], samples: Sequence[Sample], fits: Any, table: str, console: Console
) -> None:
    """Samples as flat rows (what Parquet wants), fits, table and plot."""
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"{about['time'][:19].replace(':', '')}-sweep"
    document = {"about": about, "rows": [sample.row() for sample in samples], "fits": fits}
    stem.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    stem.with_suffix(".md").write_text(table)
    has_plot = plot(samples, fits, stem.with_suffix(".png"))
    console.print(
        f"written to {stem}.json, .md{', .png' if has_plot else ' (no plot: matplotlib is missing)'}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
