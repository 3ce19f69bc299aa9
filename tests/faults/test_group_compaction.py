"""The offsets topic is compacted under commits, and read back after deaths: newest commits, and no deleted group."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest

from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.groups import (
    Member,
    commit,
    delete_groups,
    describe,
    fetch_group,
    find_coordinator,
    offsets_of,
    settle,
)
from tests.support.proc import living
from tests.support.raw import RawClient
from tests.support.status import processes, wait_replaced
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

WIDTH = 100
GROUPS = [f"g{number}" for number in range(3)]
SEGMENT_BYTES = 1 << 20
METADATA = "x" * 100
SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "offsets.topic.segment.bytes": SEGMENT_BYTES,
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.segment.delete.delay.ms": 0,
    "num.io.threads": 2,
    "group.initial.rebalance.delay.ms": 0,
}


class Committers:
    """Each commits for a group of its own, all partitions at once, until it is told to stop."""

    def __init__(self, bootstrap: str) -> None:
        self.last: dict[str, int] = {}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(bootstrap, group)) for group in GROUPS]
        for thread in self._threads:
            thread.start()

    def _run(self, bootstrap: str, group: str) -> None:
        with RawClient(bootstrap) as client:
            number = 0
            while not self._stop.is_set():
                codes = commit(client, group, "t", dict.fromkeys(range(WIDTH), number), metadata=METADATA)
                assert set(codes.values()) == {0}
                self.last[group] = number
                number += 1

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)


def check(bootstrap: str, last: dict[str, int]) -> None:
    """Everything committed is there, with its text, and what was deleted is not."""
    with RawClient(bootstrap) as client:
        for group in GROUPS:
            row = wait_until(
                lambda name=group: (found := fetch_group(client, name, None))["error_code"] == 0 and found,  # type: ignore[misc]
                seconds=20,
                what="a loaded coordinator",
            )
            parts = row["topics"][0]["partitions"]
            found = {part["partition_index"]: part["committed_offset"] for part in parts}
            assert found == dict.fromkeys(range(WIDTH), last[group])
            assert {part["metadata"] for part in parts} == {METADATA}
        assert offsets_of(client, "deleted") == {}
        assert offsets_of(client, "thinned") == {("t", 1): 7}
        assert describe(client, "members")["group_state"] in ("Stable", "Empty")


def test_compaction_of_the_offsets_topic_loses_no_commit(tmp_path: Path, transport: str) -> None:
    data = tmp_path / "data"
    directory = data / "__consumer_offsets-0"
    with ServedBroker(data, transport=transport, settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client, Member(broker.bootstrap, "members") as member:
            client.create_topic("t", partitions=WIDTH)
            find_coordinator(client, "any")
            settle([member])
            commit(client, "deleted", "t", {0: 5, 1: 6})
            commit(client, "thinned", "t", {0: 6, 1: 7})
            assert delete_groups(client, "deleted") == {"deleted": 0}
            row = {"name": "t", "partitions": [{"partition_index": 0}]}
            gone = client.call(ApiKey.OFFSET_DELETE, 0, {"group_id": "thinned", "topics": [row]})
            assert gone["error_code"] == 0
        committers = Committers(broker.bootstrap)
        try:
            for goal in (3, 6):
                wait_until(
                    lambda least=goal: _bases(directory)[-1] > 0 and _compactions(broker, directory) >= least,  # type: ignore[misc]
                    seconds=60,
                    what="compacted several times",
                )
        finally:
            committers.stop()
        commits = sum(committers.last.values()) * WIDTH
        with RawClient(broker.bootstrap) as client:
            assert client.end_offset("__consumer_offsets") > commits
        wait_until(
            lambda: _size(directory) < commits * len(METADATA) / 2,
            seconds=60,
            what="most of it compacted away",  # Commits may be faster than the cleaner; it catches up.
        )
        for (role, index), pid in processes(broker.bootstrap).items():
            if role == "handler":
                os.kill(pid, signal.SIGKILL)
                wait_replaced(broker.bootstrap, (role, index), pid)
        check(broker.bootstrap, committers.last)
        kill_everything(broker)
        broker.start()
        check(broker.bootstrap, committers.last)
        assert broker.stop() == 0
        broker.start()
        check(broker.bootstrap, committers.last)


def kill_everything(broker: ServedBroker) -> None:
    """Those of now, which are not all those of the start."""
    alive = list(processes(broker.bootstrap).values())
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):  # The supervisor's end is theirs.
            os.kill(pid, signal.SIGKILL)
    broker.wait()
    wait_until(lambda: not living(alive), what="every process is gone")
    broker.stop()


def _size(directory: Path) -> int:
    """Of the log's segments; one that goes away meanwhile counts nothing."""
    size = 0
    for path in directory.glob("*.log"):
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def _bases(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("*.log"))


def _compactions(broker: ServedBroker, directory: Path) -> int:
    """How far the cleaner has come, in segments of the size that they are written in."""
    checkpoint = Path(broker.data) / "cleaner-offset-checkpoint"
    for line in checkpoint.read_text().splitlines() if checkpoint.exists() else ():
        if line.startswith("__consumer_offsets 0 "):
            records_per_segment = SEGMENT_BYTES // (len(METADATA) + 60)
            return int(line.split()[2]) // records_per_segment
    return 0
