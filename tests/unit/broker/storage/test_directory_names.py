"""Names in a partition's directory: what a crash left over is removed, and lost segments are noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.storage.directory_names import (
    check_newest,
    finish_interrupted,
    log_bases,
    read_newest_mark,
)
from kproc.broker.storage.os_fs import OsFs
from kproc.common.errors import Corrupt

ZERO, TEN = f"{0:020}", f"{10:020}"


def test_interrupted_deletions_and_writes_are_finished(tmp_path: Path) -> None:
    kept = [
        f"{ZERO}.log",
        f"{ZERO}.index",
        f"{TEN}.log",
        f"{TEN}.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    # An owner that died before file.delete.delay.ms, one that died in replace_file(), and indexes of a lost name.
    left = [f"{20:020}.log.deleted", f"{TEN}.timeindex.tmp", f"{30:020}.index", f"{30:020}.timeindex"]
    for name in kept + left:
        (tmp_path / name).touch()
    names = [path.name for path in tmp_path.iterdir()]
    assert log_bases(names) == [0, 10]
    assert finish_interrupted(OsFs(), tmp_path, names) == ([0, 10], [10])
    assert {path.name for path in tmp_path.iterdir()} == set(kept)


def test_removed_torn_segment_is_synced_before_its_file_goes(tmp_path: Path) -> None:
    """An earlier recovery renamed the segment behind the torn tail and died before it synced the new name."""
    events: list[str] = []

    class RecordingFs(OsFs):
        def sync(self, descriptor: int) -> None:
            events.append("sync")
            super().sync(descriptor)

        def unlink(self, path: Path) -> bool:
            events.append(path.name)
            return super().unlink(path)

    for base, suffix in ((0, ".log"), (10, ".log"), (20, ".log.deleted")):
        (tmp_path / f"{base:020}{suffix}").touch()
    finish_interrupted(RecordingFs(), tmp_path, [path.name for path in tmp_path.iterdir()])
    assert events == ["sync", f"{20:020}.log.deleted"]


def test_missing_newest_segment_is_corrupt_if_not_deleted(tmp_path: Path) -> None:
    check_newest(tmp_path, [0, 10], None, 0)
    check_newest(tmp_path, [0, 10], 10, 0)
    check_newest(tmp_path, [0, 10, 20], 10, 0)
    check_newest(tmp_path, [], 10, 11)
    for bases in ([], [0]):
        with pytest.raises(Corrupt, match="no segment from offset 10 on"):
            check_newest(tmp_path, bases, 10, 10)


def test_directory_without_a_mark_has_none(tmp_path: Path) -> None:
    assert read_newest_mark(OsFs(), tmp_path) is None
