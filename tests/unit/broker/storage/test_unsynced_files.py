"""UnsyncedFiles: which files and names a sync point covers, and the descriptors that it holds."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import sys
from pathlib import Path

import pytest

from kproc.broker.storage.fs import DiskFailed
from kproc.broker.storage.log import LogConfig
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.segment import LogSegment
from tests.support.failing_fs import FailingFs
from tests.support.logs import LogRig, append_one, batch


@pytest.fixture
def fs() -> FailingFs:
    return FailingFs()


@pytest.fixture
def rig(tmp_path: Path, fs: FailingFs) -> LogRig:
    return LogRig(tmp_path / "t-0", fs=fs)


class NoMoreDescriptors(FailingFs):
    """After so many openings a process has as many files open as it may have."""

    left = sys.maxsize

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        self._count(path)
        return super().open(path, create=create, writable=writable)

    def open_directory(self, path: Path) -> int:
        self._count(path)
        return super().open_directory(path)

    def _count(self, path: Path) -> None:
        self.left -= 1
        if self.left < 0:
            raise DiskFailed(errno.EMFILE, f"open {path}")


def descriptors_below(directory: Path) -> list[str]:
    """Return the open files of this process below a directory."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # Of the listing itself.
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path.startswith(str(directory))]


def test_unopenable_sync_point_leaks_no_descriptor(rig: LogRig) -> None:
    rig.config = LogConfig(segment_bytes=300)
    rig.fs = fs = NoMoreDescriptors()
    log = rig.open()
    for _ in range(5):
        append_one(log, batch(bytes(200)))
    segments = log.state.segments
    for left in itertools.count():
        segments.close()
        fs.left = left
        try:
            point = log.durability.sync_point(closes=True)
        except DiskFailed:
            segments.close()
            assert descriptors_below(rig.directory.parent) == [], left
        else:
            break
    assert left == len(point.fds) > 3 * len(segments)
    log.durability.mark_synced(point)
    segments.close()
    assert descriptors_below(rig.directory.parent) == []


def test_the_sync_descriptors_outlive_roll_and_close(rig: LogRig) -> None:
    rig.config = LogConfig(segment_bytes=300)
    log = rig.open()
    append_one(log, batch(bytes(200)))
    point = log.durability.sync_point()
    log.append([batch(bytes(200)) for _ in range(5)])
    log.close(clean=False)
    log.durability.run_sync(point)  # Would be EBADF, or another file, if the number had been given away.
    log.durability.mark_synced(point)
    assert log.state.recovery_point == 1


def test_bytes_written_after_round_start_sync_in_next_round(rig: LogRig) -> None:
    rig.config = LogConfig(segment_bytes=500)
    log = rig.open()
    append_one(log, batch(bytes(100)))
    point = log.durability.sync_point()
    grown = log.state.active
    append_one(log, batch(bytes(100)))  # Goes to the segment that the round is syncing,
    append_one(log, batch(bytes(400)))  # which this one seals.
    assert log.state.active is not grown
    log.durability.run_sync(point)
    log.durability.mark_synced(point)
    assert log.state.recovery_point == 1
    point = log.durability.sync_point()
    assert point.segments == (grown, log.state.active)
    assert len(point.fds) == 5  # Log and indexes of the one, the log of the other, the directory.
    log.durability.mark_synced(point)
    assert log.state.recovery_point == 3
    log.close()


def test_clean_stop_syncs_sealed_segment_at_recovery_point(rig: LogRig) -> None:
    """Its records were synced while it was active; its indexes were not."""
    log = rig.open()
    append_one(log, batch("a"))
    log.close(clean=False)
    LogSegment.create(OsFs(), rig.directory, 1, now_ms=0).close()
    log = rig.open(recovery_point=1)
    point = log.prepare_close()
    assert [segment.base_offset for segment in point.segments] == [0, 1]
    log.durability.mark_synced(point)
    log.close_files()


def test_indexes_that_were_made_again_at_a_start_are_synced(rig: LogRig) -> None:
    rig.config = LogConfig(segment_bytes=300)
    log = rig.open()
    log.append([batch(bytes(200)) for _ in range(3)])
    log.close()
    (rig.directory / f"{0:020d}.index").unlink()
    log = rig.open(clean=True)
    point = log.prepare_close()
    assert [segment.base_offset for segment in point.segments] == [0, 2]
    log.durability.mark_synced(point)
    log.close_files()


def test_a_sync_leaves_few_descriptors_open(rig: LogRig) -> None:
    rig.config = LogConfig(segment_bytes=300)
    log = rig.open()
    log.append([batch(bytes(200)) for _ in range(20)])
    log.durability.sync()
    assert sum(segment.fd >= 0 for segment in log.state.segments.all()) <= 3
    log.close()


def test_a_sync_point_covers_sealed_segments_and_new_names(rig: LogRig) -> None:
    rig.config = LogConfig(segment_bytes=350)
    log = rig.open()
    log.append([batch(bytes(200)) for _ in range(3)])
    point = log.durability.sync_point()
    assert len(point.segments) == 3
    assert len(point.extra_fds) == 3  # The partition's own name is new as well, and partition.metadata.
    log.durability.run_sync(point)
    log.durability.mark_synced(point)
    assert log.state.recovery_point == 3
    assert log.durability.sync_point().fds == ()
    append_one(log, batch("x"))
    assert not log.durability.is_flush_due(rig.clock.wall_ms())
    point = log.durability.sync_point()
    assert (len(point.segments), len(point.extra_fds)) == (1, 0)
    log.durability.mark_synced(point)
    log.close()
