"""The transaction index: rows before their markers, after crashes, and over compacted segments."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kproc.broker.storage import txn_index
from kproc.broker.storage.format import TXN_ENTRY, AbortedTransaction
from kproc.broker.storage.log import Log, LogConfig, TrustedEnd
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.segment_lookup import locate
from kproc.broker.storage.segments import COLD_OPEN_MAX
from kproc.broker.storage.validate import COORDINATOR
from kproc.common.errors import ErrorCode
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.compaction import compact
from tests.support.failing_fs import FailingFs
from tests.support.logs import NOW_MS, LogRig, append_one, batch
from tests.support.transactions import Values, committed_fetch, in_transaction, marker, put, read_committed

CONFIG = LogConfig(
    segment_bytes=900,
    index_interval_bytes=150,
    cleanup_policy=frozenset({"compact", "delete"}),
    retention_ms=-1,
    delete_retention_ms=100,
)


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0", config=CONFIG)


def committed(log: Log, offset: int | None = None, max_bytes: int = 1 << 20) -> Values:
    """All that a reader sees who begins at an offset."""
    return read_committed(
        committed_fetch(log, lambda: max_bytes), log.state.start_offset if offset is None else offset
    )[0]


def plain(values: list[bytes], key: bytes) -> memoryview:
    return memoryview(encode_batch([Record(key, value, NOW_MS) for value in values]))


class CountingFs(OsFs):
    """Counts the files that are opened or looked for."""

    def __init__(self) -> None:
        self.count = 0

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        self.count += 1
        return super().open(path, create=create, writable=writable)

    def exists(self, path: Path) -> bool:
        self.count += 1
        return super().exists(path)

    def read_file(self, path: Path) -> bytes | None:
        self.count += 1
        return super().read_file(path)


def many_segments(rig: LogRig) -> Log:
    """A segment for each batch, and one transaction that was aborted near the end."""
    rig.config = LogConfig(segment_bytes=120, index_interval_bytes=150)
    log = rig.open()
    for _ in range(40):
        append_one(log, batch(bytes(40)))
    put(log, in_transaction(7, b"never"))
    put(log, marker(7, commit=False))
    append_one(log, batch("end"))
    assert log.state.segment_count > 40
    return log


def test_reader_far_behind_opens_no_index_per_fetch(rig: LogRig) -> None:
    rig.fs = fs = CountingFs()
    log = many_segments(rig)
    assert (0, bytes(40)) in committed(log)
    log.read(0, 1, committed=True)  # Now its segment is open.
    before = fs.count
    found = log.read(0, 1, committed=True)
    assert log.aborted_in(0, found) == []
    assert fs.count == before
    log.close()


def test_rows_of_a_segment_that_is_read_no_more_are_not_kept(rig: LogRig) -> None:
    rig.config = LogConfig(segment_bytes=400, index_interval_bytes=150)
    log = rig.open()
    for number in range(40):
        put(log, in_transaction(number, b"never"))
        put(log, marker(number, commit=False))
    log.close()
    log = rig.open(clean=True)
    assert log.state.segment_count > 15
    assert committed(log, max_bytes=300) == []
    held = [segment for segment in log.state.segments.all() if segment.txn_index._rows]
    assert len(held) <= COLD_OPEN_MAX + 1
    log.close()


def test_segment_search_ends_where_nothing_was_open(rig: LogRig) -> None:
    """Of a thousand aborted transactions a reader is told of those in what it reads."""
    rig.config = LogConfig(segment_bytes=1500, index_interval_bytes=150)
    log = rig.open()
    for number in range(200):
        put(log, in_transaction(number, b"never"))
        put(log, marker(number, commit=False))
    found = log.read(0, 300, committed=True)
    told = log.aborted_in(0, found)
    assert 1 <= len(told) <= 4
    assert committed(log, max_bytes=300) == []
    log.close()


def test_index_that_is_too_large_to_be_kept_is_read_at_each_look(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(txn_index, "KEPT_BYTES_MAX", 3 * TXN_ENTRY.size)
    log = rig.open()
    for number in range(3):
        put(log, in_transaction(number, b"never"))
        put(log, marker(number, commit=False))
        assert len(log.reader.aborted_transactions(0, log.state.end_offset)) == number + 1
    index = log.state.active.txn_index
    assert index._rows is not None
    put(log, in_transaction(3, b"never"))
    put(log, marker(3, commit=False))
    assert index._rows is None
    assert len(log.reader.aborted_transactions(0, log.state.end_offset)) == 4
    assert index._rows is None
    log.close()


@pytest.mark.parametrize("is_host", [True, False])
def test_row_of_lost_marker_affects_no_later_transaction(rig: LogRig, is_host: bool) -> None:
    log = rig.open()
    append_one(log, plain([b"plain"], b"k"))
    log.durability.sync()
    published = TrustedEnd(log.state.end_offset, 0, log.state.active_bytes, 0)
    path = log.state.active.path(".log")
    put(log, in_transaction(7, b"never", key=b"k"))
    put(log, marker(7, commit=False))
    log.close(clean=False)
    os.truncate(path, published.position)
    log = rig.open(recovery_point=1) if is_host else rig.open(recovery_point=1, trusted=published)
    put(log, in_transaction(7, b"good", key=b"k"))
    put(log, marker(7, commit=True))
    assert log.reader.aborted_transactions(0, log.state.end_offset) == []
    assert committed(log) == [(0, b"plain"), (1, b"good")]
    log.close()


def test_dropped_row_is_durable_before_later_records(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, plain([b"plain"], b"k"))
    log.durability.sync()
    put(log, in_transaction(7, b"never", key=b"k"))
    put(log, marker(7, commit=False))
    size = locate(log.state.active, 1)
    assert size is not None
    index, path = log.state.active.txn_index_path, log.state.active.path(".log")
    log.close(clean=False)
    os.truncate(path, size[0])
    log = rig.open(recovery_point=1)
    assert index.read_bytes() == b""
    append_one(log, plain([b"more"], b"k"))
    point = log.durability.sync_point()
    assert str(index) in {os.readlink(f"/proc/self/fd/{each}") for each in point.fds}
    log.durability.mark_synced(point)
    log.close()


def test_rows_that_a_power_loss_has_mixed_up_are_made_again(rig: LogRig) -> None:
    log = rig.open()
    for number in (5, 6):
        put(log, in_transaction(number, b"never", key=b"k"))
        put(log, marker(number, commit=False))
    rows = log.reader.aborted_transactions(0, log.state.end_offset)
    path = log.state.active.txn_index_path
    log.close(clean=False)
    content = path.read_bytes()
    path.write_bytes(bytes(TXN_ENTRY.size) + content[TXN_ENTRY.size :])
    log = rig.open()
    assert log.reader.aborted_transactions(0, log.state.end_offset) == rows
    assert path.read_bytes() == content
    log.close()


@pytest.mark.parametrize("nth", [1, 2], ids=["the row", "the marker"])
def test_marker_without_room_is_refused_and_shows_nothing(rig: LogRig, nth: int) -> None:
    rig.fs = fs = FailingFs()
    log = rig.open()
    put(log, in_transaction(7, b"never", key=b"k"))
    fs.fail_write(nth=nth, error=errno.ENOSPC)
    refused = append_one(log, marker(7, commit=False), origin=COORDINATOR)
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not log.state.is_offline
    assert (log.state.last_stable_offset, log.state.end_offset) == (0, 1)
    fs.heal()
    append_one(log, plain([b"plain"], b"k"))
    put(log, marker(7, commit=False))
    assert [tuple(each) for each in log.reader.aborted_transactions(0, 3)] == [(7, 0, 2, 3)]
    assert committed(log) == [(1, b"plain")]
    log.close()


def test_new_index_is_synced_with_name_by_its_creator(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, plain([b"plain"], b"k"))
    log.durability.sync()
    put(log, in_transaction(7, b"never", key=b"k"))
    put(log, marker(7, commit=False))
    path = log.state.active.txn_index_path
    log.close(clean=False)
    path.unlink()
    log = rig.open(recovery_point=1)
    assert path.exists()
    point = log.durability.sync_point()
    synced = {os.readlink(f"/proc/self/fd/{each}") for each in point.fds}
    assert {str(path), str(rig.directory)} <= synced
    log.durability.mark_synced(point)
    log.close()


def test_missing_row_is_inserted_and_existing_one_stays(tmp_path: Path) -> None:
    rows = [AbortedTransaction(number, 10 * number, 10 * number + 5, 10 * number + 6) for number in range(4)]
    index = txn_index.TxnIndex(OsFs(), tmp_path / "x.txnindex")
    index.append(rows[0])
    index.append(rows[3])
    for row in (rows[2], rows[1], rows[1]):
        index.complete(row)
    index.complete(rows[2]._replace(first_offset=22))
    assert index.overlapping(0, 100) == (rows, False)
    assert txn_index.read_aborted(OsFs(), index.path) == rows
    assert index.overlapping(15, 21) == (rows[1:3], True)
    assert index.overlapping(36, 100) == ([], False)


def test_replay_over_compacted_segments_keeps_rows(rig: LogRig) -> None:
    log = rig.open()
    put(log, in_transaction(7, b"never", key=b"k"))
    put(log, in_transaction(7, b"neither", key=b"k"))
    put(log, marker(7, commit=False))
    while log.state.segment_count == 1:
        append_one(log, plain([b"plain"], b"k"))
    assert compact(rig, log).swaps
    wanted = [(7, 0, 2, 3)]
    assert [tuple(each) for each in log.reader.aborted_transactions(0, 3)] == wanted
    put(log, in_transaction(7, b"more", key=b"k"))
    log.close()
    for path in rig.directory.glob("*.snapshot"):
        path.unlink()
    log = rig.open(recovery_point=log.state.recovery_point)
    assert [tuple(each) for each in log.reader.aborted_transactions(0, log.state.end_offset)] == wanted
    assert log.state.last_stable_offset == log.state.end_offset - 1
    log.close()
