"""Keep what was synced through a power loss of a data directory, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.config import Config
from kproc.broker.config.own_settings import LOSE_POWER_FILE
from kproc.broker.faults.power import prepare_record, recording
from kproc.broker.storage.fs import replace_file, sync_directory
from kproc.common.errors import Corrupt


class Machine:
    """A data directory, the file system that records its syncs, and a switch for the power."""

    def __init__(self, directory: Path) -> None:
        self.data, self.record = directory / "data", directory / "power"
        self.data.mkdir()
        settings = {"log.dirs": self.data, "kproc.faults.power.directory": self.record}
        self.config = Config.build(
            {**{name: str(path) for name, path in settings.items()}, "kproc.faults.enable": "true"}
        )
        (self.data / "old").write_bytes(b"old")
        (self.data / ".lock").touch()
        self.start()

    def start(self, *, is_restored: bool = False) -> None:
        prepare_record(self.config, is_restored=is_restored)
        self.fs: Any = recording(self.config)

    def create(self, name: str, content: bytes, *, is_synced: bool) -> int:
        descriptor: int = self.fs.open(self.data / name, create=True)
        self.fs.write(descriptor, [content], position=0)
        if is_synced:
            self.fs.sync(descriptor)
        return descriptor

    def sync_names(self) -> None:
        sync_directory(self.fs, self.data)

    def lose_power(self) -> dict[str, bytes | None]:
        """Lose the power, and return what is left: the content of each file, and None for a directory."""
        (self.record / LOSE_POWER_FILE).touch()
        self.start()
        assert not (self.record / LOSE_POWER_FILE).exists()
        found = {path.relative_to(self.data).as_posix(): path for path in self.data.rglob("*")}
        return {name: None if path.is_dir() else path.read_bytes() for name, path in found.items()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


LEFT: dict[str, bytes | None] = {"old": b"old", ".lock": b""}


def test_unsynced_content_and_names_are_lost(machine: Machine) -> None:
    fs = machine.fs
    synced, unsynced = (
        machine.create(name, b"abc", is_synced=name == "synced") for name in ("synced", "not")
    )
    assert fs.make_directory(machine.data / ".directory-0")
    machine.sync_names()
    fs.write(synced, [b"def"], position=3)
    nameless = machine.create("nameless", b"abc", is_synced=True)
    fs.close(machine.create(".directory-0/log", b"abc", is_synced=True))
    for descriptor in (synced, unsynced, nameless):
        fs.close(descriptor)
    assert machine.lose_power() == {**LEFT, "synced": b"abc", "not": b"", ".directory-0": None}
    # What is left counts as synced: the next power loss leaves it, too.
    assert machine.lose_power() == {**LEFT, "synced": b"abc", "not": b"", ".directory-0": None}


def test_unsynced_renames_and_deletions_are_undone(machine: Machine) -> None:
    fs, data = machine.fs, machine.data
    for name in ("renamed", "truncated", "target"):
        descriptor = machine.create(name, name.encode(), is_synced=True)
        fs.truncate(descriptor, 1 if name == "truncated" else len(name))
        fs.close(descriptor)
    assert fs.make_directory(data / "t-0")
    fs.close(machine.create("t-0/log", b"records", is_synced=True))
    machine.sync_names()
    before = dict(LEFT, renamed=b"renamed", truncated=b"truncated", target=b"target") | {
        "t-0": None,
        "t-0/log": b"records",
    }
    fs.rename(data / "renamed", data / "target")
    fs.unlink(data / "old")
    fs.remove_tree(data / "t-0")
    # A new file must not get the record of a deleted one, whose inode the kernel would use again.
    fs.close(machine.create("new", b"new", is_synced=False))
    assert machine.lose_power() == before
    fs.rename(data / "renamed", data / "target")
    fs.remove_tree(data / "t-0")
    machine.sync_names()
    assert machine.lose_power() == dict(LEFT, target=b"renamed", truncated=b"truncated")
    assert len(os.listdir(machine.record / "inodes")) == len(os.listdir(machine.record / "contents")) == 3


def test_replaced_file_has_old_or_new_content(machine: Machine) -> None:
    path = machine.data / "checkpoint"
    replace_file(machine.fs, path, b"first")
    replace_file(machine.fs, path, b"second", durable=False)
    assert machine.lose_power()["checkpoint"] == b"first"
    replace_file(machine.fs, path, b"third")
    assert machine.lose_power()["checkpoint"] == b"third"


def test_marks_of_a_file_are_those_of_its_last_sync(machine: Machine) -> None:
    descriptor = machine.create("log", b"abc", is_synced=False)
    machine.fs.write_synced_mark(descriptor, 2)
    if machine.fs.read_synced_mark(descriptor) != 2:
        pytest.skip("the file system has no extended attributes")
    machine.fs.sync(descriptor)
    machine.sync_names()
    machine.fs.write_synced_mark(descriptor, 3)
    machine.fs.close(descriptor)
    assert machine.lose_power()["log"] == b"abc"
    descriptor = machine.fs.open(machine.data / "log")
    assert machine.fs.read_synced_mark(descriptor) == 2
    machine.fs.close(descriptor)


def test_record_outlives_a_restart_and_not_a_restore(machine: Machine) -> None:
    for is_restored, content in ((False, b""), (True, b"abc")):
        machine.fs.close(machine.create(f"file-{is_restored}", b"abc", is_synced=False))
        machine.sync_names()
        machine.start(is_restored=is_restored)
        assert machine.lose_power()[f"file-{is_restored}"] == content


@pytest.mark.parametrize("content", [b"", b"[", b"{}", b'[["\xff",1,false]]', b'[["a",1]]'])
def test_damaged_record_keeps_the_present_data(machine: Machine, content: bytes) -> None:
    (machine.record / "names.json").write_bytes(content)
    (machine.record / LOSE_POWER_FILE).touch()
    message = r"^[^\n]*names.json: the record of synced files is damaged \([^\n]+\); remove [^\n]*/power to start"
    with pytest.raises(Corrupt, match=message):
        machine.start()
    assert (machine.data / "old").read_bytes() == b"old"
