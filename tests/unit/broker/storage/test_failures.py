"""A log on a failing disk: a full disk passes, an I/O error takes the log offline."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from kproc.broker.storage.fs import DiskFailed
from kproc.broker.storage.log import Log, LogConfig, TrustedEnd
from kproc.common.errors import ErrorCode
from tests.support.failing_fs import FailingFs
from tests.support.logs import NOW_MS, LogRig, append_one, batch, read_all, sequenced

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


@pytest.fixture
def fs() -> FailingFs:
    return FailingFs()


@pytest.fixture
def rig(tmp_path: Path, fs: FailingFs) -> LogRig:
    return LogRig(tmp_path / "t-0", fs=fs)


@pytest.mark.parametrize("after_bytes", [0, 1, 69, 70, 100])
def test_a_full_disk_leaves_no_trace_and_passes(rig: LogRig, fs: FailingFs, after_bytes: int) -> None:
    log = rig.open()
    append_one(log, batch("kept"))
    size = log.state.active_bytes
    fs.fail_write(after_bytes=after_bytes, error=errno.ENOSPC)
    results = log.append([batch("a"), batch("b")])
    assert [r.error_code for r in results] == [STORAGE_ERROR] * 2
    assert (log.state.end_offset, log.state.active_bytes, log.state.is_offline) == (1, size, False)
    assert (rig.directory / f"{0:020d}.log").stat().st_size == size
    assert append_one(log, batch("c")).base_offset == 1
    assert read_all(log) == [(0, b"kept"), (1, b"c")]
    log.close()


def test_reads_and_deletes_go_on_while_the_disk_is_full(rig: LogRig, fs: FailingFs) -> None:
    rig.config = LogConfig(segment_bytes=300)
    log = rig.open()
    log.append([batch(bytes(150)) for _ in range(4)])
    fs.fail_write(again=True)
    assert append_one(log, batch(bytes(10))).error_code == STORAGE_ERROR
    assert [offset for offset, _ in read_all(log)] == [0, 1, 2, 3]
    assert log.retention.delete_segments_before(2, "test") == 2
    assert log.state.start_offset == 2
    fs.heal()
    assert append_one(log, batch(bytes(10))).error_code == 0
    log.close()


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_segment_that_found_no_room_does_not_come_back(rig: LogRig, fs: FailingFs, nth: int) -> None:
    """After a power loss it would begin below the shorter batches that the segment before still took."""
    rig.config = LogConfig(segment_bytes=300)
    log = rig.open()
    append_one(log, batch(bytes(100)))
    fs.fail_create(nth=nth)
    fs.calls.clear()
    assert append_one(log, batch(bytes(150))).error_code == STORAGE_ERROR
    assert fs.calls.count("sync") == (nth > 1), "the directory, if there was a file"
    assert len(list(rig.directory.glob("*.log"))) == 1
    assert append_one(log, batch("short")).error_code == 0
    assert log.state.segment_count == 1
    log.close()


def test_a_fault_takes_the_log_offline_for_appends_only(rig: LogRig, fs: FailingFs) -> None:
    log = rig.open()
    append_one(log, batch("kept"))
    fs.fail_write(after_bytes=10, error=errno.EIO)
    assert append_one(log, batch("a")).error_code == STORAGE_ERROR
    assert log.state.is_offline
    assert append_one(log, batch("b")).error_code == STORAGE_ERROR
    assert read_all(log) == [(0, b"kept")]
    log.close()
    # What it left is a torn tail, which the next start cuts off.
    again = rig.open()
    assert (again.state.end_offset, again.truncated_bytes) == (1, 10)
    again.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_torn_tail_that_a_shortage_keeps_is_cut_by_next_append(
    rig: LogRig, fs: FailingFs, error: int
) -> None:
    log = rig.open()
    append_one(log, sequenced(1, 0))
    fs.fail_write(after_bytes=100, error=error)
    fs.fail_truncate(error=error)
    assert append_one(log, sequenced(1, 1, count=9)).error_code == STORAGE_ERROR
    fs.fail_truncate(error=error)
    assert append_one(log, sequenced(1, 1, count=9)).error_code == STORAGE_ERROR
    assert (log.state.end_offset, log.state.is_offline) == (1, False)
    # Shorter than what was left behind, so that a piece would stand behind it.
    assert append_one(log, sequenced(1, 1)).base_offset == 1
    log.close()
    again = rig.open()
    assert (again.state.end_offset, again.truncated_bytes) == (2, 0)
    again.close()


def test_uncuttable_torn_tail_rejects_batches_and_ends_appends(rig: LogRig, fs: FailingFs) -> None:
    log = rig.open()
    append_one(log, sequenced(1, 0))
    fs.fail_write(after_bytes=100)
    fs.fail_truncate(error=errno.EIO)
    results = log.append([sequenced(1, 1), sequenced(1, 2)])
    assert [(each.error_code, each.base_offset) for each in results] == [(STORAGE_ERROR, -1)] * 2
    assert (log.state.end_offset, log.state.is_offline) == (1, True)
    assert append_one(log, sequenced(1, 1)).error_code == STORAGE_ERROR
    log.close()
    again = rig.open()
    # The first of the two is there as a whole. What was refused may be there, what was answered must be.
    assert [offset for offset, _ in read_all(again)] == [0, 1]
    assert append_one(again, sequenced(1, 1)).is_duplicate
    assert append_one(again, sequenced(1, 2)).base_offset == 2
    again.close()


def test_offline_log_rejects_rest_of_request(rig: LogRig, fs: FailingFs) -> None:
    rig.config = LogConfig(segment_bytes=300)
    log = rig.open()
    fs.fail_write(
        nth=2, after_bytes=10, error=errno.EIO
    )  # The first is the checkpoint of the new leader epoch.
    # Without the first the second has room in the same segment, and its write would succeed.
    results = log.append([batch(bytes(150)), batch(bytes(150))])
    assert [each.error_code for each in results] == [STORAGE_ERROR] * 2
    assert (log.state.is_offline, log.state.end_offset) == (True, 0)
    log.close()


def test_a_sync_that_fails_is_never_tried_again(rig: LogRig, fs: FailingFs) -> None:
    log = rig.open()
    append_one(log, batch("a"))
    fs.fail_sync()
    with pytest.raises(DiskFailed):
        log.durability.sync()
    assert log.state.is_offline
    assert log.state.recovery_point == 0
    assert append_one(log, batch("b")).error_code == STORAGE_ERROR
    syncs = fs.calls.count("sync")
    log.close()
    assert fs.calls.count("sync") == syncs


def test_producers_are_as_before_a_write_that_failed(rig: LogRig, fs: FailingFs) -> None:
    log = rig.open()
    append_one(log, sequenced(1, 0))
    fs.fail_write(after_bytes=50)
    results = log.append([sequenced(1, 1), sequenced(1, 1), sequenced(2, 0)])
    # The second is a duplicate of a batch that was not written: it is refused with it.
    assert [r.error_code for r in results] == [STORAGE_ERROR] * 3
    assert log.state.producers.get(2) is None
    results = log.append([sequenced(1, 1), sequenced(1, 1), sequenced(2, 0)])
    assert [(r.error_code, r.base_offset, r.is_duplicate) for r in results] == [
        (0, 1, False), (0, 1, True), (0, 2, False),
    ]  # fmt: skip
    log.close()


def test_batches_before_a_failed_roll_are_kept(rig: LogRig, fs: FailingFs) -> None:
    rig.config = LogConfig(segment_bytes=300)
    log = rig.open()
    fs.fail_create(nth=2)  # The first is the checkpoint of the new leader epoch.
    results = log.append([batch(bytes(200)), batch(bytes(200)), batch(bytes(200))])
    assert [r.error_code for r in results] == [0, STORAGE_ERROR, STORAGE_ERROR]
    assert (log.state.end_offset, log.state.segment_count, log.state.is_offline) == (1, 1, False)
    assert append_one(log, batch(bytes(200))).base_offset == 1
    assert log.state.segment_count == 2
    log.close()


def test_segment_is_not_sealed_without_space_for_time_entry(rig: LogRig, fs: FailingFs) -> None:
    rig.config = LogConfig(segment_bytes=300)
    log = rig.open()
    append_one(log, batch(bytes(200)))
    fs.fail_write()
    assert append_one(log, batch(bytes(200))).error_code == STORAGE_ERROR
    assert (log.state.segment_count, log.state.is_offline) == (1, False)
    assert append_one(log, batch(bytes(200), timestamp=NOW_MS + 1)).error_code == 0
    row = TrustedEnd(log.state.end_offset, log.state.active_base, log.state.active_bytes, 0)
    log.close(clean=False)
    log = rig.open(trusted=row)
    assert log.reader.offset_for_timestamp(NOW_MS) == (0, NOW_MS)
    log.close()


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_roll_that_fails_half_way_leaves_no_files(rig: LogRig, fs: FailingFs, nth: int) -> None:
    rig.config = LogConfig(segment_bytes=300)
    log = rig.open()
    append_one(log, batch(bytes(200)))
    before = set(rig.files)
    fs.fail_create(nth=nth)
    assert append_one(log, batch(bytes(200))).error_code == STORAGE_ERROR
    assert set(rig.files) - before <= {"leader-epoch-checkpoint"}
    log.close()


def test_without_room_for_the_epoch_nothing_is_appended(rig: LogRig, fs: FailingFs) -> None:
    log = rig.open(leader_epoch=3)
    fs.fail_create()
    assert append_one(log, batch("a")).error_code == STORAGE_ERROR
    assert append_one(log, batch("a")).error_code == 0
    assert rig.files["leader-epoch-checkpoint"] == b"0\n1\n3 0\n"
    log.close()


def test_a_snapshot_is_done_without_when_the_disk_is_full(rig: LogRig, fs: FailingFs) -> None:
    rig.config = LogConfig(segment_bytes=300)
    log = rig.open()
    append_one(log, sequenced(1, 0))
    fs.fail_create(nth=4)  # After the three files of the new segment.
    assert append_one(log, batch(bytes(220))).error_code == 0
    assert not [name for name in rig.files if name.endswith(".snapshot")]
    log.close(clean=False)
    again = rig.open()
    assert append_one(again, sequenced(1, 0)).is_duplicate
    again.close()


def test_a_full_disk_costs_an_index_entry_and_nothing_else(rig: LogRig, fs: FailingFs) -> None:
    rig.config = LogConfig(index_interval_bytes=0)
    log = rig.open()
    append_one(log, batch("a"))
    fs.fail_write(nth=2, after_bytes=3)  # The index entry behind the batch.
    assert append_one(log, batch("b")).error_code == 0
    assert append_one(log, batch("c")).error_code == 0
    assert [offset for offset, _ in read_all(log)] == [0, 1, 2]
    log.close()
    assert len(rig.files[f"{0:020d}.index"]) == 8


def test_round_behind_a_failed_one_marks_no_segment(rig: LogRig, fs: FailingFs) -> None:
    """Its fdatasyncs succeed without the pages that the kernel has dropped. Who gets the log keeps it offline."""
    log = rig.open()
    append_one(log, batch(b"a"))
    log.durability.sync()
    assert newest_mark(rig) == 0
    log.state.roll(log.state.end_offset, rig.clock.wall_ms())
    append_one(log, batch(b"b"))
    point = log.durability.sync_point()
    fs.fail_sync(nth=2)
    with pytest.raises(DiskFailed):
        log.durability.run_sync(point)
    log.state.roll(log.state.end_offset, rig.clock.wall_ms())
    log.durability.sync_failed(point, "the device failed")
    point = log.durability.sync_point()
    assert point.directory_fd is not None
    log.durability.run_sync(point)
    log.durability.mark_synced(point)
    assert (newest_mark(rig), sealed_mark(rig), log.state.recovery_point) == (0, 0, 1)
    moved = Log.import_state(rig.identity, rig.config, log.export_state(), clock=rig.clock, fs=fs)
    log.close(clean=False)
    moved.state.unsynced.directories = [rig.directory]
    point = moved.durability.sync_point()
    moved.durability.run_sync(point)
    moved.durability.mark_synced(point)
    assert (newest_mark(rig), sealed_mark(rig)) == (0, 0)
    moved.close(clean=False)


def sealed_mark(rig: LogRig) -> int:
    descriptor = rig.fs.open(rig.directory / f"{0:020d}.log")
    try:
        return rig.fs.read_synced_mark(descriptor)
    finally:
        rig.fs.close(descriptor)


def newest_mark(rig: LogRig) -> int | None:
    descriptor = rig.fs.open_directory(rig.directory)
    try:
        return rig.fs.read_newest_mark(descriptor)
    finally:
        rig.fs.close(descriptor)
