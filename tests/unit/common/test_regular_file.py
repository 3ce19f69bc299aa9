"""Files at paths of other users: only regular ones within a bound, without a descriptor left open."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kproc.common import regular_file
from kproc.common.regular_file import open_regular, read_bounded, read_bounded_text, read_regular
from tests.support.wait import PATIENCE_SECONDS


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_APPEND])
@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "directory"])
def test_path_that_is_no_regular_file_is_rejected(tmp_path: Path, kind: str, flags: int) -> None:
    path = tmp_path / "f"
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "socket":
            listener.bind(str(path))
        elif kind == "device":
            path.symlink_to("/dev/null")
        else:
            path.mkdir()
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match="Is a directory" if kind == "directory" else "Not a regular file") as caught:
            open_regular(path, flags)
        assert str(path) in str(caught.value)
        assert len(os.listdir("/proc/self/fd")) == before


def test_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="Larger than 4 bytes"):
        read_regular(path, 4)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "missing", 4)


@pytest.mark.parametrize(
    ("read", "expected"), [(read_bounded, "größe\r\n".encode()), (read_bounded_text, "größe\n")]
)
def test_pipe_and_device_are_read_up_to_the_bound(
    read: Callable[[str, int], object], expected: object
) -> None:
    reading, writing = os.pipe()
    os.write(writing, "größe\r\n".encode())
    os.close(writing)
    assert read(f"/dev/fd/{reading}", 9) == expected
    os.close(reading)
    for path, problem in (("/dev/zero", "Larger than 9 bytes"), ("a\0b", "A path has no NUL")):
        with pytest.raises(OSError, match=problem):
            read(path, 9)


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory"])
def test_path_that_nothing_can_be_read_from_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(regular_file, "WRITER_WAIT_S", 0.1)
    path = tmp_path / "f"
    problems = {
        "fifo": "Not a regular file but a FIFO that no process writes to",
        "socket": "Not a regular file",
        "directory": "Is a directory",
    }
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "socket":
            listener.bind(str(path))
        else:
            path.mkdir()
        before = len(os.listdir("/proc/self/fd"))
        caught: list[OSError] = []

        def read() -> None:
            try:
                read_bounded(path)
            except OSError as error:
                caught.append(error)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(PATIENCE_SECONDS)
        assert [(each.strerror, each.filename) for each in caught] == [(problems[kind], str(path))]
        assert len(os.listdir("/proc/self/fd")) == before


def test_fifo_is_read_when_its_writer_comes(tmp_path: Path) -> None:
    path = tmp_path / "f"
    os.mkfifo(path)
    writer = threading.Timer(0.1, path.write_bytes, [b"late"])
    writer.start()
    assert read_bounded(path) == b"late"
    writer.join()


def test_slow_writer_of_a_fifo_has_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_file, "WRITER_WAIT_S", 0)
    path = tmp_path / "f"
    os.mkfifo(path)
    # O_RDWR opens a FIFO without a reader.
    writing = os.open(path, os.O_RDWR)

    def write() -> None:
        os.write(writing, b"slow")
        os.close(writing)

    writer = threading.Timer(0.2, write)
    writer.start()
    assert read_bounded(path) == b"slow"
    writer.join()


def test_pipe_whose_writer_wrote_nothing_is_empty() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    assert read_bounded(f"/dev/fd/{reading}") == b""
    os.close(reading)


def test_new_file_gets_the_mode(tmp_path: Path) -> None:
    os.close(open_regular(tmp_path / "f", os.O_WRONLY | os.O_CREAT, 0o640))
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640 & ~_umask()


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
