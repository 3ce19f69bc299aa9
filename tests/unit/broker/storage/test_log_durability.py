"""The high watermark of a log: records that wait for a sync are hidden, and visible records are a prefix."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproc.broker.storage import log_durability
from kproc.broker.storage.fs import StorageFailure
from kproc.broker.storage.log import Log, LogConfig
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.record_batch import TRANSACTIONAL
from tests.support.failing_fs import FailingFs
from tests.support.logs import NOW_MS, LogRig, append_one, batch, read_all, sequenced

PID = 9


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0", fs=FailingFs())


@pytest.fixture
def log(rig: LogRig) -> Iterator[Log]:
    log = rig.open()
    yield log
    log.close(clean=False)


def hide(log: Log, *values: str) -> None:
    """Append as a Produce with acks=all does."""
    append_one(log, batch(*values), hidden_from=0)


def visible(log: Log, **fields: bool) -> list[bytes | None]:
    return [value for _, value in read_all(log, **fields)]


def ends(log: Log) -> tuple[int, int, int]:
    return log.state.high_watermark, log.state.last_stable_offset, log.state.end_offset


def test_hidden_records_become_visible_with_their_sync(log: Log) -> None:
    append_one(log, batch("a"))
    hide(log, "b", "c")
    assert (visible(log), visible(log, committed=True), ends(log)) == ([b"a"], [b"a"], (1, 1, 3))
    found = log.read(1, 1 << 20)
    assert (found.ranges, found.bytes, found.high_watermark) == ([], 0, 1)
    assert log.read(3, 1 << 20).ranges == [], "an offset up to the log's end is in range"
    log.durability.sync()
    assert (visible(log), ends(log)) == ([b"a", b"b", b"c"], (3, 3, 3))


def test_sync_of_a_removed_file_confirms_nothing(log: Log) -> None:
    """The file can be written and synced as long as it is open, and then all of its records are gone."""
    hide(log, "a")
    log.durability.sync()
    log.state.active.path(".log").unlink()
    hide(log, "b")
    point = log.durability.sync_point()
    log.durability.run_sync(point)
    log.durability.mark_synced(point)
    assert (log.state.recovery_point, ends(log)) == (1, (1, 1, 2))
    assert "was removed" in str(log.state.offline_reason)


def test_removed_file_takes_log_offline_without_a_sync(log: Log) -> None:
    append_one(log, batch("a"))
    log.durability.check_grown()
    path = log.state.active.path(".log")
    path.rename(path.with_suffix(".moved"))
    append_one(log, batch("b"))
    log.durability.check_grown()
    assert log.state.offline_reason is None, "the records exist under another name"
    path.with_suffix(".moved").unlink()
    log.durability.check_grown()
    assert log.state.offline_reason is None, "nothing was appended since the last check"
    append_one(log, batch("c"))
    log.durability.check_grown()
    assert "was removed" in str(log.state.offline_reason)


def test_active_segment_is_marked_up_to_last_sync(log: Log) -> None:
    """Once a second the owner marks what run_sync() passes over: less than a page, and what the last round synced."""
    active = log.state.active
    append_one(log, batch("a"))
    log.durability.mark_active()
    assert active.read_synced_mark() == 0, "no round has synced it"
    log.durability.sync()
    synced = active.size
    append_one(log, batch("b"))
    log.durability.mark_active()
    assert active.read_synced_mark() == synced < active.size
    log.durability.sync()
    log.state.set_offline("a round has failed")
    log.durability.mark_active()
    assert active.read_synced_mark() == synced


def test_records_behind_hidden_ones_are_hidden(log: Log) -> None:
    hide(log, "all")
    append_one(log, batch("one"))
    assert (visible(log), ends(log)) == ([], (0, 0, 2))
    log.durability.sync()
    assert visible(log) == [b"all", b"one"]


def test_one_append_hides_from_its_first_awaited_batch(log: Log) -> None:
    log.append([batch("one"), batch("all"), batch("one")], hidden_from=1)
    assert (visible(log), ends(log)) == ([b"one"], (1, 1, 3))


def test_sync_reveals_records_up_to_next_hidden_one(log: Log) -> None:
    """A round covers what was there at its start. Records of acks=1 behind it, and before the next of acks=all, wait
    for nothing any more."""
    hide(log, "a")
    point = log.durability.sync_point()
    append_one(log, batch("one"))
    hide(log, "b")
    log.durability.run_sync(point)
    log.durability.mark_synced(point)
    assert (visible(log), ends(log)) == ([b"a", b"one"], (2, 2, 3))
    log.durability.sync()
    assert visible(log) == [b"a", b"one", b"b"]


def test_refused_and_duplicate_batches_hide_nothing(log: Log) -> None:
    append_one(log, sequenced(PID, 0))
    damaged = batch("x")
    damaged[-1] ^= 1
    codes = [result.error_code for result in log.append([damaged, sequenced(PID, 0)], hidden_from=0)]
    assert (codes, ends(log)) == ([int(ErrorCode.CORRUPT_MESSAGE), 0], (1, 1, 1))
    append_one(log, batch("after"))
    assert log.state.high_watermark == 2


def test_failed_write_hides_nothing(rig: LogRig, log: Log) -> None:
    assert isinstance(rig.fs, FailingFs)
    rig.fs.fail_write(after_bytes=10)
    assert append_one(log, batch("x"), hidden_from=0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    append_one(log, batch("y"))
    assert (visible(log), ends(log)) == ([b"y"], (1, 1, 1))


def test_high_watermark_at_a_segment_boundary(tmp_path: Path) -> None:
    rig = LogRig(tmp_path / "t-0", LogConfig(segment_bytes=200))
    log = rig.open()
    append_one(log, batch(bytes(100)))
    log.append([batch(bytes(100)), batch(bytes(100)), batch(bytes(100))], hidden_from=0)
    assert (len(visible(log)), log.state.segment_count, ends(log)) == (1, 4, (1, 1, 4))
    log.durability.sync()
    assert len(visible(log)) == 4
    log.close()


def test_sync_that_ends_within_an_append_shows_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync point covers a bounded number of sealed segments, and one append can roll more."""
    monkeypatch.setattr(log_durability, "SEALED_TOGETHER_MAX", 2)
    log = LogRig(tmp_path / "t-0", LogConfig(segment_bytes=200)).open()
    log.append([batch(bytes(100)) for _ in range(5)], hidden_from=0)
    point = log.durability.sync_point()
    log.durability.run_sync(point)
    log.durability.mark_synced(point)
    assert ends(log) == (2, 2, 5)
    for _ in range(2):
        log.durability.sync()
    assert ends(log) == (5, 5, 5)
    log.close()


@pytest.mark.parametrize("is_commit", [True, False])
def test_transaction_ends_for_readers_with_its_markers_sync(log: Log, is_commit: bool) -> None:
    """As in Kafka, a transaction stays unstable until its marker is below the high watermark."""
    append_one(log, sequenced(PID, 0, flags=TRANSACTIONAL), hidden_from=0)
    log.durability.sync()
    log.appender.append_marker(PID, 0, 0, is_commit=is_commit, transaction_version=0, is_hidden=True)
    append_one(log, batch("after"))
    assert (visible(log, committed=True), ends(log)) == ([], (1, 0, 3))
    log.durability.sync()
    assert ends(log) == (3, 3, 3)


def test_markers_of_two_transactions_are_synced_one_by_one(log: Log) -> None:
    append_one(log, sequenced(1, 0, flags=TRANSACTIONAL))
    append_one(log, sequenced(2, 0, flags=TRANSACTIONAL))
    log.appender.append_marker(1, 0, 0, is_commit=True, transaction_version=0, is_hidden=True)
    point = log.durability.sync_point()
    log.appender.append_marker(2, 0, 0, is_commit=True, transaction_version=0, is_hidden=True)
    assert ends(log) == (2, 0, 4)
    log.durability.run_sync(point)
    log.durability.mark_synced(point)
    assert ends(log) == (3, 1, 4)
    log.durability.sync()
    assert ends(log) == (4, 4, 4)


def test_delete_records_stops_at_the_high_watermark(log: Log) -> None:
    append_one(log, batch("a"))
    hide(log, "b")
    with pytest.raises(KafkaError, match="above the high watermark 1"):
        log.retention.advance_start(2)
    assert log.retention.advance_start(log.state.high_watermark) == 1


def test_retention_keeps_segments_with_hidden_records(tmp_path: Path) -> None:
    rig = LogRig(tmp_path / "t-0", LogConfig(segment_bytes=200, retention_ms=1))
    log = rig.open()
    append_one(log, batch(bytes(100)))
    hide(log, "b" * 100)
    hide(log, "c" * 100)
    log.retention.enforce_retention(NOW_MS + 10_000)
    assert (log.state.start_offset, log.state.high_watermark) == (1, 1)
    log.durability.sync()
    log.retention.enforce_retention(NOW_MS + 10_000)
    assert (log.state.start_offset, log.state.high_watermark) == (3, 3)
    log.close()


def test_failed_sync_shows_nothing_and_a_transfer_keeps_it_so(rig: LogRig, log: Log) -> None:
    assert isinstance(rig.fs, FailingFs)
    append_one(log, sequenced(PID, 0, flags=TRANSACTIONAL))
    log.appender.append_marker(PID, 0, 0, is_commit=True, transaction_version=0, is_hidden=True)
    rig.fs.fail_sync(error=errno.EIO)
    with pytest.raises(StorageFailure):
        log.durability.sync()
    assert ends(log) == (1, 0, 2)
    state = log.export_state()
    again = Log.import_state(
        rig.identity,
        rig.config,
        state,
        clock=rig.clock,
        fs=rig.fs,
    )
    assert (ends(again), again.state.is_offline) == ((1, 0, 2), True)
    again.close(clean=False)


def test_owner_reads_hidden_records(log: Log) -> None:
    """A coordinator loads all of its log: what it answers waits for the sync."""
    hide(log, "a")
    assert b"a" in log.reader.read_bytes(0, 1 << 20)
    assert log.reader.read_bytes(1, 1 << 20) == b""
    with pytest.raises(KafkaError, match="is not in"):
        log.reader.read_bytes(2, 1 << 20)


def test_flush_is_due_at_once_after_the_clock_was_set_back(rig: LogRig) -> None:
    """Otherwise flush.ms would wait until the clock has caught up, which can take a year. Without flush.ms none is."""
    rig.config = LogConfig(flush_ms=1_000)
    log = rig.open()
    log.durability.sync()
    append_one(log, batch("a"))
    assert not log.durability.is_flush_due(rig.clock.wall_ms() + 999)
    assert log.durability.is_flush_due(rig.clock.wall_ms() + 1_000)
    assert not log.durability.is_flush_due(rig.clock.wall_ms() - 999)
    assert log.durability.is_flush_due(rig.clock.wall_ms() - 1_000)
    rig.config = LogConfig()
    log.close(clean=False)
    log = rig.open()
    append_one(log, batch("b"))
    assert not log.durability.is_flush_due(0)
    log.close(clean=False)
