"""`kproc doctor` without a broker: permissions of its archive, and files that appear or vanish while it reads."""

from __future__ import annotations

import errno
import fcntl
import os
import tarfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.storage.format import LOCK_FILE
from kproc.broker.supervisor.broker_process import VerifiedBroker
from kproc.cli import doctor
from kproc.cli.failure import Failure
from tests.support.command_line import call_kproc

NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("is_there", [False, True])
def test_archive_is_private_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    archive = tmp_path / "a.tar.gz"
    if is_there:
        archive.write_bytes(b"x" * 100_000)
        archive.chmod(0o666)
    seen: list[int] = []

    def files(_report: object) -> Iterator[tuple[str, str]]:
        seen.extend(each.stat().st_mode & 0o777 for each in tmp_path.iterdir() if each != archive)
        yield "one.txt", "kproc"

    monkeypatch.setattr(doctor._DoctorReport, "files", files)
    doctor.doctor(archive, None, NOBODY)
    assert seen == [0o600]
    assert archive.stat().st_mode & 0o777 == 0o600
    with tarfile.open(archive) as found:
        assert [Path(name).name for name in found.getnames()] == ["one.txt"]


def test_doctor_file_list_skips_vanished_and_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.log").write_bytes(b"12345")
    (data / "b.log").write_bytes(b"")
    (data / "c.log").write_bytes(b"123")
    (data / os.fsdecode(b"d\xff.log")).write_bytes(b"")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_bytes(b"1234567")
    (data / "e").symlink_to(tmp_path / "elsewhere")
    (data / "f").symlink_to(tmp_path / "elsewhere" / "secret")
    real = os.stat

    def vanish(path: object, **options: Any) -> os.stat_result:
        """Remove the file, for the reader, after the directory was read."""
        if path == "b.log":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return real(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(doctor.os, "stat", vanish)
    monkeypatch.setattr(doctor._DoctorReport, "_make_status", lambda report: _known(report, data))
    archive = tmp_path / "a.tar.gz"
    lock = os.open(data / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        doctor.doctor(archive, None, NOBODY)
    finally:
        os.close(lock)
    with tarfile.open(archive) as found:
        (name,) = [each for each in found.getnames() if each.endswith("/files.txt")]
        content = found.extractfile(name)
        assert content is not None
        lines = [line.split() for line in content.read().decode().splitlines()]
    sizes = {Path(line[2]).name: line[0] for line in lines}
    link = str(len(str(tmp_path / "elsewhere" / "secret")))
    assert sizes == {".lock": "0", "a.log": "5", "b.log:": "-", "c.log": "3", "d\\udcff.log": "0", "f": link}
    assert lines[2][2:] == [f"{data}/b.log:", "No", "such", "file", "or", "directory"]


def test_doctor_replaces_another_users_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default name can be predicted: in /tmp it may be a link to a file of ours."""
    ours, archive = tmp_path / "ours", tmp_path / "a.tar.gz"
    ours.write_bytes(b"kept")
    archive.symlink_to(ours)
    monkeypatch.setattr(doctor._DoctorReport, "files", lambda _report: iter([("one.txt", "kproc")]))
    doctor.doctor(archive, None, NOBODY)
    assert ours.read_bytes() == b"kept"
    assert not archive.is_symlink()
    assert [each.name for each in tmp_path.iterdir() if each.name.endswith(".part")] == []


def _known(report: doctor._DoctorReport, data: Path) -> str:
    report._status = {"data": str(data), "metrics": None, "processes": []}
    report._process = VerifiedBroker(os.getpid())
    return "{}"


def test_doctor_refuses_to_replace_what_is_no_file(tmp_path: Path) -> None:
    """Root's `kproc doctor --output /dev/null` took the device from the host."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(Failure, match="is not a regular file"):
        doctor.doctor(path, None, NOBODY)
    assert path.is_fifo()


def test_versions_are_shown_for_uninstalled_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", unknown)
    monkeypatch.setattr(metadata, "version", unknown)
    assert doctor._versions().startswith("kproc not installed as a package\npython ")


def test_doctor_hides_passwords_of_urls() -> None:
    text = doctor.hidden('"sasl.oauthbearer.jwks.endpoint.url": "https://user:hunter2@host/keys?t=hunter2"')
    assert "hunter2" not in text


def test_problem_of_the_status_is_printed() -> None:
    report = doctor._DoctorReport("127.0.0.1:9092", None)
    report._status = {"problem": "the disk of /data is full in 16 h", "data": "/data"}
    assert report.findings() == ["problem: the disk of /data is full in 16 h"]


def test_doctor_rejects_log_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It wrote an archive without the log and ended with exit status 0."""
    archive = tmp_path / "a.tar.gz"
    for log, problem in ((tmp_path / "missing", "No such file or directory"), (tmp_path, "name a regular file")):
        done = call_kproc(capsys, "doctor", "--log", str(log), "--output", str(archive), "-b", NOBODY)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert str(log) in done.stderr
        assert problem in done.stderr
        assert not archive.exists()
