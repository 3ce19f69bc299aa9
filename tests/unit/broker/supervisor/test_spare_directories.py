"""Directories that a restore keeps for the next one: which it keeps, and how many."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.supervisor import spare_directories
from kproc.broker.supervisor.spare_directories import SpareDirectories


def make_directory(path: Path, size: int = 10) -> Path:
    path.mkdir()
    (path / "00.log").write_bytes(bytes(size))
    return path


def test_spare_directory_of_the_same_name_is_preferred(tmp_path: Path) -> None:
    made = [make_directory(tmp_path / f"{topic}-0", 10 + i) for i, topic in enumerate("abcd")]
    SpareDirectories(tmp_path / "spare").keep_or_delete(made)
    assert not any(path.exists() for path in made)
    spare = SpareDirectories(tmp_path / "spare")  # Of the next restore.
    assert all(spare.move_to(path, 0o700) for path in (*made[1:], tmp_path / "new-0"))
    assert [(path / "00.log").stat().st_size for path in made[1:]] == [11, 12, 13]
    assert (tmp_path / "new-0" / "00.log").stat().st_size == 10
    assert not spare.move_to(tmp_path / "more-0", 0o700)
    assert os.listdir(tmp_path / "spare") == []


def test_directories_that_cannot_be_overwritten_are_deleted(tmp_path: Path) -> None:
    names = ("link-0", "subdirectory-0", "hardlink-0", "symlink-0", "plain-0")
    elsewhere = make_directory(tmp_path / "elsewhere")
    (tmp_path / "link-0").symlink_to(elsewhere)
    for name in names[1:]:
        make_directory(tmp_path / name)
    (tmp_path / "subdirectory-0" / "00").mkdir()
    (tmp_path / "hardlink-0" / "01.log").hardlink_to(elsewhere / "00.log")
    (tmp_path / "symlink-0" / "01.log").symlink_to(elsewhere / "00.log")
    (tmp_path / "checkpoint").touch()
    SpareDirectories(tmp_path / "spare").keep_or_delete([tmp_path / name for name in (*names, "checkpoint")])
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "spare"]
    assert os.listdir(elsewhere) == ["00.log"]
    assert os.listdir(tmp_path / "spare") == ["plain-0"]


@pytest.mark.parametrize(
    ("bound", "value"), [("_DIRECTORIES_MAX", 2), ("_BYTES_MAX", 20_000), ("_SHARE_OF_FREE_SPACE", 1 << 62)]
)
def test_spare_directories_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    """Two directories of 8 KiB fit. The third one does not, nor one that has the name of a spare directory."""
    monkeypatch.setattr(spare_directories, bound, value)
    for names in (["a-0"], ["b-0", "c-0"], ["a-0", "d-0"]):
        made = [make_directory(tmp_path / name, 8192) for name in names]
        SpareDirectories(tmp_path / "spare").keep_or_delete(made)
    assert os.listdir(tmp_path) == ["spare"]
    kept = [] if bound == "_SHARE_OF_FREE_SPACE" else ["a-0", "b-0"]
    assert sorted(os.listdir(tmp_path / "spare")) == kept


def test_directory_that_cannot_be_renamed_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    made = make_directory(tmp_path / "a-0")
    spare = SpareDirectories(tmp_path / "spare")
    monkeypatch.setattr(Path, "rename", refused)
    spare.keep_or_delete([made])
    assert os.listdir(tmp_path) == ["spare"]
    assert not spare.move_to(made, 0o700)
