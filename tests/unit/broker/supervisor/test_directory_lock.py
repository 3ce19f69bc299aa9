"""Locks of a data directory: two brokers never write into one, whatever happens to `.lock`."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kproc.broker.storage.format import LOCK_FILE
from kproc.broker.supervisor import directory_lock
from kproc.broker.supervisor.directory_lock import DirectoryInUse, DirectoryLock, locked_directory
from tests.support.ring_pair import Forked


@pytest.fixture(autouse=True)
def without_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse at once."""
    monkeypatch.setattr(directory_lock, "_WAIT_NS", 0)


def hold(path: Path, lock: Callable[[int, int], None]) -> Callable[[], None]:
    """Lock a file in another process; return a function that ends it."""
    read_end, write_end = os.pipe()
    locked_read, locked_write = os.pipe()

    def work() -> None:
        os.close(write_end)
        lock(os.open(path, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
        os.write(locked_write, b"1")
        os.read(read_end, 1)

    holder = Forked(work)
    os.read(locked_read, 1)
    for each in (read_end, locked_read, locked_write):
        os.close(each)

    def release() -> None:
        os.close(write_end)
        holder.result()

    return release


def test_second_lock_is_refused_after_lock_file_was_removed(tmp_path: Path) -> None:
    """Somebody tidies up hidden files below a running broker."""
    first = DirectoryLock(tmp_path)
    (tmp_path / LOCK_FILE).unlink()
    with pytest.raises(DirectoryInUse):
        DirectoryLock(tmp_path)
    with pytest.raises(DirectoryInUse), locked_directory(tmp_path):
        pass
    first.release()
    DirectoryLock(tmp_path).release()


def test_lock_of_kafka_or_kproc_is_respected(tmp_path: Path) -> None:
    """Apache Kafka takes a POSIX lock of the file, kproc an flock."""
    for lock in (fcntl.lockf, fcntl.flock):
        release = hold(tmp_path / LOCK_FILE, lock)
        with pytest.raises(DirectoryInUse):
            DirectoryLock(tmp_path)
        with pytest.raises(DirectoryInUse), locked_directory(tmp_path):
            pass
        release()
        DirectoryLock(tmp_path).release()


def test_lock_file_is_created_only_for_a_broker(tmp_path: Path) -> None:
    with locked_directory(tmp_path):
        assert not (tmp_path / LOCK_FILE).exists()
    lock = DirectoryLock(tmp_path)
    assert lock.lock_fd >= 0
    lock.release()
    assert (tmp_path / LOCK_FILE).exists()


def test_directory_without_flock_is_locked_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS emulates flock by a lock of bytes, which needs a file that is open for writing."""
    real = fcntl.flock

    def flock(fd: int, operation: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = DirectoryLock(tmp_path)
    with pytest.raises(DirectoryInUse):
        DirectoryLock(tmp_path)
    lock.release()
    DirectoryLock(tmp_path).release()
