"""Opens files by paths that a user or another program chose, without waiting for another process.

open(2) of a FIFO blocks until another process opens its other end, and a device such as /dev/zero has no end. A role
that reads such a path would block all its clients, so these functions reject everything but regular files.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

FILE_BYTES_MAX: Final = 16 << 20
"""Limit of a file of settings, a key store or a specification, whose real sizes are a few KB."""


def open_regular(path: str | Path, flags: int, mode: int = 0o600) -> int:
    """Open a file and return its descriptor. Raise OSError for a FIFO, socket, device or directory."""
    try:
        # With O_NONBLOCK, open(2) of a FIFO or a device does not block. The flag has no effect on regular files.
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    except OSError as error:
        # ENXIO: the path is a socket, or a FIFO without a reader that was opened for writing (open(2)).
        if error.errno == errno.ENXIO:
            raise _not_regular(path) from error
        raise
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise _not_regular(path)


def read_regular(path: str | Path, bytes_max: int) -> bytes:
    """Return the content of a file. Raise OSError as `open_regular`, and EFBIG for more than `bytes_max` bytes."""
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        return _read_up_to(file, bytes_max, path)


def read_bounded(path: str | Path, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """Return the content of a file, which can be a pipe. Not for roles, because a FIFO can block.

    Raise OSError also for more than `bytes_max` bytes, such as of /dev/zero, and for a path with a NUL.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "A path has no NUL", str(path))
    with open(path, "rb") as file:
        return _read_up_to(file, bytes_max, path)


def read_bounded_text(path: str | Path, bytes_max: int = FILE_BYTES_MAX) -> str:
    """Return the UTF-8 text of a file as `read_bounded` does, with every line end as a newline."""
    return read_bounded(path, bytes_max).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def _read_up_to(file: BinaryIO, bytes_max: int, path: str | Path) -> bytes:
    data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise OSError(errno.EFBIG, f"Larger than {bytes_max} bytes", str(path))
    return data


def _not_regular(path: str | Path) -> OSError:
    return OSError(errno.EINVAL, "Not a regular file", str(path))
