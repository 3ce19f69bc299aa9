"""kproc beside a real Apache Kafka, in interleaved rounds.

    python -m bench.compare                                       all default cells, 5 rounds
    python -m bench.compare --cells one-64,fetch-1m --rounds 3 --seconds 4 --peers kafka,process-group

    round 1   footprint: each broker alone: start, ready time, idle memory and CPU, stop     (order shuffled)
              load:      all brokers up and warmed; each cell in turn on each broker         (both shuffled)
    round 2   ...

The question: at equal work, what does each broker reach, and what does it cost? The footprint is taken
alone, because PSS would divide the interpreter's pages among several Python brokers. Under load all are up,
so that a cell's runs on two brokers lie seconds apart and the machine's moods hit both; what the waiting ones
cost is the idle CPU of the first part.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from bench import machine, proc, report
from bench.cells import BY_NAME, DEFAULT, FILLS, IDLE, READY, Cell
from bench.load.run import LoadFailed, run_load
from bench.peers.base import Peer, PeerFailed
from bench.peers.kafka import KafkaPeer
from bench.peers.kproc import KprocPeer
from bench.report import Sample

PEERS: Final[dict[str, Callable[[], Peer]]] = {
    "kafka": KafkaPeer,
    "process-group": lambda: KprocPeer(transport="process", flush="group"),
    "thread-group": lambda: KprocPeer(transport="thread", flush="group"),
    "inline-group": lambda: KprocPeer(transport="inline", flush="group"),
    "process-none": lambda: KprocPeer(transport="process", flush="none"),
    "thread-none": lambda: KprocPeer(transport="thread", flush="none"),
    "inline-none": lambda: KprocPeer(transport="inline", flush="none"),
}
DEFAULT_PEERS: Final = ("kafka", "process-group", "thread-group", "inline-group", "process-none")
# A JVM goes on for a moment after its first answer; a broker that still starts is not idle.
SETTLE_SECONDS: Final = 3.0
IDLE_SECONDS: Final = 5.0
# After a cell that wrote a gigabyte: its topic is deleted, and the broker gets the time to unlink the files.
AFTER_BULK_SECONDS: Final = 2.0
# Lets a deleted topic's pages go at once instead of being written back during somebody else's cell.
TOPIC_CONFIG: Final = "file.delete.delay.ms=500"


class Comparison:
    """One comparison: its brokers, its samples, its progress bar."""

    def __init__(self, options: argparse.Namespace, progress: Progress) -> None:
        self.options = options
        self.samples: list[Sample] = []
        self._random = random.Random(options.seed)
        self._progress = progress
        self._footprints = [BY_NAME[name] for name in options.cells if BY_NAME[name].mode is None]
        self._loads = [BY_NAME[name] for name in options.cells if BY_NAME[name].mode is not None]
        per_round = len(options.peers) * (bool(self._footprints) + bool(self._loads) + len(self._loads))
        self._task = progress.add_task("", total=per_round * options.rounds)

    def run(self) -> None:
        for number in range(1, self.options.rounds + 1):
            if self._footprints:
                for name in self._shuffled(self.options.peers):
                    self._footprint(name, number)
            if self._loads:
                self._load_round(number)

    def _shuffled(self, names: Sequence[Any]) -> list[Any]:
        return self._random.sample(names, len(names))

    def _step(self, words: str) -> None:
        self._progress.update(self._task, description=words)

    def _done(self) -> None:
        self._progress.advance(self._task)

    def _keep(
        self, cell: Cell, peer: str, number: int, result: dict[str, Any] | None, failed: str | None = None
    ) -> None:
        self.samples.append(Sample(cell.name, peer, number, result, failed))

    # -- footprint

    def _footprint(self, name: str, number: int) -> None:
        self._step(f"round {number} {name}: start and idle")
        try:
            with PEERS[name]() as peer:
                self._keep(READY, name, number, {"ready_seconds": peer.start_seconds})
                if IDLE in self._footprints:
                    time.sleep(SETTLE_SECONDS)
                    cpu = proc.idle_cpu_percent(peer.pid, IDLE_SECONDS)
                    pss, unmapped = proc.pss_bytes(peer.pids), proc.unmapped_shared_bytes(peer.pids)
                    result = {"pss_mb": pss / 1e6, "unmapped_mb": unmapped / 1e6, "cpu_percent": cpu}
                    result |= {"memory_mb": (pss + unmapped) / 1e6, "processes": len(peer.pids)}
                    self._keep(IDLE, name, number, result)
        except PeerFailed as problem:
            for cell in self._footprints:
                self._keep(cell, name, number, None, str(problem))
        self._done()

    # -- load

    def _load_round(self, number: int) -> None:
        with ExitStack() as stack:
            running: dict[str, Peer] = {}
            for name in self._shuffled(self.options.peers):
                self._step(f"round {number} {name}: start and warm-up")
                try:
                    peer = stack.enter_context(PEERS[name]())
                    self._warm(peer)
                    running[name] = peer
                except (PeerFailed, LoadFailed) as problem:
                    for cell in self._loads:
                        self._keep(cell, name, number, None, f"warm-up: {problem}")
                self._done()
            for cell in self._shuffled(self._loads):
                for name in self._shuffled(list(running)):
                    self._step(f"round {number} {name}: {cell.name}")
                    self._load(cell, name, running[name], number)
                    self._done()

    def _warm(self, peer: Peer) -> None:
        """Some of everything, alike for all: a JVM compiles what it has seen often."""
        quarter = self.options.warm_seconds / 4
        fills = {cell.fill for cell in self._loads if cell.fill}
        for fill in fills:
            run_load("prepare", peer.bootstrap, topic=fill, **FILLS[fill])
        self._warm_with(peer, "produce", "warm-one", connections=64, seconds=2 * quarter)
        self._warm_with(peer, "produce", "warm-bulk", connections=2, seconds=quarter, batch_bytes=990_000)
        self._warm_with(peer, "latency", "warm-latency", rate=2000, seconds=quarter)
        for fill in fills:
            run_load("fetch", peer.bootstrap, topic=fill, warmup=0, seconds=quarter)

    @staticmethod
    def _warm_with(peer: Peer, mode: str, topic: str, **options: Any) -> None:
        run_load(mode, peer.bootstrap, topic=topic, topic_config=TOPIC_CONFIG, warmup=0, **options)
        run_load("delete", peer.bootstrap, topic=topic)

    def _load(self, cell: Cell, name: str, peer: Peer, number: int) -> None:
        assert cell.mode is not None
        options = {"seconds": self.options.seconds, "warmup": self.options.warmup, **cell.options}
        options["topic"] = topic = cell.fill or f"{cell.name}-r{number}"
        writes = cell.mode in ("produce", "latency")
        if writes:
            options["topic_config"] = TOPIC_CONFIG
        os.sync()  # nobody pays for what another wrote before
        try:
            result = run_load(cell.mode, peer.bootstrap, pids=peer.pids, **options)
            if isinstance(peer, KprocPeer):
                by_pid = result.get("broker_cpu_by_pid", {})
                result["broker_cpu_by_role"] = {peer.role_of(int(pid)): used for pid, used in by_pid.items()}
            self._keep(cell, name, number, result)
            if writes:
                run_load("delete", peer.bootstrap, topic=topic)
            if "batch_bytes" in cell.options:
                time.sleep(AFTER_BULK_SECONDS)
        except LoadFailed as problem:
            self._keep(cell, name, number, None, f"{problem} {peer.output_tail()[-500:]}".strip())


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description=(__doc__ or "").partition("\n")[0]
    )
    listed = ", ".join(cell + ("" if cell in DEFAULT else "*") for cell in BY_NAME)
    parser.add_argument(
        "--cells", default=",".join(DEFAULT), help=f"comma separated: {listed} (* not by default)"
    )
    parser.add_argument("--peers", default=",".join(DEFAULT_PEERS), help=f"of: {', '.join(PEERS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="measured, of each run")
    parser.add_argument("--warmup", type=float, default=1.0, help="in front of it, of each run")
    parser.add_argument("--warm-seconds", type=float, default=10.0, help="once per broker and round")
    parser.add_argument("--seed", type=int, default=1, help="of the order")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="directory")
    parser.add_argument(
        "--untouched-memory", action="store_true", help="do not touch the machine's free memory first"
    )
    parser.add_argument("--note", default="", help="kept in the result")
    options = parser.parse_args(arguments)
    options.cells, options.peers = options.cells.split(","), options.peers.split(",")
    for known, chosen, what in ((BY_NAME, options.cells, "cell"), (PEERS, options.peers, "peer")):
        unknown = [name for name in chosen if name not in known]
        if unknown:
            parser.error(f"no such {what}: {', '.join(unknown)} (there are {', '.join(known)})")
    # The table reads in the order of the declarations, whatever order was typed.
    options.cells = [name for name in BY_NAME if name in options.cells]
    options.peers = [name for name in PEERS if name in options.peers]
    return options


def write(options: argparse.Namespace, about: dict[str, Any], samples: list[Sample]) -> tuple[Path, str]:
    """The raw JSON and the table beside it; the table is returned."""
    table = report.markdown(report.Results(samples), options.cells, options.peers, about)
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / f"{about['time'][:19].replace(':', '')}-compare"
    document = {"about": about, "samples": [asdict(one) for one in samples]}
    stem.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    stem.with_suffix(".md").write_text(table)
    return stem.with_suffix(".md"), table


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    console = Console(stderr=True)
    about = machine.describe()
    if not options.untouched_memory:
        console.print("touching the free memory, so that no broker pays the host for new pages ...")
        about["memory_touched_seconds"] = round(machine.touch_memory(), 1)
    about |= {name: getattr(options, name) for name in ("rounds", "seconds", "warmup", "seed", "note")}
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console) as progress:
        comparison = Comparison(options, progress)
        try:
            comparison.run()
        except KeyboardInterrupt:
            console.print("interrupted: what there is follows")
    path, table = write(options, about, comparison.samples)
    Console().print(Markdown(table)) if sys.stdout.isatty() else sys.stdout.write(table)
    console.print(f"written to {path} and .json")
    return int(any(sample.failed for sample in comparison.samples))


if __name__ == "__main__":
    raise SystemExit(main())
