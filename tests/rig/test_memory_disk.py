"""The simulated disk: what a sync that nobody waited for, or that met another one, leaves to the next."""

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


def test_what_a_dead_process_had_under_way_is_synced_by_the_next() -> None:
    disk, file = written(b"abc")
    disk.end_unseen(disk.begin_sync(file))
    disk.sync(file)
    assert after_crash(disk, file) == {b"abc"}


def test_a_sync_waits_for_what_another_has_under_way() -> None:
    disk, file = written(b"abc")
    first = disk.begin_sync(file)
    disk.sync(file)
    assert after_crash(disk, file) == {b"abc"}
    disk.end_sync(first)
    assert after_crash(disk, file) == {b"abc"}


def test_one_that_ends_late_takes_nothing_newer_back() -> None:
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
