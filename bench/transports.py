"""The process design beside what it is compared with, over the same code, in interleaved rounds.

    generator --N connections--> socket Processes ==ring==> Handler processes        process
                                 threads --deque--> threads, one interpreter         thread
                                 one thread for all                                  inline
                                 a thread for each connection, one lock              connection-threads
                                 callbacks of one asyncio loop                       asyncio
                                 as `thread`, without the interpreter's lock         free-threaded, where there is one

    python -m bench.transports                          1, 16 and 64 connections; no more work, and 200 us a request
    python -m bench.transports --quick --transports process,asyncio

The question: what do processes give and cost, beside each way to do it in one process? All brokers are up at once and
take turns at each cell, so that the machine's moods hit all of them; ratios are paired within a round. One record of
100 B a request, one partition, acks=1, nothing flushed: the work of the roles and not of the disk. Where requests burn
CPU there are four partitions and a Handler for each core: which transports use the cores is what is asked. That is of
no use to inline, connection-threads and asyncio, which run one Handler at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.progress import Progress

from bench import machine
from bench.peers.base import PeerFailed
from bench.peers.kproc import TRANSPORTS, FreeThreadedPeer, KprocPeer
from kproc.tools.load.run import LoadFailed, run_load

FREE_THREADED: Final = "free-threaded"
ALL: Final = (*TRANSPORTS, FREE_THREADED)
NOTHING: Final = "-"
WORK_PARTITIONS: Final = 4  # So that every Handler owns some.


class Run(NamedTuple):
    """One measured run."""

    transport: str
    work_us: int
    connections: int
    round: int
    rate: float
    p50_us: float
    p99_us: float
    cpu_us: float


def peer_of(transport: str, work_us: int) -> KprocPeer:
    """A broker that is yet to be started."""
    # One Handler burns one core at most.
    settings = {"num.io.threads": str(len(os.sched_getaffinity(0)))} if work_us else {}
    if transport == FREE_THREADED:
        return FreeThreadedPeer(flush="none", settings=settings, work_us=work_us)
    return KprocPeer(transport=transport, flush="none", settings=settings, work_us=work_us)


class Comparison:
    """All rounds; `empty` holds the reason for each transport that could not be run."""

    def __init__(self, options: argparse.Namespace, progress: Progress) -> None:
        self.options = options
        self.runs: list[Run] = []
        self.empty: dict[str, str] = {}
        self._random = random.Random(options.seed)
        self._progress = progress
        cells = len(options.work_us) * options.rounds * len(options.connections)
        self._task = progress.add_task("", total=cells * len(options.transports))

    def run(self) -> None:
        for work_us in self.options.work_us:
            with ExitStack() as stack:
                peers = self._start(stack, work_us)
                for number in range(1, self.options.rounds + 1):
                    for connections in self.options.connections:
                        for transport in self._random.sample(list(peers), len(peers)):
                            words = f"{work_us} us of work, {connections} connections: {transport}"
                            self._progress.update(self._task, description=words)
                            self._measure(peers[transport], transport, work_us, connections, number)
                            self._progress.advance(self._task)

    def _start(self, stack: ExitStack, work_us: int) -> dict[str, KprocPeer]:
        peers = {}
        for transport in self.options.transports:
            self._progress.update(self._task, description=f"starting {transport}")
            try:
                peers[transport] = stack.enter_context(peer_of(transport, work_us))
                run_load(
                    "produce", peers[transport].bootstrap, topic="warm", connections=8, seconds=0.5, warmup=0
                )
            except (PeerFailed, LoadFailed) as problem:
                peers.pop(transport, None)
                self.empty[transport] = str(problem)
                self._progress.advance(self._task, self.options.rounds * len(self.options.connections))
        return peers

    def _measure(self, peer: KprocPeer, transport: str, work_us: int, connections: int, number: int) -> None:
        topic = f"w{work_us}-c{connections}-r{number}"
        try:
            result = run_load(
                "produce",
                peer.bootstrap,
                pids=peer.pids,
                topic=topic,
                connections=connections,
                partitions=WORK_PARTITIONS if work_us else 1,
                seconds=self.options.seconds,
                warmup=min(0.5, self.options.seconds),
            )
        except LoadFailed as problem:
            self.empty[transport] = f"{topic}: {problem}"
            return
        latency = result["latency_us"]
        cpu_us = result["broker_cpu_seconds"] / max(1, result["requests"]) * 1e6
        self.runs.append(
            Run(
                transport,
                work_us,
                connections,
                number,
                result["requests_per_second"],
                latency["p50"],
                latency["p99"],
                cpu_us,
            )
        )


def table(runs: Sequence[Run], empty: dict[str, str], options: argparse.Namespace) -> str:
    """Markdown: medians, the spread of the rounds, and the ratio to processes within each round."""
    lines = []
    for work_us in options.work_us:
        lines += ["", f"Requests/s with {work_us} us of CPU burnt at each:" if work_us else "Requests/s:", ""]
        heads = [f"{count} connections" for count in options.connections]
        lines.append(f"| | {' | '.join(heads)} |")
        lines.append(f"|---|{'---|' * len(heads)}")
        for transport in options.transports:
            cells = [_cell(runs, transport, work_us, count) for count in options.connections]
            lines.append(f"| {transport} | {' | '.join(cells)} |")
    lines += [
        "",
        "Median of the rounds (lowest to highest; ratio to processes in the same round); p50 and p99; CPU a request.",
    ]
    lines += [f"{transport} is empty: {reason}" for transport, reason in empty.items()]
    return "\n".join(lines) + "\n"


def _cell(runs: Sequence[Run], transport: str, work_us: int, connections: int) -> str:
    def those(name: str) -> Iterator[Run]:
        return (each for each in runs if each[:3] == (name, work_us, connections))

    mine = list(those(transport))
    if not mine:
        return NOTHING
    beside = {each.round: each.rate for each in those("process")}
    ratios = [each.rate / beside[each.round] for each in mine if each.round in beside]
    rates = [each.rate for each in mine]
    ratio = f"; {statistics.median(ratios):.2f}" if ratios and transport != "process" else ""
    p50 = statistics.median(each.p50_us for each in mine)
    p99 = statistics.median(each.p99_us for each in mine)
    cpu = statistics.median(each.cpu_us for each in mine)
    spread = f"{min(rates):,.0f}-{max(rates):,.0f}"
    return f"**{statistics.median(rates):,.0f}** ({spread}{ratio}); {p50:,.0f}, {p99:,.0f} us; {cpu:.0f} us"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.transports", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--transports", default=",".join(ALL), help=f"of: {', '.join(ALL)}")
    parser.add_argument("--connections", default="1,16,64")
    parser.add_argument("--work-us", default="0,200", help="CPU that each request burns, one table for each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured, of each run")
    parser.add_argument("--seed", type=int, default=1, help="of the order")
    parser.add_argument("--out", type=Path, help="a JSON file for every run")
    parser.add_argument(
        "--quick", action="store_true", help="one short round with 4 connections: does it work?"
    )
    options = parser.parse_args(arguments)
    options.transports = options.transports.split(",")
    unknown = [name for name in options.transports if name not in ALL]
    if unknown:
        parser.error(f"no such transport: {', '.join(unknown)} (there are {', '.join(ALL)})")
    for name in ("connections", "work_us"):
        text = getattr(options, name)
        try:
            setattr(options, name, [int(each) for each in text.split(",")])
        except ValueError:
            parser.error(f"--{name.replace('_', '-')} {text}: must be whole numbers, comma separated")
    if options.quick:
        options.connections, options.work_us, options.rounds, options.seconds = [4], [0], 1, 0.2
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    about: dict[str, Any] = machine.describe()
    with Progress(console=Console(stderr=True)) as progress:
        comparison = Comparison(options, progress)
        try:
            comparison.run()
        except KeyboardInterrupt:
            progress.console.print("interrupted: what there is follows")
    sys.stdout.write(
        f"{about['cpu']}, {about['cores']} cores, {about['commit']}, load before {about['load_before']}\n"
    )
    sys.stdout.write(table(comparison.runs, comparison.empty, options))
    if options.out is not None:
        document = {
            "about": about,
            "runs": [each._asdict() for each in comparison.runs],
            "empty": comparison.empty,
        }
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    failed = [name for name in comparison.empty if name != FREE_THREADED]
    return int(bool(failed) or not comparison.runs)


if __name__ == "__main__":
    raise SystemExit(main())
