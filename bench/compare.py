"""kproc's transports and a real Apache Kafka beside each other, in interleaved rounds.

    kproc bench compare                    every cell, within an hour
    kproc bench compare --quick            a cell or more of each workload, within ten minutes
    kproc bench compare --workloads small,latency --peers kafka,process-group --minutes 5

    round 1   footprint: each broker alone: start, ready time, idle memory and CPU, stop     (order shuffled)
              alone:     cells that need brokers of their own, none else up                  (both shuffled)
              both again, twice at most, but of long cells only those with goals
              load:      all brokers up and warmed; each cell in turn on each broker         (both shuffled)
    then      all cells, the short ones or those with goals again on the running brokers, while there is time

The question: at equal work, what does each broker reach, and what does it cost? The footprint is taken alone, because
PSS would divide the interpreter's pages among several Python brokers. Under load all are up, so that a cell's runs on
two brokers lie seconds apart and the machine's moods hit both; what the waiting ones cost is the idle CPU of the first
part. A comparison that runs out of time sheds rounds, then seconds, then cells without goals (`budget.py`). Samples are
kept after every cell.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import machine, proc
from bench.alone import ALONE
from bench.budget import SECONDS_MIN, Budget, Step
from bench.cells import JUDGED, YARDSTICK, Cell
from bench.command_line import make_parser
from bench.peers.base import Peer, PeerFailed
from bench.peers.kproc import KprocPeer
from bench.peers.registry import PEERS
from bench.samples import Sample, Samples
from bench.scenarios import SCENARIOS, TOPIC_CONFIG, Run, ScenarioFailed, generate
from bench.workloads import BY_NAME, CELLS, FILLS, WORKLOADS
from kproc.tools.load.batches import compressed_batch
from kproc.tools.load.run import LoadFailed, Result, run_load

QUICK_MINUTES: Final = 9.5
FULL_MINUTES: Final = 58.0
REPORT_SECONDS: Final = 40.0
"""Of that time, for a Spark session and the plots."""
QUICK_SECONDS, FULL_SECONDS = 0.6, 1.5
ROUNDS_MAX: Final = 7
ALONE_ROUNDS_MAX: Final = 3
"""Of footprints and of cells that need the machine for themselves. The rest of the time is for those under load."""
# A JVM goes on for a moment after its first answer; a broker that still starts is not idle.
SETTLE_SECONDS: Final = 2.5
IDLE_SECONDS: Final = (4.0, 2.5)  # full, quick
START: Final = Cell("start", "start and warm-up", "", "load", "", (), overhead_seconds=5.0, is_timed=False)
# What a run may raise without being our mistake; it becomes a failed sample and the comparison goes on.
EXPECTED: Final = (LoadFailed, PeerFailed, ScenarioFailed, AssertionError, OSError)


class Comparison:
    """One comparison: its brokers, its samples, its time."""

    def __init__(
        self, options: argparse.Namespace, samples: Samples, budget: Budget, progress: Progress
    ) -> None:
        self.options = options
        self.samples = samples
        self.budget = budget
        self._random = random.Random(options.seed)
        self._progress = progress
        self._task = progress.add_task("", total=None)
        self._peers: list[str] = []
        self._batches: dict[str, Path] = {}
        self._seconds = budget.run_seconds
        self._alone_rounds = 0  # How often the cells were asked that need the machine for themselves.
        cells = [BY_NAME[name] for name in options.cells]
        self._footprints = [cell for cell in cells if cell.how == "footprint"]
        self._alone = [cell for cell in cells if cell.how == "alone"]
        self._loads = [cell for cell in cells if cell.how in ("load", "scenario")]

    # -- the plan

    def steps(self) -> list[Step]:
        """The runs of one whole round, as the budget counts them."""
        return [*self._steps([*self._footprints, *self._alone, *self._loads]), *self._starts()]

    def _starts(self) -> list[Step]:
        return [Step(START, peer) for peer in self._peers] if self._loads else []

    def _steps(self, cells: Sequence[Cell]) -> list[Step]:
        return [Step(cell, peer) for cell in cells for peer in self._asked(cell)]

    def _next_pass(self) -> list[Step]:
        """Return the cells to repeat on the running brokers: all, the short ones, or those with goals."""
        everything = self._steps(self._loads)
        choices = everything, _short_or_core(everything), [step for step in everything if _is_core(step)]
        return next((steps for steps in choices if self.budget.fits(steps, REPORT_SECONDS)), [])

    def _asked(self, cell: Cell) -> list[str]:
        return [
            name
            for name in self._peers
            if (PEERS[name].is_everywhere or name in cell.also)
            and (PEERS[name].is_kproc or not cell.settings)
            and (cell.only is None or name in cell.only)
            and (not self.options.quick or cell.quick_peers is None or name in cell.quick_peers)
        ]

    def choose_peers(self) -> list[tuple[str, str]]:
        """Leaves out who cannot run here, with the reason in each of its cells; they are returned."""
        absent = []
        for name in self.options.peers:
            reason = PEERS[name].missing()
            if reason is None:
                self._peers.append(name)
            else:
                absent.append((name, reason))
                for cell in [*self._footprints, *self._alone, *self._loads]:
                    self.samples.add(Sample(cell, name, 1, empty=reason))
        for cell in self._alone:
            if cell.settings and YARDSTICK in self._peers:
                self.samples.add(Sample(cell, YARDSTICK, 1, empty="Kafka has no such setting"))
        return absent

    # -- rounds

    def run(self) -> None:
        number = 1
        while True:
            if number > self._alone_rounds:
                self._footprint_part(number)
                self._alone_part(number, self._steps(self._alone))
                self._alone_rounds = number
                self._repeat_alone()
            number = self._load_part(number) + 1
            if number > self.options.rounds or not self.budget.fits(self.steps(), REPORT_SECONDS):
                break

    def _repeat_alone(self) -> None:
        """More rounds of what is asked alone, as long as a round and one for the goals under load fit behind it."""
        loads = self._steps(self._loads)
        behind = [*loads, *(step for step in loads if _is_core(step)), *self._starts()]
        footprints = self._steps(self._footprints)
        for number in range(2, min(self.options.rounds, ALONE_ROUNDS_MAX) + 1):
            for asked in (_short_or_core(self._steps(self._alone)), []):
                if self.budget.fits([*footprints, *asked, *behind], REPORT_SECONDS):
                    self._footprint_part(number)
                    self._alone_part(number, asked)
                    self._alone_rounds = number
                    break

    def _shuffled(self, names: Sequence[Any]) -> list[Any]:
        return self._random.sample(names, len(names))

    def _step(self, words: str) -> None:
        left = max(0, round(self.budget.left))
        words = f"{left // 60}:{left % 60:02} left, {words}"
        self._progress.update(self._task, description=words)
        if not self._progress.console.is_terminal:
            self._progress.console.print(words)

    def _plan(self, count: int) -> None:
        task = self._progress.tasks[0]
        self._progress.update(self._task, total=(task.total or 0) + count)

    def _run(self, number: int) -> Run:
        return Run(number, self._seconds, self.budget.warmup_for(self._seconds))

    def _fit(self, left: Sequence[Step]) -> None:
        """Shortens the runs when the rest of the round would not fit otherwise."""
        self._seconds = round(self.budget.seconds_for(left, REPORT_SECONDS), 2)

    def _footprint_part(self, number: int) -> None:
        if not self._footprints:
            return
        asked = self._asked(self._footprints[0])
        self._plan(len(asked))
        for name in self._shuffled(asked):
            self._step(f"round {number}, {name}: start and idle")
            begun = time.monotonic()
            self._footprint(name, number)
            took = time.monotonic() - begun
            for cell in self._footprints:
                self.budget.learn(Step(cell, name), took / len(self._footprints), 0)
            self._progress.advance(self._task)
        self._keep()

    def _footprint(self, name: str, number: int) -> None:
        names = [cell.name for cell in self._footprints]
        try:
            with PEERS[name].make({}, 0) as peer:
                if "ready" in names:
                    self.samples.add(
                        Sample(BY_NAME["ready"], name, number, {"ready_seconds": peer.start_seconds})
                    )
                if "idle" in names:
                    time.sleep(SETTLE_SECONDS)
                    cpu = proc.idle_cpu_percent(peer.pid, IDLE_SECONDS[self.options.quick])
                    pss, unmapped = proc.pss_bytes(peer.pids), proc.unmapped_shared_bytes(peer.pids)
                    result = {"pss_mb": pss / 1e6, "unmapped_mb": unmapped / 1e6, "cpu_percent": cpu}
                    result |= {"memory_mb": (pss + unmapped) / 1e6, "processes": len(peer.pids)}
                    self.samples.add(Sample(BY_NAME["idle"], name, number, result))
        except EXPECTED as problem:
            for cell in self._footprints:
                self.samples.add(Sample(cell, name, number, failed=_words(problem)))

    def _alone_part(self, number: int, steps: Sequence[Step]) -> None:
        self._plan(len(steps))
        order = self._by_cell(steps)
        for done, of_cell in enumerate(order):
            left = [step for each in order[done:] for step in each]
            self._fit([*left, *self._steps(self._loads), *self._starts()])
            behind = [*self._steps(self._loads), *self._starts()]
            for step in of_cell if self._has_time(of_cell, number, behind) else ():
                cell, name = step.cell, step.peer
                self._step(f"round {number}, {name}: {cell.name}")
                begun = time.monotonic()
                try:
                    result = ALONE[cell.does](PEERS[name], cell, self._run(number))
                    self.samples.add(Sample(cell, name, number, result))
                except EXPECTED as problem:
                    self.samples.add(Sample(cell, name, number, failed=_words(problem)))
                self.budget.learn(step, time.monotonic() - begun, self._seconds)
                self._progress.advance(self._task)
            self._keep()

    def _has_time(self, of_cell: Sequence[Step], number: int, behind: Sequence[Step] = ()) -> bool:
        """All brokers or none, or there would be nothing to compare. What is left out is named in the report.

        Without a goal it must leave the time for what comes `behind`.
        """
        reserve = REPORT_SECONDS
        if not of_cell[0].cell.is_core:
            reserve += self.budget.cost(behind, SECONDS_MIN)
        if self.budget.cost(of_cell, self._seconds) + reserve <= self.budget.left:
            return True
        self._progress.advance(self._task, len(of_cell))
        if number == 1:
            for step in of_cell:
                self.samples.add(Sample(step.cell, step.peer, number, empty="the time was up"))
        return False

    def _by_cell(self, steps: Sequence[Step]) -> list[list[Step]]:
        """Cell after cell in a new order, those with goals first; each on all its brokers in a new order."""
        found: dict[str, list[Step]] = {}
        for step in steps:
            found.setdefault(step.cell.name, []).append(step)
        order = sorted(self._shuffled(list(found.values())), key=lambda of_cell: not of_cell[0].cell.is_core)
        return [self._shuffled(of_cell) for of_cell in order]

    def _load_part(self, number: int) -> int:
        """All load cells, and those with goals again while there is time; the number of the last round."""
        if not self._loads:
            return number
        with ExitStack() as stack:
            self._plan(len(self._peers) + len(self._steps(self._loads)))
            running = self._start_all(stack, number)
            self._pass(self._steps(self._loads), running, number)
            self._seconds = self.budget.run_seconds
            while number < self.options.rounds and not self.budget.fits(self.steps(), REPORT_SECONDS):
                steps = self._next_pass()
                if not steps:
                    break
                number += 1
                self._plan(len(steps))
                self._pass(steps, running, number)
        return number

    def _start_all(self, stack: ExitStack, number: int) -> dict[str, Peer]:
        running: dict[str, Peer] = {}
        for name in self._shuffled(self._peers):
            self._step(f"round {number}, {name}: start and warm-up")
            begun = time.monotonic()
            try:
                peer = stack.enter_context(PEERS[name].make({}, 0))
                self._warm(peer)
                running[name] = peer
            except EXPECTED as problem:
                for cell in self._loads:
                    self.samples.add(
                        Sample(cell, name, number, failed=f"start and warm-up: {_words(problem)}")
                    )
            self.budget.learn(Step(START, name), time.monotonic() - begun, 0)
            self._progress.advance(self._task)
        return running

    def _pass(self, steps: Sequence[Step], running: dict[str, Peer], number: int) -> None:
        order = self._by_cell([step for step in steps if step.peer in running])
        for done, of_cell in enumerate(order):
            self._fit([step for left in order[done:] for step in left])
            for step in of_cell if self._has_time(of_cell, number) else ():
                self._step(f"round {number}, {step.peer}: {step.cell.name}")
                begun = time.monotonic()
                self._load(step.cell, step.peer, running[step.peer], number)
                self.budget.learn(step, time.monotonic() - begun, self._seconds)
                self._progress.advance(self._task)
            self._keep()

    def _keep(self) -> None:
        self.samples.write(self.options.out)

    # -- one broker under load

    def _warm(self, peer: Peer) -> None:
        """Some of everything, alike for all: a JVM compiles what it has seen often."""
        quarter = self.options.warm_seconds / 4
        fills = {cell.fill for cell in self._loads if cell.fill}
        for fill in sorted(fills):
            run_load("prepare", peer.bootstrap, topic=fill, **FILLS[fill])
        _warm_with(peer, "produce", "warm-one", connections=64, seconds=2 * quarter)
        _warm_with(peer, "produce", "warm-bulk", connections=2, seconds=quarter, batch_bytes=990_000)
        _warm_with(peer, "latency", "warm-latency", rate=2000, seconds=quarter)
        for fill in sorted(fills):
            run_load("fetch", peer.bootstrap, topic=fill, warmup=0, seconds=quarter / len(fills))

    def _load(self, cell: Cell, name: str, peer: Peer, number: int) -> None:
        run = self._run(number)
        machine.prepare(0 if self.options.untouched_memory else cell.filling_seconds(run.seconds + run.warmup))
        try:
            result = (
                SCENARIOS[cell.does](peer, cell, run)
                if cell.how == "scenario"
                else self._once(cell, peer, run)
            )
            if isinstance(peer, KprocPeer):
                by_pid = result.get("broker_cpu_by_pid", {})
                result["broker_cpu_by_role"] = {peer.role_of(int(pid)): used for pid, used in by_pid.items()}
            self.samples.add(Sample(cell, name, number, result))
        except EXPECTED as problem:
            words = f"{_words(problem)} {peer.output_tail()[-500:]}".strip()
            self.samples.add(Sample(cell, name, number, failed=words))

    def _once(self, cell: Cell, peer: Peer, run: Run) -> Result:
        """One run of the generator."""
        asked = cell.options
        codec = asked.get("codec")
        batch = self._batch(codec, asked["record_bytes"], asked["batch_bytes"]) if codec else None
        return generate(peer, cell, run, batch)

    def _batch(self, codec: str, record_bytes: int, batch_bytes: int) -> Path:
        """The compressed batch, made once and sent by every run of the cell."""
        name = f"{codec}-{record_bytes}"
        if name not in self._batches:
            path = self.options.scratch / name
            path.write_bytes(compressed_batch(codec, record_bytes, batch_bytes, int(time.time() * 1000)))
            self._batches[name] = path
        return self._batches[name]


def _warm_with(peer: Peer, mode: str, topic: str, **options: Any) -> None:
    run_load(mode, peer.bootstrap, topic=topic, topic_config=TOPIC_CONFIG, warmup=0, **options)
    run_load("delete", peer.bootstrap, topic=topic)


def _is_core(step: Step) -> bool:
    """A goal is judged in it."""
    return step.cell.is_core and step.peer in (YARDSTICK, JUDGED)


def _short_or_core(steps: Sequence[Step]) -> list[Step]:
    return [step for step in steps if step.cell.is_timed or _is_core(step)]


def _words(problem: BaseException) -> str:
    return f"{problem or type(problem).__name__}"


# -- the command line


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, names checked, in the order of the declarations."""
    about = "Compare the transports of kproc with each other and with Apache Kafka, in rounds in random order."
    parser = make_parser("compare", about)
    what = parser.add_argument_group("what to measure")
    what.add_argument("--quick", action="store_true", help="fewer cells and shorter runs, in ten minutes")
    what.add_argument("--list", action="store_true", help="show the cells and the peers, and run nothing")
    what.add_argument("--workloads", metavar="LIST", help=f"some of: {', '.join(WORKLOADS)}")
    what.add_argument("--cells", metavar="LIST", help="cells, separated by commas; --list shows them")
    what.add_argument("--peers", metavar="LIST", help=f"some of: {', '.join(PEERS)}")
    what.add_argument("--untouched-memory", action="store_true", help="do not touch memory before Produce")
    length = parser.add_argument_group("how long")
    length.add_argument(
        "--minutes", type=_positive, metavar="N",
        help=f"stop after this time (default: {FULL_MINUTES:g}; with --quick {QUICK_MINUTES:g})",
    )  # fmt: skip
    length.add_argument(
        "--rounds", type=int, default=ROUNDS_MAX, metavar="N", help=f"most rounds (default: {ROUNDS_MAX})"
    )
    length.add_argument(
        "--seconds", type=_positive, metavar="S",
        help=f"measured time of each run (default: {FULL_SECONDS}; with --quick {QUICK_SECONDS})",
    )  # fmt: skip
    length.add_argument(
        "--warmup", type=_positive, metavar="S", help="load before each run (default: a quarter of --seconds)"
    )
    length.add_argument(
        "--warm-seconds", type=_positive, metavar="S", help="load of each new broker (default: 8; with --quick 4)"
    )
    length.add_argument("--seed", type=int, default=1, metavar="N", help="of the random order (default: 1)")
    output = parser.add_argument_group("output")
    output.add_argument("--out", type=Path, metavar="DIR", help="directory (default: bench/results/TIME)")
    output.add_argument("--no-report", action="store_true", help="write the samples, and no report")
    output.add_argument("--note", default="", metavar="TEXT", help="text that is stored with the samples")
    options = parser.parse_args(arguments)
    cells = [cell.name for cell in CELLS if cell.is_quick or not options.quick]
    if options.workloads:
        chosen = _known(parser, "workload", options.workloads, WORKLOADS)
        cells = [name for name in cells if BY_NAME[name].workload in chosen]
    if options.cells:
        cells = _known(parser, "cell", options.cells, BY_NAME)
    options.cells = cells
    options.peers = _known(parser, "peer", options.peers, PEERS) if options.peers else list(PEERS)
    options.minutes = options.minutes or (QUICK_MINUTES if options.quick else FULL_MINUTES)
    options.seconds = options.seconds or (QUICK_SECONDS if options.quick else FULL_SECONDS)
    options.warmup = options.warmup or options.seconds / 4
    options.warm_seconds = options.warm_seconds or (4.0 if options.quick else 8.0)
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    return options


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise ValueError(text)
    return value


def _known(parser: argparse.ArgumentParser, what: str, text: str, known: Any) -> list[str]:
    """The names in the order of the declarations, whatever order was typed."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        parser.error(f"no such {what}: {', '.join(unknown) or text} (there are {', '.join(known)})")
    return [name for name in known if name in names]


def show_list(console: Console) -> None:
    """Cells and peers, one a line."""
    for cell in CELLS:
        goal = ", goal" if cell.is_core else ""
        console.print(
            f"{cell.workload:12}{cell.name:20}{cell.title}{' (quick' if cell.is_quick else ' (full'}{goal})"
        )
    for name, kind in PEERS.items():
        reason = kind.missing()
        console.print(f"peer        {name:20}{'not here: ' + reason if reason else ''}")


def _told(arguments: Sequence[str]) -> list[str]:
    """The arguments without the directory: a result can be given away, and where it lay is nobody's business."""
    told = [one for one in arguments if not one.startswith("--out=")]
    if "--out" in told:
        at = told.index("--out")
        del told[at : at + 2]
    return told


def _on_terminate(_number: int, _frame: object) -> None:
    """SIGTERM is as Ctrl-C: brokers are stopped and samples kept."""
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, _on_terminate)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if options.list:
        show_list(Console(highlight=False, soft_wrap=True))
        return 0
    about = machine.describe() | {"note": options.note, "arguments": _told(arguments or sys.argv[1:])}
    options.out = options.out or Path(__file__).parent / "results" / about["time"][:19].replace(":", "")
    samples = Samples(about, is_quick=options.quick)
    budget = Budget(60 * options.minutes, options.seconds, options.warmup, time.monotonic)
    about["is_memory_touched"] = not options.untouched_memory
    with tempfile.TemporaryDirectory(prefix="bench-batches-") as scratch:
        options.scratch = Path(scratch)
        is_whole = _measure(options, samples, budget, console)
    path = samples.write(options.out)
    console.print(f"samples: {path}")
    failed = [sample for sample in samples.kept if sample.failed]
    for sample in failed:
        console.print(f"failed: {sample.cell.name}, {sample.peer}, round {sample.round}: {sample.failed}")
    if not options.no_report:
        from bench import report

        report.main([str(options.out)])
    return 0 if is_whole and not failed else 1


def _measure(options: argparse.Namespace, samples: Samples, budget: Budget, console: Console) -> bool:
    """Runs the rounds; False when somebody interrupted them."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        comparison = Comparison(options, samples, budget, progress)
        for name, reason in comparison.choose_peers():
            console.print(f"not compared: {name}: {reason}")
        steps = comparison.steps()
        if not steps:
            raise SystemExit("kproc bench compare: none of the chosen peers can run the chosen cells")
        console.print(
            f"{len(options.cells)} cells, {len({step.peer for step in steps})} peers: {len(steps)} runs a round, "
            f"about {budget.cost(steps) / 60:.0f} min; {options.minutes:g} min in all, and as many rounds as fit"
        )
        try:
            comparison.run()
        except KeyboardInterrupt:
            console.print("interrupted: what there is follows")
            return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
