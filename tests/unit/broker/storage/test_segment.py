"""LogSegment reserves disk blocks beyond its end: when, how many, and that none stay behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kproc.broker.storage.log import Log, LogConfig
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.segment import RESERVE_BYTES_MAX, RESERVE_FROM_BYTES
from tests.support.failing_fs import FailingFs
from tests.support.logs import LogRig, append_one, batch, read_all

MIB = 1 << 20
DAY_NS = 24 * 3600 * 10**9


class ReservingFs(FailingFs):
    """Notes what was asked for; answers `answer`, or what the real file system says."""

    def __init__(self, *, answer: bool | None = True) -> None:
        super().__init__()
        self.answer = answer
        self.asked: list[tuple[int, int]] = []

    def reserve(self, descriptor: int, position: int, length: int) -> bool:
        self.asked.append((position, length))
        return super().reserve(descriptor, position, length) if self.answer is None else self.answer


@pytest.fixture
def fs() -> ReservingFs:
    return ReservingFs()


@pytest.fixture
def rig(tmp_path: Path, fs: ReservingFs) -> LogRig:
    return LogRig(tmp_path / "t-0", fs=fs)


@pytest.fixture
def real(disk_path: Path) -> LogRig:
    """A log on a file system that reserves blocks."""
    with (disk_path / "probe").open("wb") as probe:
        if not OsFs().reserve(probe.fileno(), 0, MIB):
            pytest.skip(f"{disk_path} is not on ext4, or its disk is nearly full")
    return LogRig(disk_path / "t-0", fs=ReservingFs(answer=None))


def write(log: Log, size: int) -> None:
    """So many bytes and a little more, as one batch at a time of at most 1 MB."""
    while size > 0:
        length = min(MIB - 4096, size)
        assert append_one(log, batch(bytes(length))).error_code == 0
        size -= length


def spare_bytes(rig: LogRig, base_offset: int = 0) -> int:
    """Bytes that a segment's file holds on the disk beyond its size, up to what an extent tree takes."""
    facts = (rig.directory / f"{base_offset:020d}.log").stat()
    return max(0, facts.st_blocks * 512 - facts.st_size - 64 * 1024)


def test_a_small_log_asks_for_nothing(rig: LogRig, fs: ReservingFs) -> None:
    log = rig.open()
    write(log, RESERVE_FROM_BYTES - MIB)
    assert fs.asked == []
    log.close()
    log = rig.open()  # What was there before does not count: it may be that little more comes.
    write(log, RESERVE_FROM_BYTES - MIB)
    assert fs.asked == []
    log.close()


def test_reserve_at_most_doubles_segment_up_to_bound(rig: LogRig, fs: ReservingFs) -> None:
    log = rig.open()
    write(log, 5 * RESERVE_BYTES_MAX)
    begun = [position for position, _ in fs.asked]
    assert RESERVE_FROM_BYTES - MIB < begun[0] <= RESERVE_FROM_BYTES
    for position, length in fs.asked:
        assert length <= min(position, RESERVE_BYTES_MAX) + MIB  # The write that comes is in it.
    # Each one only when the one before is used up.
    for (position, length), following in zip(fs.asked, begun[1:], strict=False):
        assert position + length - MIB <= following <= position + length
    assert len(begun) == len(set(begun)) <= 8
    log.close()


def test_not_beyond_where_the_segment_rolls(rig: LogRig, fs: ReservingFs) -> None:
    rig.config = LogConfig(segment_bytes=6 * MIB)
    log = rig.open()
    write(log, 5 * MIB)
    assert [position + length for position, length in fs.asked] == [6 * MIB]
    log.close()


def test_refusal_is_no_failure_and_not_asked_again_soon(rig: LogRig, fs: ReservingFs) -> None:
    fs.answer = False
    log = rig.open()
    write(log, 3 * RESERVE_BYTES_MAX)
    assert len(fs.asked) == 1
    assert not log.state.is_offline
    log.close()


def test_reserve_cut_by_full_disk_is_retried_after_doubling(rig: LogRig, fs: ReservingFs) -> None:
    log = rig.open()
    write(log, RESERVE_FROM_BYTES + MIB)
    assert len(fs.asked) == 1
    fs.fail_write(after_bytes=10, error=errno.ENOSPC)
    assert log.append([batch("a")])[0].error_code != 0
    write(log, RESERVE_FROM_BYTES - MIB)
    assert len(fs.asked) == 1
    write(log, 2 * MIB)
    assert len(fs.asked) == 2
    log.close()


def test_file_size_excludes_reserve_and_stop_releases_it(real: LogRig) -> None:
    log = real.open()
    write(log, RESERVE_FROM_BYTES + MIB)
    path = real.directory / f"{0:020d}.log"
    assert path.stat().st_size == log.state.active_bytes
    assert spare_bytes(real) >= 2 * MIB
    os.utime(path, ns=(DAY_NS, DAY_NS))
    log.close()
    assert spare_bytes(real) == 0
    # Retention of records without a timestamp goes by it.
    assert path.stat().st_mtime_ns == DAY_NS


def test_a_roll_gives_back_what_a_killed_owner_left(real: LogRig) -> None:
    real.config = LogConfig(segment_bytes=8 * MIB)
    log = real.open()
    write(log, RESERVE_FROM_BYTES + MIB)
    log.close(clean=False)
    assert spare_bytes(real) >= MIB
    log = real.open()
    assert log.truncated_bytes == 0
    records = len(read_all(log))
    write(log, 4 * MIB)
    assert log.state.segment_count == 2
    assert spare_bytes(real) == 0
    assert len(read_all(log)) > records
    log.close()


def test_torn_tail_among_blocks_set_aside_is_cut(real: LogRig) -> None:
    log = real.open()
    write(log, RESERVE_FROM_BYTES + MIB)
    end, size = log.state.end_offset, log.state.active_bytes
    log.close(clean=False)
    path = real.directory / f"{0:020d}.log"
    with path.open("ab") as file:
        file.write(bytes(batch("torn"))[:50])
    log = real.open()
    assert (log.state.end_offset, log.state.active_bytes, log.truncated_bytes) == (end, size, 50)
    assert spare_bytes(real) == 0
    log.close()


def test_memory_of_a_tmpfs_is_not_set_aside() -> None:
    descriptor = os.memfd_create("no-disk")
    try:
        assert OsFs().reserve(descriptor, 0, MIB) is False
        assert os.fstat(descriptor).st_blocks == 0
    finally:
        os.close(descriptor)


def test_a_disk_that_is_nearly_full_is_left_alone(real: LogRig, tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    with (tmp_path / "large").open("wb") as file:
        assert OsFs().reserve(file.fileno(), 0, free // 32) is False
        assert os.fstat(file.fileno()).st_blocks == 0
