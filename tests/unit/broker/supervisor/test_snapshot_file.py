"""A packed directory: what unpacking it changes, and what it leaves to others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kproc.broker.supervisor.snapshot_file import check_index, pack, unpack
from kproc.broker.supervisor.spare_directories import SpareDirectories
from kproc.common.errors import Corrupt


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A data directory with two partitions and two files, in an order in which a file is between directories."""
    source = tmp_path / "source"
    for name in ("a-0", "b-0"):
        (source / name).mkdir(parents=True)
        (source / name / "00.log").write_bytes(name.encode() * 1000)
        (source / name / "00.index").touch()
    for name in ("meta.properties", "checkpoint"):
        (source / name).write_text(name)
    return source


@pytest.fixture
def spare(tmp_path: Path) -> SpareDirectories:
    return SpareDirectories(tmp_path / "spare")


NAMES = ["meta.properties", "a-0", "checkpoint", "b-0"]


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_unpack_into_an_empty_directory_creates_all(source: Path, tmp_path: Path, spare: SpareDirectories) -> None:
    (source / "a-0").chmod(0o750)
    (source / "a-0" / "00.log").chmod(0o640)
    pack(source, NAMES, tmp_path / "packed")
    (tmp_path / "target").mkdir()
    unpack(tmp_path / "packed", tmp_path / "target", [], spare)
    assert contents(tmp_path / "target") == contents(source)
    modes = [(tmp_path / "target" / name).stat().st_mode & 0o777 for name in ("a-0", "a-0/00.log")]
    assert modes == [0o750, 0o640]


def test_unpack_twice_replaces_longer_shorter_and_new_files(
    source: Path, tmp_path: Path, spare: SpareDirectories
) -> None:
    before = contents(source)
    os.setxattr(source / "a-0", "user.kproc.newest", b"1")
    pack(source, NAMES, tmp_path / "packed")
    for _ in range(2):
        os.setxattr(source / "a-0", "user.kproc.newest", b"2")
        os.setxattr(source / "b-0", "user.kproc.start", b"7")
        (source / "a-0" / "00.log").write_bytes(b"longer" * 1000)
        os.setxattr(source / "a-0" / "00.log", "user.kproc.aborted", b"7")
        (source / "b-0" / "00.log").write_bytes(b"shorter")
        (source / "b-0" / "01.log").write_bytes(b"new")
        (source / "b-0" / "directory").mkdir()
        (source / "c-0").mkdir()
        (source / "checkpoint").unlink()
        unpack(tmp_path / "packed", source, ["a-0", "c-0", "meta.properties"], spare)
        assert contents(source) == before
        assert sorted(os.listdir(source)) == ["a-0", "b-0", "checkpoint", "meta.properties"]
        assert os.listxattr(source / "a-0" / "00.log") == []
        assert (os.getxattr(source / "a-0", "user.kproc.newest"), os.listxattr(source / "b-0")) == (b"1", [])


def test_unpack_leaves_other_links_to_a_file_unchanged(source: Path, tmp_path: Path, spare: SpareDirectories) -> None:
    """A broker that records its syncs for a power loss keeps a link to each file."""
    pack(source, NAMES, tmp_path / "packed")
    log = source / "a-0" / "00.log"
    log.write_bytes(b"later")
    (tmp_path / "link").hardlink_to(log)
    unpack(tmp_path / "packed", source, [], spare)
    assert (tmp_path / "link").read_bytes() == b"later"
    assert log.read_bytes() == b"a-0" * 1000


def test_unpack_replaces_all_of_a_spare_directory(source: Path, tmp_path: Path, spare: SpareDirectories) -> None:
    """The spare directory is another partition's: with other modes, attributes and longer files."""
    os.setxattr(source / "a-0", "user.kproc.newest", b"1")
    before = contents(source)
    pack(source, NAMES, tmp_path / "packed")
    (source / "a-0").rename(source / "other-0")
    other = source / "other-0"
    inode = (other / "00.log").stat().st_ino
    os.setxattr(other, "user.kproc.start", b"7")
    os.setxattr(other / "00.log", "user.kproc.aborted", b"7")
    (other / "00.log").write_bytes(b"longer" * 1000)
    (other / "01.log").write_bytes(b"more")
    (other / "00.log").chmod(0o640)
    other.chmod(0o750)
    unpack(tmp_path / "packed", source, ["other-0", "b-0"], spare)
    assert contents(source) == before
    log = source / "a-0" / "00.log"
    assert log.stat().st_ino == inode
    assert [path.stat().st_mode & 0o777 for path in (log, log.parent)] == [
        path.stat().st_mode & 0o777 for path in (source / "b-0" / "00.log", source / "b-0")
    ]
    assert (os.listxattr(log), os.listxattr(log.parent)) == ([], ["user.kproc.newest"])
    assert os.listdir(tmp_path / "spare") == []


@pytest.mark.long
def test_damaged_index_is_reported_before_anything_changes(
    source: Path, tmp_path: Path, spare: SpareDirectories
) -> None:
    """Each byte of the index and of the trailer, each length, and a file of zeros."""
    packed, damaged = tmp_path / "packed", tmp_path / "damaged"
    pack(source, NAMES, packed)
    check_index(packed)
    content, before = packed.read_bytes(), contents(source)
    index_at = content.index(b'[{"name"')
    cases = [content[:size] for size in (0, 1, 11, 12, 13, index_at, len(content) - 1)]
    cases += [bytes(len(content)), content[:-12] + bytes(12), content[:-12] + b"\xff" * 12, content + b"\0"]
    for at in range(index_at, len(content)):
        cases.append(content[:at] + bytes([content[at] ^ 0x80]) + content[at + 1 :])
    for each in cases:
        damaged.write_bytes(each)
        with pytest.raises(Corrupt, match=r"^[^\n]*/damaged: the snapshot is damaged$"):
            check_index(damaged)
        with pytest.raises(Corrupt, match="the snapshot is damaged"):
            unpack(damaged, source, os.listdir(source), spare)
        assert contents(source) == before
