"""The simulated disk: the effect of a sync without a waiter, and of two syncs at once, on later ones."""

from __future__ import annotations

import random

from tests.support.memory_disk import Inode, MemoryDisk


def written(content: bytes) -> tuple[MemoryDisk, Inode]:
    disk = MemoryDisk(lambda: 0)
    file = disk.open("/file", create=True)
    disk.write(file, content, 0)
    return disk, file


def after_crash(disk: MemoryDisk, file: Inode) -> set[bytes]:
    """What the file may be after a power loss."""
    disk.sync(disk.find("/"))
    found = set()
    for seed in range(20):
        data, durable = bytearray(file.data), bytearray(file.durable)
        disk.crash(random.Random(seed))
        found.add(bytes(file.data))
        file.data, file.durable = data, durable
    return found


def test_memory_disk_syncs_data_of_dead_process() -> None:
    disk, file = written(b"abc")
    disk.end_unseen(disk.begin_sync(file))
    disk.sync(file)
    assert after_crash(disk, file) == {b"abc"}


def test_memory_disk_sync_waits_for_running_sync() -> None:
    disk, file = written(b"abc")
    first = disk.begin_sync(file)
    disk.sync(file)
    assert after_crash(disk, file) == {b"abc"}
    disk.end_sync(first)
    assert after_crash(disk, file) == {b"abc"}


def test_memory_disk_late_sync_keeps_newer_data() -> None:
    disk, file = written(b"abc")
    first = disk.begin_sync(file)
    disk.write(file, b"xyz123", 0)
    disk.sync(file)
    disk.end_sync(first)
    assert after_crash(disk, file) == {b"xyz123"}


def test_a_failed_sync_leaves_nothing_to_be_written() -> None:
    disk, file = written(b"abc")
    disk.fail_sync(disk.begin_sync(file))
    disk.sync(file)
    assert b"abc" not in {bytes(file.durable)}
