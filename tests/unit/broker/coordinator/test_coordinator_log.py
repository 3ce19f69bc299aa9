"""A coordinator's log: what is appended together, how transactions end in it, and what a successor reads."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.config import Config
from kproc.broker.coordinator.coordinator_log import CoordinatorKind, CoordinatorLog
from kproc.broker.coordinator.rules import DueOf, KnownTopics, Marker, Producer, Write
from kproc.broker.coordinator.steps import Steps
from kproc.broker.storage.log import LogConfig
from kproc.common.clock import ManualClock
from kproc.common.deadlines import Deadlines
from kproc.common.errors import ErrorCode
from kproc.wire.batch_header import HEADER_BYTES
from kproc.wire.record_batch import BatchHeader, decode_records, parse_header
from tests.support.coordinators import ALL_TOPICS, UNGUARDED
from tests.support.failing_fs import FailingFs
from tests.support.logs import LogRig
from tests.support.owned_log import OwnedLog

A, B = Producer(7, 0), Producer(8, 3)


class Notes:
    """Rules that note what they are told, in that order."""

    def __init__(self, log: CoordinatorLog, _deadlines: Deadlines[DueOf], _epoch: int) -> None:
        self.log = log
        self.told: list[tuple[Any, ...]] = []
        self.steps = Steps()

    def replay(self, key: bytes | None, value: bytes | None, offset: int, producer: Producer | None) -> None:
        self.told.append((offset, (key or b"").decode(), producer))

    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        self.told.append((producer_id, is_commit))

    def finish_loading(self, topics: KnownTopics) -> None:
        """Nothing is left to do."""

    def tick(self, name: str) -> None:
        raise NotImplementedError

    def topics_deleted(self, topics: KnownTopics) -> None:
        raise NotImplementedError

    def start_sweep(self) -> None:
        raise NotImplementedError

    def resign(self) -> None:
        raise NotImplementedError

    def abandon(self) -> None:
        raise NotImplementedError


class Rig:
    """A shard on a log in a directory."""

    def __init__(self, directory: Path, *, max_message_bytes: int = 1_000_000) -> None:
        config = LogConfig(max_message_bytes=max_message_bytes)
        self.fs = FailingFs()
        self.owned = OwnedLog(LogRig(directory, config=config, fs=self.fs).open())
        self.codes: list[tuple[str, int]] = []

    def shard(self, *, with_transactions: bool = True) -> CoordinatorLog[Notes]:
        """A coordinator that has loaded what the log holds."""
        kind = CoordinatorKind(
            topic="notes",
            make=Notes,
            codec=0,
            sweep_interval_ms=1,
            end_transaction=Notes.end_transaction if with_transactions else None,
        )
        shard = CoordinatorLog(kind, self.owned, Config(), ManualClock(), Deadlines(), {}, 0, UNGUARDED)
        shard.load_some(ALL_TOPICS)
        assert shard.is_loaded
        return shard

    def write(self, shard: CoordinatorLog[Notes], *keys: str, producer: Producer | None = None, size: int = 1) -> None:
        notes, name = shard.coordinator, keys[0]

        def apply(number: int, offset: int) -> None:
            notes.told.append((offset, keys[number], producer))

        records: list[tuple[bytes, bytes | None]] = [(key.encode(), bytes(size)) for key in keys]
        shard.write(Write(records, lambda code: self.codes.append((name, code)), apply, producer))

    def batches(self) -> list[tuple[BatchHeader, list[str]]]:
        data = memoryview(self.owned.log.reader.read_bytes(0, 1 << 20))
        found, position = [], 0
        while position + HEADER_BYTES <= len(data):
            header = parse_header(data, position)
            batch = data[position : position + header.total_bytes]
            found.append((header, [(record.key or b"").decode() for record in decode_records(batch)]))
            position += header.total_bytes
        return found


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "notes-0")
    yield made
    made.owned.log.close(clean=True)


def marker(producer: Producer, *, is_commit: bool = True, coordinator_epoch: int = 1) -> Marker:
    return Marker(producer.producer_id, producer.epoch, coordinator_epoch, is_commit, 0)


def test_batch_has_one_transaction_or_none_and_keeps_order(rig: Rig) -> None:
    shard = rig.shard()
    for number, producer in enumerate([None, None, A, A, B, A, None]):
        rig.write(shard, f"{number}a", f"{number}b", producer=producer)
    shard.flush()
    found = [
        (header.producer_id, header.producer_epoch, header.is_transactional, keys)
        for header, keys in rig.batches()
    ]
    assert found == [
        (-1, -1, False, ["0a", "0b", "1a", "1b"]),
        (7, 0, True, ["2a", "2b", "3a", "3b"]),
        (8, 3, True, ["4a", "4b"]),
        (7, 0, True, ["5a", "5b"]),
        (-1, -1, False, ["6a", "6b"]),
    ]
    assert [each[0] for each in shard.coordinator.told] == list(range(14))
    assert sorted(rig.shard().coordinator.told, key=itemgetter(0)) == shard.coordinator.told


def test_a_write_is_in_one_batch_if_it_fits_into_one(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "notes-0", max_message_bytes=1_000)
    shard = rig.shard()
    rig.write(shard, "a", "b", size=200)
    rig.write(shard, "c", "d", size=200)
    rig.write(shard, *"efgh", size=300)
    shard.flush()
    assert [keys for _, keys in rig.batches()] == [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]]
    assert [each[:2] for each in shard.coordinator.told] == list(enumerate("abcdefgh"))
    rig.owned.log.close(clean=True)


def test_write_with_a_record_above_the_limit_leaves_nothing(tmp_path: Path) -> None:
    """A group whose member is too large for a record must not get the other records of the member's heartbeat."""
    rig = Rig(tmp_path / "notes-0", max_message_bytes=1_000)
    shard = rig.shard()
    rig.write(shard, "a")
    told = shard.coordinator.told
    records: list[tuple[bytes, bytes | None]] = [(b"b", bytes(300)), (b"c", bytes(3_000)), (b"d", None)]
    shard.write(Write(records, lambda code: rig.codes.append(("b", code)), lambda number, _: told.append((number,))))
    rig.write(shard, "e")
    shard.flush()
    rig.owned.sync()
    assert [keys for _, keys in rig.batches()] == [["a", "e"]]
    assert rig.codes == [("b", ErrorCode.MESSAGE_TOO_LARGE), ("a", 0), ("e", 0)]
    assert told == [(0, "a", None), (1, "e", None)]
    rig.owned.log.close(clean=True)


def test_marker_follows_earlier_writes_and_applies_at_once(rig: Rig) -> None:
    shard = rig.shard()
    rig.write(shard, "a", producer=A)
    rig.write(shard, "b")
    assert shard.append_marker(marker(A)) == 0
    rig.write(shard, "c")
    shard.flush()
    assert [header.is_control for header, _ in rig.batches()] == [False, False, True, False]
    assert shard.coordinator.told == [(0, "a", A), (1, "b", None), (7, True), (3, "c", None)]
    assert (rig.owned.published_offset, rig.owned.log.state.last_stable_offset) == (4, 0)
    rig.owned.sync()
    assert rig.owned.log.state.last_stable_offset == 4
    assert set(rig.shard().coordinator.told) == {(0, "a", None), (1, "b", None), (3, "c", None)}


def test_a_marker_is_answered_when_it_is_durable(rig: Rig) -> None:
    shard = rig.shard()
    codes: list[int] = []
    rig.write(shard, "a", producer=A)
    shard.append_marker(marker(A, is_commit=False))
    shard.when_durable(codes.append)
    assert ([offset for offset, _ in rig.owned.waiting], codes) == ([1, 2], [])
    rig.owned.sync()
    assert (rig.codes, codes) == ([("a", 0)], [0])


def test_a_marker_that_is_refused_ends_nothing(rig: Rig) -> None:
    shard = rig.shard()
    rig.write(shard, "a", producer=B)
    assert shard.append_marker(marker(B, coordinator_epoch=5)) == 0
    rig.write(shard, "b", producer=B)
    stale = marker(B, coordinator_epoch=4)
    assert shard.append_marker(stale) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert shard.append_marker(marker(Producer(8, 2))) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert shard.coordinator.told == [(0, "a", B), (8, True), (2, "b", B)]


def test_marker_without_space_ends_nothing_until_resent(rig: Rig) -> None:
    shard = rig.shard()
    rig.write(shard, "a", producer=A)
    shard.flush()
    rig.fs.fail_write(after_bytes=10)
    assert shard.append_marker(marker(A)) == ErrorCode.KAFKA_STORAGE_ERROR
    assert (shard.coordinator.told, rig.owned.log.state.last_stable_offset) == ([(0, "a", A)], 0)
    assert shard.append_marker(marker(A)) == 0
    rig.owned.sync()
    assert (shard.coordinator.told[1:], rig.owned.log.state.last_stable_offset) == ([(7, True)], 2)
    assert rig.shard().coordinator.told == [(0, "a", None)]


def test_replay_gives_only_the_last_record_of_a_key(rig: Rig) -> None:
    """A coordinator with 100 MiB of superseded commits has to serve again in two seconds."""
    shard = rig.shard()
    for key in ("a", "b", "a", "a"):
        rig.write(shard, key)
        shard.flush()
    shard.write(Write([(b"b", None)], lambda code: None))
    shard.flush()
    assert rig.shard().coordinator.told == [(3, "a", None)]


def test_replay_orders_transactions_by_record_not_by_marker(rig: Rig) -> None:
    """Of a key the record that is last in the log counts, whichever transaction ended last."""
    shard = rig.shard()
    for name, producer in (("a", A), ("b", A), ("c", A), ("a", None), ("b", B)):
        rig.write(shard, name, producer=producer)
        shard.flush()
    shard.append_marker(marker(B))
    shard.append_marker(marker(A))
    assert set(rig.shard().coordinator.told) == {(3, "a", None), (4, "b", None), (2, "c", None)}


def test_replay_drops_pending_records_before_a_tombstone(rig: Rig) -> None:
    shard = rig.shard()
    rig.write(shard, "a", producer=A)
    shard.write(Write([(b"a", None)], lambda code: None))
    rig.write(shard, "b", producer=A)
    shard.flush()
    assert rig.shard().coordinator.told == [(2, "b", A)]


def test_replay_of_an_aborted_transaction_gives_nothing(rig: Rig) -> None:
    shard = rig.shard()
    rig.write(shard, "a", producer=A)
    shard.append_marker(marker(A, is_commit=False))
    rig.write(shard, "a", producer=B)
    shard.flush()
    assert rig.shard().coordinator.told == [(2, "a", B)]


def test_fenced_producers_write_is_rejected_alone(rig: Rig) -> None:
    shard = rig.shard()
    shard.append_marker(marker(B))
    rig.write(shard, "a")
    rig.write(shard, "b", producer=Producer(8, 2))
    rig.write(shard, "c", "d")
    shard.flush()
    rig.owned.sync()
    fenced = ("b", ErrorCode.INVALID_PRODUCER_EPOCH)
    assert rig.codes == [fenced, ("a", 0), ("c", 0)]
    assert shard.coordinator.told == [(8, True), (1, "a", None), (2, "c", None), (3, "d", None)]


def test_rules_without_transactions_get_no_marker(rig: Rig) -> None:
    shard = rig.shard(with_transactions=False)
    rig.write(shard, "a")
    assert shard.append_marker(marker(A)) == 0
    assert shard.coordinator.told == [(0, "a", None)]
    assert rig.shard(with_transactions=False).coordinator.told == [(0, "a", None)]


def test_a_write_without_records_waits_for_the_others(rig: Rig) -> None:
    shard = rig.shard()
    rig.write(shard, "a", producer=A)
    shard.write(Write([], lambda code: rig.codes.append(("-", code))))
    rig.write(shard, "b", producer=A)
    shard.flush()
    assert ([len(keys) for _, keys in rig.batches()], rig.codes) == ([2], [])
    rig.owned.sync()
    assert rig.codes == [("a", 0), ("-", 0), ("b", 0)]


def test_flush_to_an_offline_log_does_not_publish(rig: Rig) -> None:
    """A former owner's row would replace the row of the present owner."""
    shard = rig.shard()
    rig.write(shard, "a")
    shard.flush()
    assert rig.owned.published_offset == 1
    rig.owned.published_offset = 0
    rig.write(shard, "b")
    rig.owned.log.state.set_offline("a swap of segments was interrupted")
    shard.flush()
    assert rig.codes == [("b", ErrorCode.KAFKA_STORAGE_ERROR)]
    assert rig.owned.published_offset == 0
