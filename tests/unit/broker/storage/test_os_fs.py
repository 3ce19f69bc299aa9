"""OsFs: short writes, files that are not regular, and errors with their number."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kproc.broker.storage.fs import DiskFailed, Shortage, StorageFailure
from kproc.broker.storage.os_fs import OsFs
from tests.support.failing_fs import FailingFs
from tests.support.logs import LogRig, batch, read_all


def test_a_short_write_is_finished(tmp_path: Path) -> None:
    fs = FailingFs()
    rig = LogRig(tmp_path / "t-0", fs=fs)
    log = rig.open()
    fs.shorten_write(after_bytes=100)
    assert [r.error_code for r in log.append([batch("a"), batch("b"), batch("c")])] == [0, 0, 0]
    assert [value for _, value in read_all(log)] == [b"a", b"b", b"c"]
    log.close()


def test_failures_are_os_errors_with_their_number(tmp_path: Path) -> None:
    with pytest.raises(StorageFailure) as caught:
        OsFs().open(tmp_path / "missing")
    assert caught.value.errno == errno.ENOENT
    assert isinstance(caught.value, DiskFailed)


@pytest.mark.parametrize("kind", ["fifo", "directory", "device"])
def test_file_that_is_not_regular_is_rejected(tmp_path: Path, kind: str) -> None:
    """open(2) of a FIFO blocked the Handler for ever."""
    path = tmp_path / "00000000000000000500.snapshot"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    before = len(os.listdir("/proc/self/fd"))
    reason = "Is a directory" if kind == "directory" else "Not a regular file"
    with pytest.raises(StorageFailure, match=reason):
        OsFs().read_file(path)
    for writable in (False, True):
        with pytest.raises(StorageFailure, match=reason):
            OsFs().open(path, writable=writable)
    assert len(os.listdir("/proc/self/fd")) == before


def test_read_without_memory_is_a_shortage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python allocates the bytes before it reads them, and raises MemoryError instead of ENOMEM."""
    (tmp_path / "file").write_bytes(b"content")
    fs = OsFs()
    descriptor = fs.open(tmp_path / "file")

    def pread(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(Shortage) as short:
        fs.read(descriptor, 4, position=0)
    assert short.value.errno == errno.ENOMEM
    monkeypatch.undo()
    assert fs.read(descriptor, 4, position=0) == b"cont"
    fs.close(descriptor)
