"""Opens files by paths that a user or another program chose, without waiting for another process.

open(2) of a FIFO blocks until another process opens its other end, and a device such as /dev/zero has no end. A role
that reads such a path would block all its clients, so `open_regular` and `read_regular` reject everything but regular
files. Commands use `read_bounded`, which also reads pipes: a shell passes them for `<(...)`, and /dev/stdin can be one.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from pathlib import Path
from typing import BinaryIO, Final

FILE_BYTES_MAX: Final = 16 << 20
"""Limit of a file of settings, a key store or a specification, whose real sizes are a few KB."""
# A FIFO can get its writer only after its reader, because a shell starts both at the same time.
WRITER_WAIT_S: Final = 5.0
_LOOK_MS: Final = 20


def open_regular(path: str | Path, flags: int, mode: int = 0o600) -> int:
    """Open a file and return its descriptor. Raise OSError for a FIFO, socket, device or directory."""
    descriptor, kind = _open_at_once(path, flags, mode)
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    raise _not_regular(path)


def _open_at_once(path: str | Path, flags: int, mode: int = 0) -> tuple[int, int]:
    """Open a file without waiting. Return its descriptor and st_mode. Raise OSError for a socket or a directory."""
    try:
        # With O_NONBLOCK, open(2) of a FIFO or a device does not block. The flag has no effect on regular files.
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    except OSError as error:
        # ENXIO: the path is a socket, or a FIFO without a reader that was opened for writing (open(2)).
        if error.errno == errno.ENXIO:
            raise _not_regular(path) from error
        raise
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(kind):
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return descriptor, kind


def read_regular(path: str | Path, bytes_max: int) -> bytes:
    """Return the content of a file. Raise OSError as `open_regular`, and EFBIG for more than `bytes_max` bytes."""
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        return _read_up_to(file, bytes_max, path)


def read_bounded(path: str | Path, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """Return the content of a file, which can be a pipe or a device. Not for roles, because a pipe can block.

    Raise OSError also for a FIFO that gets no writer within WRITER_WAIT_S, for more than `bytes_max` bytes, such as of
    /dev/zero, and for a path with a NUL.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "A path has no NUL", str(path))
    descriptor, kind = _open_at_once(path, os.O_RDONLY)
    with open(descriptor, "rb") as file:
        first = _await_writer(descriptor, path) if stat.S_ISFIFO(kind) else b""
        os.set_blocking(descriptor, True)
        return _read_up_to(file, bytes_max, path, first)


def _await_writer(descriptor: int, path: str | Path) -> bytes:
    """Wait until a FIFO, which was opened with O_NONBLOCK, has or had a writer.

    Return the bytes that were read for this, usually none. Raise OSError if no writer comes within WRITER_WAIT_S.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    end = time.monotonic() + WRITER_WAIT_S
    # poll(2) reports data, and a writer that has closed its end. It does not report a writer that writes later.
    while not poll.poll(_LOOK_MS):
        try:
            first = os.read(descriptor, 1)
        except BlockingIOError:
            return b""  # There is a writer.
        if first:
            return first
        if time.monotonic() >= end:
            raise OSError(errno.EINVAL, "Not a regular file but a FIFO that no process writes to", str(path))
    return b""


def read_bounded_text(path: str | Path, bytes_max: int = FILE_BYTES_MAX) -> str:
    """Return the UTF-8 text of a file as `read_bounded` does, with every line end as a newline."""
    return read_bounded(path, bytes_max).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def _read_up_to(file: BinaryIO, bytes_max: int, path: str | Path, first: bytes = b"") -> bytes:
    data = first + file.read(bytes_max + 1 - len(first))
    if len(data) > bytes_max:
        raise OSError(errno.EFBIG, f"Larger than {bytes_max} bytes", str(path))
    return data


def _not_regular(path: str | Path) -> OSError:
    return OSError(errno.EINVAL, "Not a regular file", str(path))
