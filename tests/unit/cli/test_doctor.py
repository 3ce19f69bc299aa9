"""`kproc doctor` without a broker: who may read its archive, and files that come and go while it looks."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from kproc.cli import doctor

NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("is_there", [False, True])
def test_the_archive_is_its_owners_alone_before_anything_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    archive = tmp_path / "a.tar.gz"
    if is_there:
        archive.write_bytes(b"x" * 100_000)
        archive.chmod(0o666)
    seen: list[int] = []

    def files(_report: object) -> Iterator[tuple[str, str]]:
        seen.append(archive.stat().st_mode & 0o777)
        yield "one.txt", "kproc"

    monkeypatch.setattr(doctor._Report, "files", files)
    doctor.doctor(archive, None, NOBODY)
    assert seen == [0o600]
    assert archive.stat().st_mode & 0o777 == 0o600
    with tarfile.open(archive) as found:
        assert [Path(name).name for name in found.getnames()] == ["one.txt"]


def test_a_file_that_vanishes_while_it_lists_keeps_no_other_from_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.log").write_bytes(b"12345")
    (data / "b.log").symlink_to("gone")  # As one that was there when the names were read.
    (data / "c.log").write_bytes(b"123")
    (data / os.fsdecode(b"d\xff.log")).write_bytes(b"")
    monkeypatch.setattr(doctor._Report, "_make_status", lambda report: _known(report, data))
    archive = tmp_path / "a.tar.gz"
    doctor.doctor(archive, None, NOBODY)
    with tarfile.open(archive) as found:
        (name,) = [each for each in found.getnames() if each.endswith("/files.txt")]
        content = found.extractfile(name)
        assert content is not None
        lines = [line.split() for line in content.read().decode().splitlines()]
    assert [line[0] for line in lines] == ["5", "-", "3", "0"]
    assert lines[1][2:] == [f"{data}/b.log:", "No", "such", "file", "or", "directory"]


def _known(report: doctor._Report, data: Path) -> str:
    report._status = {"data": str(data), "metrics": None, "processes": []}
    return "{}"


def test_versions_are_told_also_of_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", unknown)
    monkeypatch.setattr(metadata, "version", unknown)
    assert doctor._versions().startswith("kproc not installed as a package\npython ")
