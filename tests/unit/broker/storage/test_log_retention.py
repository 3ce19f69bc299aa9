"""LogRetention: segments are renamed now and unlinked later, and interrupted deletions."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kproc.broker.storage import log_retention, segments
from kproc.broker.storage.fs import DiskFailed, DiskFull
from kproc.broker.storage.log import LogConfig, TrustedEnd
from kproc.broker.storage.os_fs import OsFs
from kproc.common.errors import ErrorCode, FatalError, KafkaError
from tests.support.log_fs import use_below, use_below_segments
from tests.support.logs import NOW_MS, LogRig, append_one, batch, read_all

FS = OsFs()


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    config = LogConfig(segment_bytes=300, retention_ms=1000, file_delete_delay_ms=500)
    return LogRig(tmp_path / "t-0", config=config)


def test_old_segments_are_renamed_now_and_unlinked_later(rig: LogRig) -> None:
    log = rig.open()
    for number in range(4):
        append_one(log, batch(bytes(150), timestamp=NOW_MS + 400 * number))
    now_ms = NOW_MS + 1401
    assert log.retention.enforce_retention(now_ms) == 2
    assert (log.state.start_offset, log.state.segment_count) == (2, 2)
    deleted = {name for name in rig.files if name.endswith(".deleted")}
    assert {name.split(".", 1)[1] for name in deleted} == {
        "log.deleted", "index.deleted", "timeindex.deleted", "snapshot.deleted",
    }  # fmt: skip
    assert log.state.segments.next_due_ms() == log.state.deletion_due_ms()
    assert log.retention.unlink_due(log.state.deletion_due_ms() - 1) == 0
    assert log.retention.unlink_due(log.state.deletion_due_ms()) == len(deleted)
    assert not [name for name in rig.files if name.endswith(".deleted")]
    with pytest.raises(KafkaError):
        log.read(1, 100)
    assert [offset for offset, _ in read_all(log)] == [2, 3]
    log.close()


def test_deleted_files_are_unlinked_after_clock_is_set_back(rig: LogRig) -> None:
    log = rig.open()
    log.append([batch(bytes(150)) for _ in range(3)])
    log.retention.delete_segments_before(1, "test")
    due_ms = log.state.deletion_due_ms()
    rig.clock.set_wall_ms(NOW_MS - 3_600_000)
    log.retention.delete_segments_before(2, "test")
    assert log.state.deletion_due_ms() == due_ms
    assert log.retention.unlink_due(due_ms) > 0
    assert not [name for name in rig.files if name.endswith(".deleted")]
    log.close()


def test_many_segments_are_deleted_in_several_calls(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer can roll a log with each batch, and clients must not wait for thousands of renames."""
    monkeypatch.setattr(log_retention, "DELETED_TOGETHER", 3)
    monkeypatch.setattr(segments, "UNLINKED_FILES_MAX", 4)
    log = rig.open()
    log.append([batch(bytes(150)) for _ in range(8)])
    state, retention = log.state, log.retention
    assert retention.advance_start(7) == 7
    assert (state.start_offset, state.segment_count, retention.rest_below) == (7, 5, 7)
    with pytest.raises(KafkaError):
        log.read(6, 100)
    retention.delete_rest()
    assert (state.segment_count, retention.rest_below) == (2, 7)
    retention.delete_rest()
    assert (state.start_offset, state.segment_count, retention.rest_below) == (7, 1, 0)
    deleted = [name for name in rig.files if name.endswith(".deleted")]
    assert retention.unlink_due(log.state.deletion_due_ms()) == 4
    assert len([name for name in rig.files if name.endswith(".deleted")]) == len(deleted) - 4
    log.close()


def test_a_range_given_out_can_be_read_after_the_deletion(rig: LogRig) -> None:
    log = rig.open()
    log.append([batch(bytes(150)) for _ in range(2)])
    part = log.read(0, 1).ranges[0]
    with open(part.path, "rb") as file:
        assert os.fstat(file.fileno()).st_ino == part.inode
        log.retention.delete_segments_before(1, "test")
        log.retention.unlink_due(log.state.deletion_due_ms())
        assert len(file.read()) == part.length
    log.close()


def test_an_old_active_segment_goes_after_a_roll(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, batch("a"))
    assert log.retention.enforce_retention(NOW_MS + 1001) == 1
    state = log.state
    assert (state.start_offset, state.end_offset, state.segment_count, state.active_base) == (1, 1, 1, 1)
    assert log.retention.enforce_retention(NOW_MS + 9000) == 0
    assert append_one(log, batch("b")).base_offset == 1
    log.close()


def test_undated_records_are_as_old_as_their_file(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, batch("a", timestamp=-1))
    os.utime(rig.directory / f"{0:020d}.log", (NOW_MS / 1000, NOW_MS / 1000))
    assert log.retention.enforce_retention(NOW_MS + 1000) == 0
    assert log.retention.enforce_retention(NOW_MS + 1001) == 1
    log.close()


def test_compacted_topics_only_lose_what_lies_below_the_start(rig: LogRig) -> None:
    policy = frozenset({"compact"})
    rig.config = LogConfig(segment_bytes=300, retention_ms=1, retention_bytes=0, cleanup_policy=policy)
    log = rig.open()
    log.append([batch(bytes(150)) for _ in range(3)])
    assert log.retention.retention_victims(NOW_MS + 10**9)[1] == []
    log.close()


def test_delete_records(rig: LogRig) -> None:
    rig.config = LogConfig(segment_bytes=300)
    log = rig.open(leader_epoch=2)
    log.append([batch("a", "b"), batch(bytes(150)), batch(bytes(150))])
    with pytest.raises(KafkaError) as caught:
        log.retention.advance_start(5)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.retention.advance_start(1) == 1
    assert log.state.segment_count == 2
    assert log.reader.epoch_end_offset(2) == (2, 4)
    assert rig.files["leader-epoch-checkpoint"] == b"0\n1\n2 1\n"
    assert log.retention.advance_start(0) == 1  # never back
    assert log.retention.advance_start(3) == 3
    assert log.state.segment_count == 1
    assert log.retention.advance_start(4) == 4
    assert (log.state.size_bytes, log.state.end_offset) == (0, 4)
    log.close()
    log = rig.open(start_offset=4)
    assert append_one(log, batch("x")).base_offset == 4
    log.close()


class _FailingRename(OsFs):
    """The nth rename to .deleted ends as it is told to."""

    def __init__(self, nth: int, error: Exception) -> None:
        self._left, self._error = nth, error

    def rename(self, source: Path, target: Path) -> bool:
        if target.suffix == ".deleted":
            self._left -= 1
            if not self._left:
                raise self._error
        return super().rename(source, target)


@pytest.mark.parametrize("nth", range(1, 7))
def test_interrupted_deletion_takes_log_offline_until_reopened(rig: LogRig, nth: int) -> None:
    rig.config = LogConfig(segment_bytes=300)
    log = rig.open()
    log.append([batch(bytes(150)) for _ in range(3)])
    rig.fs = _FailingRename(nth, DiskFailed(errno.EIO, "rename"))
    use_below(log, rig.fs)
    row = TrustedEnd(
        log.state.end_offset, log.state.active_base, log.state.active_bytes, log.state.start_offset
    )
    with pytest.raises(DiskFailed):
        log.retention.advance_start(3)
    assert log.state.is_offline
    assert append_one(log, batch("x")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    log.close(clean=False)
    rig.fs = FS
    log = rig.open(trusted=row)
    assert log.state.end_offset == 3
    assert [offset for offset, _ in read_all(log)] == list(range(log.state.start_offset, 3))
    assert append_one(log, batch("x")).base_offset == 3
    log.close()


@pytest.mark.parametrize("nth", range(1, 7))
def test_deletion_without_name_space_continues_next_round(rig: LogRig, nth: int) -> None:
    rig.config = LogConfig(segment_bytes=300, retention_ms=-1)
    log = rig.open()
    log.append([batch(bytes(150)) for _ in range(3)])
    use_below_segments(log, _FailingRename(nth, DiskFull(errno.ENOSPC, "rename")))
    assert log.retention.advance_start(3) == 3
    assert not log.state.is_offline
    assert append_one(log, batch("x")).base_offset == 3
    assert [offset for offset, _ in read_all(log)] == [3]
    use_below_segments(log, FS)
    log.retention.enforce_retention(NOW_MS)
    assert log.state.segment_count == 1
    assert not [name for name in rig.files if name.endswith(".log") and name != f"{3:020d}.log"]
    log.close()


def test_a_surprise_in_a_deletion_ends_the_role(rig: LogRig) -> None:
    rig.config = LogConfig(segment_bytes=300)
    log = rig.open()
    log.append([batch(bytes(150)) for _ in range(3)])
    use_below_segments(log, _FailingRename(2, ValueError("a mistake")))
    with pytest.raises(FatalError, match="unexpected error in a deletion of segments"):
        log.retention.advance_start(3)
    log.close(clean=False)
