"""Measure consumer groups (KIP-848) and share groups (KIP-932) of kproc beside Apache Kafka.

    python -m bench.group_protocols            # three rounds: about ten minutes
    python -m bench.group_protocols --peers kproc --cells join --rounds 1

heartbeats: 1,000 groups of 3 members that have joined heartbeat as the broker tells them. CPU of the broker.
join: 100 members join a group at once and divide 100 partitions. Seconds from the first request until each member owns
its partition and all are in one epoch. `consumer.assignment.interval.ms` and the interval of heartbeats, which both
brokers get alike, are part of it. The first of the joins warms the broker up and does not count.
share: members of a share group acquire and accept 300,000 records of 100 B. A tenth of the records warms the broker up.

The brokers take turns in each round, and only one runs at a time. The generator is the same for both, and checks what
it is answered. It shares the machine, so rates are lower bounds. Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.consumer_members import ConsumerMember, ConsumerMembers
from bench.groups import allow_descriptors
from bench.peers.base import Peer, PeerFailed
from bench.peers.kafka import KafkaPeer
from bench.peers.kproc import KprocPeer
from bench.proc import cpu_seconds
from bench.share_members import accept_all, open_members
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.groups import find_coordinator
from tests.support.kafka_jars import missing_reason
from tests.support.raw import RawClient, address_of
from tests.support.wait import wait_until

Figures = dict[str, float]
_VALUE = bytes(100)
_BATCH_RECORDS = 500
_WARM_SHARE = 0.1
_NOT_FOUND = 69


class Goal(NamedTuple):
    """A limit of a figure of kproc, or of its ratio to Kafka's."""

    is_ratio: bool
    is_upper: bool
    limit: float

    def judge(self, value: float) -> str:
        """Return the goal in words, and whether the value keeps it."""
        is_met = value <= self.limit if self.is_upper else value >= self.limit
        words = f"{'at most' if self.is_upper else 'at least'} {self.limit:g}{'x' if self.is_ratio else ''}"
        return f"{words}: {'met' if is_met else 'MISSED'}"


GOALS = {
    ("heartbeats", "CPU %"): Goal(is_ratio=False, is_upper=True, limit=30),
    ("join", "seconds"): Goal(is_ratio=True, is_upper=True, limit=0.5),
    ("share", "records/s"): Goal(is_ratio=True, is_upper=False, limit=1),
}


def _members(peer: Peer, group_ids: list[str], topic: str, count: int, partitions: int) -> ConsumerMembers:
    with RawClient(peer.bootstrap, timeout=60.0) as client:
        client.create_topic(topic, partitions=partitions)
        find_coordinator(client, group_ids[0])
        # Kafka names a coordinator before it has loaded the groups.
        wait_until(lambda: _describe(client, group_ids) == {(_NOT_FOUND, 0)}, seconds=60, what="coordinators")
    address = address_of(peer.bootstrap)
    return ConsumerMembers(
        [ConsumerMember(address, each, topic) for each in group_ids for _ in range(count)],
        partitions // count,
    )


def heartbeats(peer: Peer, options: argparse.Namespace) -> Figures:
    """Return the broker's CPU while members that have joined heartbeat."""
    groups = [f"beat-{number}" for number in range(options.groups)]
    members = _members(peer, groups, "beats", options.members, options.members)
    try:
        members.settle()
        members.drain()
        members.run(options.warm_seconds)
        pids = peer.pids
        before, begun = cpu_seconds(pids), time.monotonic()
        sent, answered = members.run(options.seconds)
        took = time.monotonic() - begun
        used = cpu_seconds(pids) - before
    finally:
        members.close()
    assert sent == answered, f"{sent} heartbeats, {answered} answers"
    return {"CPU %": 100 * used / took, "heartbeats/s": sent / took, "CPU us each": 1e6 * used / max(1, sent)}


def join(peer: Peer, options: argparse.Namespace) -> Figures:
    """Return the median time and CPU of joins, each of a new group and topic."""
    found: list[Figures] = []
    for number in range(options.joins + 1):
        group = f"join-{number}"
        members = _members(peer, [group], group, options.join_members, options.join_members)
        pids = peer.pids
        before, begun = cpu_seconds(pids), time.monotonic()
        try:
            members.settle()
            found.append({"seconds": time.monotonic() - begun, "CPU s": cpu_seconds(pids) - before})
            _check_stable(peer, group, options.join_members)
            members.leave()
        finally:
            members.close()
    return {name: statistics.median(each[name] for each in found[1:]) for name in found[0]}


def _check_stable(peer: Peer, group_id: str, count: int) -> None:
    with RawClient(peer.bootstrap, timeout=60.0) as client:
        found = _describe(client, [group_id])
    assert found == {("Stable", count)}, f"{group_id}: {found}"


def _describe(client: RawClient, group_ids: list[str]) -> set[tuple[str | int, int]]:
    """Return (state or error code, number of members) of groups."""
    rows = client.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, {"group_ids": group_ids})["groups"]
    return {(row["error_code"] or row["group_state"], len(row["members"])) for row in rows}


def share(peer: Peer, options: argparse.Namespace) -> Figures:
    """Return the rate at which records are acquired and accepted, and the CPU for a million of them."""
    _accept(peer, "warm", max(1, int(options.records * _WARM_SHARE)), options)
    took, used = _accept(peer, "share", options.records, options)
    return {"records/s": options.records / took, "CPU s/million": 1e6 * used / options.records}


def _accept(peer: Peer, name: str, records: int, options: argparse.Namespace) -> tuple[float, float]:
    with RawClient(peer.bootstrap, timeout=60.0) as client:
        client.create_topic(name, partitions=options.share_partitions)
        for number, first in enumerate(range(0, records, _BATCH_RECORDS)):
            count = min(_BATCH_RECORDS, records - first)
            batch = bytes(encode_batch([Record(None, _VALUE, 1_700_000_000_000)] * count))
            row = client.produce(name, batch, partition=number % options.share_partitions)
            assert row["error_code"] == 0, row
    members = open_members(
        peer.bootstrap, name, name, count=options.share_members, batch_records=options.share_batch
    )
    pids = peer.pids
    before = cpu_seconds(pids)
    took = accept_all(members, records)
    used = cpu_seconds(pids) - before
    for member in members:
        member.client.close()
    return took, used


CELLS: dict[str, Callable[[Peer, argparse.Namespace], Figures]] = {
    "heartbeats": heartbeats,
    "join": join,
    "share": share,
}
PEERS: dict[str, Callable[[dict[str, str]], Peer]] = {
    "kproc": lambda settings: KprocPeer(settings=settings),
    "kafka": lambda settings: KafkaPeer(settings=settings),
}


def _settings(cell: str, options: argparse.Namespace) -> dict[str, str]:
    if cell != "join":
        return {}
    interval = str(options.heartbeat_ms)
    return {
        "group.consumer.assignment.interval.ms": str(options.assignment_ms),
        "group.consumer.heartbeat.interval.ms": interval,
        "group.consumer.min.heartbeat.interval.ms": interval,
    }


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each figure of each run."""
    for number in range(options.rounds):
        for cell in options.cells:
            for name in options.peers if number % 2 == 0 else options.peers[::-1]:
                with PEERS[name](_settings(cell, options)) as peer:
                    figures = CELLS[cell](peer, options)
                    version = peer.name
                shown = ", ".join(f"{value:,.2f} {figure}" for figure, value in figures.items())
                print(f"round {number} {version:22} {cell:10} {shown}", flush=True)
                for figure, value in figures.items():
                    yield {
                        "round": number,
                        "peer": name,
                        "version": version,
                        "cell": cell,
                        "figure": figure,
                        "value": value,
                    }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table: medians of the rounds, the median of the ratios within them, and goals."""
    yield "| cell | figure | kproc | Kafka | kproc to Kafka | goal |"
    yield "|---|---|---|---|---|---|"
    for cell, figure in dict.fromkeys((row["cell"], row["figure"]) for row in rows):
        found: dict[str, dict[int, float]] = {"kproc": {}, "kafka": {}}
        for row in rows:
            if (row["cell"], row["figure"]) == (cell, figure):
                found[row["peer"]][row["round"]] = row["value"]
        medians = {name: statistics.median(values.values()) for name, values in found.items() if values}
        ratios = [
            value / found["kafka"][at] for at, value in found["kproc"].items() if found["kafka"].get(at)
        ]
        shown = [f"{medians[name]:,.2f}" if name in medians else "-" for name in found]
        if ratios:
            shown.append(f"{statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]")
        else:
            shown.append("-")
        goal = GOALS.get((cell, figure))
        values = [] if goal is None else ratios if goal.is_ratio else list(found["kproc"].values())
        judged = goal.judge(statistics.median(values)) if goal is not None and values else ""
        yield f"| {cell} | {figure} | {' | '.join(shown)} | {judged} |"


def _bounded(least: int, most: int) -> Callable[[str], int]:
    def integer(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value}: must be from {least} to {most}")
        return value

    return integer


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    for name, most, default, text in (
        ("rounds", 20, 3, "runs of each cell on each broker"),
        ("seconds", 600, 20, "length of a run of heartbeats"),
        ("warm-seconds", 600, 10, "heartbeats before it, which do not count"),
        ("groups", 5_000, 1_000, "groups that heartbeat"),
        ("members", 20, 3, "members of each of them"),
        ("joins", 20, 3, "joins of a run that count"),
        ("join-members", 1_000, 100, "members that join, and partitions"),
        ("heartbeat-ms", 15_000, 5_000, "interval of heartbeats while members join"),
        ("records", 10_000_000, 300_000, "records that are shared"),
        ("share-members", 100, 4, "members of the share group"),
        ("share-partitions", 100, 4, "partitions of its topic"),
        ("share-batch", 10_000, 500, "most records in a ShareFetch"),
    ):
        parser.add_argument(
            f"--{name}", type=_bounded(1, most), default=default, metavar="N", help=f"{text}: {default}"
        )
    parser.add_argument(
        "--assignment-ms",
        type=_bounded(0, 15_000),
        default=1_000,
        metavar="N",
        help="consumer.assignment.interval.ms of both brokers: 1000",
    )
    parser.add_argument("--json", type=Path, help="where the rows go")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    if "kafka" in options.peers and (reason := missing_reason()):
        sys.exit(f"bench.group_protocols: {reason}")
    allow_descriptors()
    try:
        rows = list(measure(options))
    except (AssertionError, PeerFailed, OSError) as problem:
        sys.exit(f"bench.group_protocols: {problem}")
    print("\n".join(table(rows)))
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
