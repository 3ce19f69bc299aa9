"""Segment files that a Processor keeps open: the right inode or none, and no descriptor for ever."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.processor.files import FileCache, StaleFile


@pytest.fixture
def cache() -> Iterator[FileCache]:
    made = FileCache()
    yield made
    made.close()


def files_of(cache: FileCache) -> dict[bytes, Any]:
    """The files that it keeps open, by path."""
    return cache._files


def wanted(path: Path, inode: int | None = None) -> tuple[bytes, int]:
    return os.fsencode(path), path.stat().st_ino if inode is None else inode


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_file_is_opened_once(cache: FileCache, tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"x")
    first = cache.get(*wanted(path))
    assert cache.get(*wanted(path)) is first
    assert os.pread(first.fd, 1, 0) == b"x"


def test_file_that_was_replaced_is_stale(cache: FileCache, tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"old")
    before = wanted(path)
    path.rename(tmp_path / "kept")
    path.write_bytes(b"new")
    with pytest.raises(StaleFile, match="was replaced"):
        cache.get(*before)
    assert os.pread(cache.get(*wanted(path)).fd, 3, 0) == b"new"


def test_compacted_away_file_is_served_by_its_deleted_name(
    cache: FileCache, tmp_path: Path
) -> None:
    """The answer was made before the swap; the Processor opens the file after it."""
    path = tmp_path / "0.log"
    path.write_bytes(b"old")
    before = wanted(path)
    path.rename(tmp_path / "0.log.deleted")
    path.write_bytes(b"new")
    assert os.pread(cache.get(*before).fd, 3, 0) == b"old"
    assert os.pread(cache.get(*wanted(path)).fd, 3, 0) == b"new"


def test_open_file_is_served_after_it_was_renamed(cache: FileCache, tmp_path: Path) -> None:
    """The answer was made before the rename, and its bytes are still those."""
    path = tmp_path / "0.log"
    path.write_bytes(b"old")
    before = wanted(path)
    opened = cache.get(*before)
    path.rename(tmp_path / "0.log.deleted")
    path.write_bytes(b"new")
    assert cache.get(*before) is opened


def test_successor_of_a_file_takes_its_place(cache: FileCache, tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"old")
    old_fd = cache.get(*wanted(path)).fd
    path.rename(tmp_path / "0.log.deleted")
    path.write_bytes(b"new")
    new = cache.get(*wanted(path))
    assert os.pread(new.fd, 3, 0) == b"new"
    assert not is_open(old_fd) or new.fd == old_fd


def test_missing_file_is_an_os_error(cache: FileCache, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        cache.get(*wanted(tmp_path / "none", inode=1))


def test_oldest_file_is_closed_when_there_are_too_many(
    cache: FileCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_limit", 3)
    paths = [tmp_path / f"{number}.log" for number in range(5)]
    fds = []
    for path in paths:
        path.write_bytes(b"x")
        fds.append(cache.get(*wanted(path)).fd)
    assert len(files_of(cache)) == 3
    assert list(files_of(cache)) == [os.fsencode(path) for path in paths[2:]]


def test_file_in_use_stays_open_when_the_cache_lets_go(cache: FileCache, tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"x")
    held = cache.get(*wanted(path))
    cache.close()
    assert os.pread(held.fd, 1, 0) == b"x"
    fd = held.fd
    del held
    assert not is_open(fd)


def test_deleted_files_are_let_go_so_that_their_space_is_freed(cache: FileCache, tmp_path: Path) -> None:
    gone, renamed = tmp_path / "0.log", tmp_path / "1.log"
    for path in (gone, renamed):
        path.write_bytes(b"x")
        cache.get(*wanted(path))
    fd = cache.get(*wanted(gone)).fd
    gone.unlink()
    renamed.rename(tmp_path / "1.log.deleted")
    cache.drop_unlinked()
    assert list(files_of(cache)) == [os.fsencode(renamed)]
    assert not is_open(fd)


def test_fifo_in_the_place_of_a_segment_does_not_block(cache: FileCache, tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    os.mkfifo(path)
    with pytest.raises(StaleFile):
        cache.get(os.fsencode(path), 1)
