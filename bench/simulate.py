"""More cores than this machine has: the pipeline simulated with the service times that were measured here.

    python -m bench.simulate calibrate                     service times of this machine (30 s, wants a quiet one)
    python -m bench.simulate validate                      simulated beside measured in the same rounds (4 min)
    python -m bench.simulate --cores 8,32,128              which counts to plan with; a table and a plot

The question: how many Processors and Handlers pay off on a machine that is not here? Every figure of the last is marked
"simulated", and the plot shows measured points as filled, simulated ones as hollow.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.progress import track

from bench import machine
from bench.command_line import make_parser
from bench.simulation.calibrate import (
    CALIBRATING,
    Point,
    Run,
    calibrate,
    costs_of,
    measure_scan_us,
    measure_wake_us,
    measured_runs,
)
from bench.simulation.model import Costs, Outcome, Scene, simulate

RESULTS: Final = Path(__file__).parent / "results"
COSTS: Final = RESULTS / "simulation-costs.json"
ERROR_WANTED: Final = 0.20
# None of them is among those that feed the costs.
POINTS: Final[tuple[Point, ...]] = (
    (2, 1, 1, 2), (2, 1, 1, 8), (2, 1, 1, 32), (2, 1, 1, 128), (2, 1, 1, 256),
    (2, 1, 2, 16), (2, 1, 2, 128), (2, 2, 1, 16), (2, 2, 1, 128), (2, 2, 2, 64),
    (1, 1, 1, 4), (1, 1, 1, 64), (1, 2, 1, 64), (1, 1, 2, 64), (1, 2, 2, 64),
)  # fmt: skip
CORES_MAX: Final = 1024
_OTHERS_MAX: Final = 0.1  # Cores: what a quiet machine does beside.
_ROLE_RATE: Final = 80_000  # requests/s of a pair, about: for how long is simulated, not for what comes out


class Check(NamedTuple):
    """A point in one round: as it was measured, and as it comes out with the costs of that round."""

    measured: Run
    simulated: Outcome


def _scene(cpus: int, processors: int, handlers: int, connections: int) -> Scene:
    return Scene(cores=cpus, processors=processors, handlers=handlers, connections=connections, seconds=0.4)


def do_calibrate(options: argparse.Namespace, console: Console) -> int:
    about = machine.describe()
    costs, runs = calibrate(
        seconds=options.seconds, rounds=options.rounds, on_run=lambda run: console.print(_said(run))
    )
    document = {"about": about, "costs_us": costs.as_dict(), "runs": [run.row() for run in runs]}
    options.costs.parent.mkdir(parents=True, exist_ok=True)
    options.costs.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(costs.as_dict(), indent=1))
    console.print(f"written to {options.costs}")
    return 0


def _said(run: Run) -> str:
    sample = run.sample
    cpu = " ".join(f"{role} {run.cpu_us(role):.1f}" for role in ("client", "processor", "handler"))
    others = f", others used {run.others:.1f} cores" if run.others > _OTHERS_MAX else ""
    return (
        f"{sample.cpus} CPUs {sample.layout} {sample.connections} connections: {sample.throughput:,.0f} requests/s,"
        f" CPU us/request: {cpu}{others}"
    )


def do_validate(options: argparse.Namespace, console: Console) -> int:
    """Calibrate and check in the same rounds: a machine whose speed changes by the minute changes both alike."""
    checks: dict[Point, list[Check]] = {point: [] for point in POINTS}
    for number in track(range(options.rounds), "rounds", console=console):
        points = [*CALIBRATING, *POINTS]
        random.Random(number).shuffle(points)
        runs = {run.point: run for run in measured_runs(points, seconds=options.seconds)}
        feeding = [run for point, run in runs.items() if point in CALIBRATING]
        costs = costs_of(feeding, wake_us=measure_wake_us(), scan_us=measure_scan_us())
        for point, found in checks.items():
            found.append(Check(runs[point], simulate(_scene(*point), costs)))
    rows = [_checked(point, found) for point, found in checks.items()]
    path = options.costs.with_name("simulation-validation.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"about": machine.describe(), "points": rows}, indent=1) + "\n")
    sys.stdout.write(validation_table(rows))
    console.print(f"written to {path}")
    return 0


def _checked(point: Point, found: Sequence[Check]) -> dict[str, Any]:
    """One row: medians over the rounds, and how far the simulation was off within each."""
    cpus, processors, handlers, connections = point
    errors = sorted(each.simulated.throughput / each.measured.sample.throughput - 1 for each in found)
    return {
        "cpus": cpus,
        "layout": f"{processors}x{handlers}",
        "connections": connections,
        "measured": median(each.measured.sample.throughput for each in found),
        "measured_p50_us": median(each.measured.sample.p50_us for each in found),
        "measured_batch": median(1 / max(1e-9, each.measured.passes["handler"]) for each in found),
        "others_cores": median(each.measured.others for each in found),
        "simulated": median(each.simulated.throughput for each in found),
        "simulated_p50_us": median(each.simulated.p50_us for each in found),
        "simulated_batch": median(each.simulated.handler_batch for each in found),
        "error": median(errors),
        "error_range": [errors[0], errors[-1]],
    }


def validation_table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: a row for each point, its error within the rounds, then what to make of it."""
    lines = [
        "| CPUs | layout | connections | measured/s | simulated/s | error | p50 measured | simulated |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["error_range"]
        mark = " (!)" if abs(row["error"]) > ERROR_WANTED else ""
        cells = [
            row["cpus"],
            row["layout"],
            row["connections"],
            f"{row['measured']:,.0f}",
            f"{row['simulated']:,.0f}",
            f"{100 * row['error']:+.0f} % [{100 * low:+.0f} to {100 * high:+.0f}]{mark}",
            f"{row['measured_p50_us']:,.0f} us",
            f"{row['simulated_p50_us']:,.0f} us",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    errors = sorted(abs(row["error"]) for row in rows)
    off = [
        f"{r['cpus']} CPUs {r['layout']} with {r['connections']}"
        for r in rows
        if abs(r["error"]) > ERROR_WANTED
    ]
    lines.append("")
    lines.append(f"Median error {100 * errors[len(errors) // 2]:.0f} %, greatest {100 * errors[-1]:.0f} %.")
    if off:
        lines.append(f"More than {100 * ERROR_WANTED:.0f} % off: {'; '.join(off)}.")
    others = fmean(row["others_cores"] for row in rows)
    if others > _OTHERS_MAX:
        lines.append(
            f"Other programs, or this machine's host, took {others:.1f} cores meanwhile: none of it is to be quoted."
        )
    return "\n".join(lines) + "\n"


def load_costs(path: Path) -> tuple[Costs, dict[str, Any]]:
    """Costs and the machine and commit that they are of."""
    try:
        document = json.loads(path.read_text())
        return Costs.from_dict(document["costs_us"]), document["about"]
    except FileNotFoundError:
        raise SystemExit(f"no service times at {path}: python -m bench.simulate calibrate") from None
    except (ValueError, KeyError, TypeError) as problem:
        raise SystemExit(f"{path} holds no service times: {problem}") from None


def layouts(cores: int) -> list[tuple[int, int]]:
    """Counts worth a look on so many cores, in order."""
    parts = {max(1, cores // 4), max(1, cores // 3), max(1, cores // 2), max(1, 2 * cores // 3)}
    # Splits that use most of the machine, and a few equal ones below as a scale.
    pairs = {(a, b) for a in parts for b in parts if 0.75 * cores <= a + b <= cores + 1}
    scale = {(count, count) for count in (1, cores // 8, cores // 4) if count}
    return sorted(pairs | scale, key=lambda pair: (sum(pair), pair))


def do_plan(options: argparse.Namespace, console: Console) -> int:
    costs, about = load_costs(options.costs)
    rows: list[dict[str, Any]] = []
    cells = [(cores, pair) for cores in options.cores for pair in layouts(cores)]
    for cores, (processors, handlers) in track(cells, "simulating", console=console):
        connections = options.connections or 32 * cores
        # Several turns of every connection, after two that do not count.
        turn = connections / (_ROLE_RATE * min(processors, handlers))
        seconds = max(0.015, 3 * turn)
        scene = Scene(
            cores=cores, processors=processors, handlers=handlers, connections=connections,
            is_client_local=False, network_us=options.network_us, seconds=seconds, warmup=2 * turn,
        )  # fmt: skip
        outcome = simulate(scene, costs)
        rows.append({"cores": cores, "layout": f"{processors}x{handlers}", **_figures(outcome)})
    document = {"about": machine.describe(), "costs_of": about, "kind": "simulated", "rows": rows}
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "simulation-plan.json").write_text(json.dumps(document, indent=1) + "\n")
        plot(rows, options.costs, options.out / "simulation-plan.png", console)
    sys.stdout.write(plan_table(rows, about, options))
    return 0


def _figures(outcome: Outcome) -> dict[str, Any]:
    values = asdict(outcome)
    values.pop("lateness", None)
    return values


def plan_table(rows: Sequence[dict[str, Any]], about: dict[str, Any], options: argparse.Namespace) -> str:
    """Markdown: each number of cores, best layouts first."""
    lines = [
        f"SIMULATED, not measured: service times of {about.get('cpu')}, commit {about.get('commit')}; clients on other "
        f"machines ({options.network_us:g} us away); one record of 100 B a request. Memory bandwidth, caches, NUMA and "
        "the disk are not in it.",
        "",
        "| cores | layout | requests/s (simulated) | p50 | p99 | cores used | batch | held up by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cores in options.cores:
        mine = sorted((row for row in rows if row["cores"] == cores), key=lambda row: -row["throughput"])
        for row in mine[: options.show]:
            cells = [
                cores,
                row["layout"],
                f"{row['throughput']:,.0f}",
                f"{row['p50_us']:,.0f} us",
                f"{row['p99_us']:,.0f} us",
                f"{sum(row['cores_used'].values()):.1f}",
                f"{row['handler_batch']:.1f}",
                row["bottleneck"],
            ]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def plot(rows: Sequence[dict[str, Any]], costs_path: Path, path: Path, console: Console) -> None:
    """Throughput by processes, a line for each number of cores; measured points filled, simulated ones hollow."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot
    except ModuleNotFoundError:
        console.print("no plot: pip install '.[bench]'")
        return
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for cores in sorted({row["cores"] for row in rows}):
        best: dict[int, float] = {}
        for row in rows:
            if row["cores"] == cores:
                count = sum(map(int, row["layout"].split("x")))
                best[count] = max(best.get(count, 0.0), row["throughput"])
        xs = sorted(best)
        axes.plot(xs, [best[x] for x in xs], "o--", fillstyle="none", label=f"{cores} cores, simulated")
    validation = costs_path.with_name("simulation-validation.json")
    if validation.exists():
        points = json.loads(validation.read_text())["points"]
        best = {}
        for point in points:
            if point["cpus"] == 2:
                count = sum(map(int, point["layout"].split("x")))
                best[count] = max(best.get(count, 0.0), point["measured"])
        axes.plot(list(best), list(best.values()), "ks", label="2 cores, measured (generator included)")
    axes.set(xscale="log", yscale="log", xlabel="Processors + Handlers (best split)", ylabel="requests/s")
    axes.set_title("Planned with measured service times: hollow is simulated")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    console.print(f"plot: {path}")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    about = (
        "Show which numbers of Processors and Handlers pay off on a machine with more cores than this one. "
        "It simulates the pipeline with service times that were measured here.\n"
        "plan (the default) shows a table and a plot. calibrate measures the service times in 30 s, on a "
        "quiet machine. validate compares simulated with measured figures, in 4 minutes."
    )
    parser = make_parser("simulate", about)
    parser.add_argument(
        "do", nargs="?", choices=("plan", "calibrate", "validate"), default="plan", help="default: plan"
    )
    parser.add_argument(
        "--costs", type=Path, default=COSTS, metavar="FILE", help=f"service times (default: {COSTS.name})"
    )
    plan = parser.add_argument_group("plan")
    plan.add_argument(
        "--cores", default="8,32,128", metavar="LIST", help="numbers of cores (default: 8,32,128)"
    )
    plan.add_argument(
        "--connections", type=int, default=0, metavar="N", help="connections (default: 32 for each core)"
    )
    plan.add_argument(
        "--network-us", type=float, default=50.0, metavar="US", help="time to a client in us (default: 50)"
    )
    plan.add_argument(
        "--show", type=int, default=6, metavar="N", help="rows for each number of cores (default: 6)"
    )
    plan.add_argument("--out", type=Path, default=None, metavar="DIR", help="directory for JSON and PNG")
    measured = parser.add_argument_group("calibrate and validate")
    measured.add_argument(
        "--seconds", type=float, default=1.0, metavar="S", help="time of each run (default: 1)"
    )
    measured.add_argument("--rounds", type=int, default=4, metavar="N", help="rounds (default: 4)")
    options = parser.parse_args(arguments)
    try:
        options.cores = [int(each) for each in options.cores.split(",")]
    except ValueError:
        parser.error(f"--cores {options.cores}: numbers with commas between")
    if not all(1 <= each <= CORES_MAX for each in options.cores):
        parser.error(f"--cores: each from 1 to {CORES_MAX}")
    if options.connections < 0 or options.network_us < 0 or options.rounds < 1 or options.seconds <= 0:
        parser.error("--connections and --network-us must not be negative; --rounds and --seconds not 0")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    do = {"plan": do_plan, "calibrate": do_calibrate, "validate": do_validate}[options.do]
    try:
        return do(options, console)
    except RuntimeError as problem:
        console.print(f"failed: {problem}")
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
