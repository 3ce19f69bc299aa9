"""Only a whole run keeps its temporary files in memory, and only if there is room."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import memory_directory
from tests.support.memory_directory import DISK_VARIABLE, chosen_memory_directory


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, disk_path: Path) -> Path:
    """Stands for /dev/shm. A file system of a disk has extended attributes, too."""
    monkeypatch.setattr(memory_directory, "MEMORY_DIRECTORY", disk_path)
    monkeypatch.setattr(memory_directory, "FREE_BYTES_MIN", 1)
    monkeypatch.delenv("TMPDIR")
    return disk_path


def config(*, is_whole: bool = True, basetemp: str | None = None) -> pytest.Config:
    source = pytest.Config.ArgsSource.TESTPATHS if is_whole else pytest.Config.ArgsSource.ARGS
    options = SimpleNamespace(basetemp=basetemp, keyword="")
    return SimpleNamespace(args_source=source, option=options)  # type: ignore[return-value]


def test_whole_run_uses_memory(memory: Path) -> None:
    assert chosen_memory_directory(config()) == memory


def test_chosen_tests_or_directories_stay_on_the_disk(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_memory_directory(config(is_whole=False)) is None
    assert chosen_memory_directory(config(basetemp="/x")) is None
    monkeypatch.setenv("TMPDIR", "/x")
    assert chosen_memory_directory(config()) is None


def test_too_little_memory_or_none_means_the_disk(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_directory, "FREE_BYTES_MIN", 1 << 60)
    assert chosen_memory_directory(config()) is None
    monkeypatch.setattr(memory_directory, "FREE_BYTES_MIN", 1)
    monkeypatch.setattr(memory_directory, "MEMORY_DIRECTORY", memory / "absent")
    assert chosen_memory_directory(config()) is None


def test_disk_path_is_below_the_directory_of_the_disk(disk_path: Path) -> None:
    assert disk_path.parent == Path(os.environ[DISK_VARIABLE])
