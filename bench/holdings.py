"""Measure what a broker holds for each topic, partition, connection and group: memory, descriptors, disk and idle CPU.

    python -m bench.holdings [--count 2000] [--seconds 10]

Each step adds `count` things of one kind to the same broker. Memory is the growth of PSS of all processes, descriptors
are counted over all processes, disk is what `du` counts in the data directory, and CPU is that of the idle broker
afterwards. Prints a line for each step, per thing.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from kproc.broker.observe.status import cpu_seconds
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.groups import commit, find_coordinator
from tests.support.raw import RawClient, RawConnection, batch

SETTINGS = {"num.io.threads": 1, "num.network.threads": 1}


class Holdings(NamedTuple):
    """The memory, descriptors and disk space of all processes of a broker."""

    memory: int
    descriptors: int
    disk: int

    @classmethod
    def of(cls, broker: ServedBroker) -> Holdings:
        pids = broker.pids()
        files = [path.stat() for path in Path(broker.data).rglob("*")]
        return cls(
            sum(map(pss_bytes, pids)),
            sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
            sum(512 * each.st_blocks for each in files),
        )


def pss_bytes(pid: int) -> int:
    """Return a process's memory, shared pages divided among their users."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def idle_share(broker: ServedBroker, seconds: float) -> float:
    """Return the share of a core that the idle broker uses."""
    before = sum(map(cpu_seconds, broker.pids()))
    time.sleep(seconds)
    return (sum(map(cpu_seconds, broker.pids())) - before) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=10.0)
    chosen = parser.parse_args()
    count = chosen.count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, count + 1000)), hard))
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="kproc-bench-"))
        broker = stack.enter_context(ServedBroker(Path(scratch) / "data", settings=SETTINGS))
        client = stack.enter_context(RawClient(broker.bootstrap))

        def create_topics() -> None:
            for number in range(count):
                client.create_topic(f"topic-{number}")

        def create_partitions() -> None:
            client.create_topic("wide", partitions=count)

        def write() -> None:
            for partition in range(count):
                assert client.produce("wide", batch(b"x" * 100), partition=partition)["error_code"] == 0

        def connect() -> None:
            for _ in range(count):
                connection = stack.enter_context(RawConnection(broker.bootstrap))
                connection.call(ApiKey.API_VERSIONS, 0, {})

        def commit_groups() -> None:
            for number in range(count):
                find_coordinator(client, f"group-{number}")
                commit(client, f"group-{number}", "wide", {number: 0})

        first = Holdings.of(broker)
        print(f"{'start':32}{first.memory / 1e6:9.1f} MB{first.descriptors:6} descriptors", flush=True)
        steps: dict[str, Callable[[], None]] = {
            "topic of one partition": create_topics,
            "partition": create_partitions,
            "partition that is written": write,
            "connection": connect,
            "group with one offset": commit_groups,
        }
        for name, add in steps.items():
            before = Holdings.of(broker)
            add()
            time.sleep(chosen.seconds / 2)
            after = Holdings.of(broker)
            memory, descriptors, disk = ((b - a) / count for a, b in zip(before, after, strict=True))
            cpu = 100 * idle_share(broker, chosen.seconds)
            print(
                f"{name:32}{memory / 1e3:9.2f} kB{descriptors:6.2f} descriptors{disk / 1e3:9.2f} kB of disk; "
                f"the idle broker takes {cpu:.2f} % of a core",
                flush=True,
            )


if __name__ == "__main__":
    main()
