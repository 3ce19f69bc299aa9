"""Writes and syncs that fail by the rules about the disk, on real files."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.calls.own_operations import FaultRule
from kproc.broker.faults.disk import FaultyFs, used_bytes
from kproc.broker.faults.rule_files import RuleFiles
from kproc.broker.storage.fs import DiskFailed, DiskFull, Shortage
from kproc.broker.storage.os_fs import OsFs

LOG = "00000000000000000000.log"


class Disk:
    """A data directory with rules, and the file system that they fail."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = RuleFiles(str(directory))
        self.fs: Any = FaultyFs(OsFs(), str(directory))

    def add(self, **rule: Any) -> int:
        return self.files.add(FaultRule(**rule), connection_id=1)

    def fill(self, free_bytes: int) -> int:
        return self.add(action="fill-disk", free_bytes=free_bytes, used_bytes=used_bytes(str(self.directory)))

    def create(self, partition: str, name: str = LOG) -> int:
        (self.directory / partition).mkdir(exist_ok=True)
        descriptor: int = self.fs.open(self.directory / partition / name, create=True)
        return descriptor


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def test_full_disk_takes_what_fits_and_frees_what_is_deleted(disk: Disk) -> None:
    fs = disk.fs
    other, log = disk.create(".t-0", "other"), disk.create("t-0")
    fs.write(other, [b"12345"], position=0)
    fs.write(log, [b"abc"], position=0)
    rule = disk.fill(4)
    fs.write(log, [b"de"], position=3)
    assert not fs.reserve(log, 5, 4096)
    with pytest.raises(DiskFull) as caught:
        fs.write(log, [b"fg", b"hi"], position=5)
    assert (caught.value.errno, str(caught.value)) == (
        errno.ENOSPC,
        "[Errno 28] write: No space left on device",
    )
    assert (disk.directory / "t-0" / LOG).read_bytes() == b"abcdefg"
    fs.write(log, [b"ABC"], position=0)
    with pytest.raises(DiskFull):
        fs.make_directory(disk.directory / "new")
    assert disk.files.matches(rule) == 2
    fs.unlink(disk.directory / ".t-0" / "other")
    fs.write(log, [b"12345"], position=7)
    with pytest.raises(DiskFull):
        fs.write(log, [b"6"], position=12)
    disk.files.remove(rule)
    fs.write(log, [b"6"], position=12)
    assert fs.make_directory(disk.directory / "new")
    fs.close(other)
    fs.close(log)


def test_shortage_while_rules_are_read_is_a_failed_call(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other exception would end the role that writes, such as the cleaner."""
    log = disk.create("t-0")

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(RuleFiles, "ids", fail)
    for call in (lambda: disk.fs.write(log, [b"a"], position=0), lambda: disk.fs.sync(log)):
        with pytest.raises(Shortage):
            call()
    assert not disk.fs.reserve(log, 0, 4096)
    monkeypatch.undo()
    disk.add(action="fail-sync", topic="t")
    monkeypatch.setattr(RuleFiles, "counter", fail)
    with pytest.raises(Shortage):
        disk.fs.sync(log)
    disk.fs.close(log)


def test_write_fails_in_chosen_logs_as_often_as_the_rule_says(disk: Disk) -> None:
    fs = disk.fs
    t0, t1, u0 = (disk.create(partition) for partition in ("t-0", "t-1", "u-0"))
    index = disk.create("t-0", "00000000000000000000.index")
    rule = disk.add(action="fail-write", topic="t*", partition=0, times=1, after=1)
    for descriptor in (t0, t1, u0, index):
        fs.write(descriptor, [b"a"], position=0)
    for descriptor in (t1, u0, index):
        fs.write(descriptor, [b"b"], position=1)
    with pytest.raises(DiskFailed, match="write: Input/output error"):
        fs.write(t0, [b"b"], position=1)
    fs.write(t0, [b"c"], position=1)
    assert (disk.directory / "t-0" / LOG).read_bytes() == b"ac"
    assert disk.files.matches(rule) == 3
    disk.add(action="fail-write", topic="u", error="EDQUOT")
    with pytest.raises(DiskFull, match="write: Disk quota exceeded"):
        fs.write(u0, [b"c"], position=2)
    for descriptor in (t0, t1, u0, index):
        fs.close(descriptor)


def test_sync_fails_for_the_log_and_not_for_its_directory(disk: Disk) -> None:
    log = disk.create("t-0")
    names = disk.fs.open_directory(disk.directory / "t-0")
    disk.add(action="fail-sync", topic="t")
    disk.fs.sync(names)
    disk.fs.write(log, [b"a"], position=0)
    with pytest.raises(DiskFailed, match="fdatasync: Input/output error"):
        disk.fs.sync(log)
    disk.fs.close(names)
    disk.fs.close(log)


def test_calls_without_rules_open_no_file(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    log = disk.create("t-0")
    opened: list[Any] = []
    monkeypatch.setattr(os, "open", lambda *arguments, **_: opened.append(arguments))
    disk.fs.write(log, [b"a"], position=0)
    disk.fs.sync(log)
    assert opened == []
    monkeypatch.undo()
    disk.fs.close(log)
