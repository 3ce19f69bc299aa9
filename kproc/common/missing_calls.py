"""Add the Linux calls that kproc needs to a Python that was built without them.

Portable builds of Python, such as those that `uv python install` fetches, are compiled against headers of an old glibc.
Their `os`, `signal` and `fcntl` lack memfd_create, pidfd_open, pidfd_send_signal, copy_file_range and their constants,
although the C library and the kernel of the host have them. The functions here have the signatures of the standard
library's. `kproc/__init__.py` calls `add_missing` before any other module of kproc runs; a complete Python never
imports this module.
"""

from __future__ import annotations

import fcntl
import os
import signal
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import ctypes

# The numbers of system calls above 423 are the same on every architecture that kproc runs on
# (linux/include/uapi/asm-generic/unistd.h).
_PIDFD_SEND_SIGNAL: Final = 424
_PIDFD_OPEN: Final = 434


@cache
def _library() -> ctypes.CDLL:
    # Import ctypes at the first call. Its import keeps a file open in these builds, which must not get the number of a
    # standard stream that is closed.
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    size, offset = ctypes.c_size_t, ctypes.POINTER(ctypes.c_int64)
    library.copy_file_range.argtypes = [ctypes.c_int, offset, ctypes.c_int, offset, size, ctypes.c_uint]
    library.copy_file_range.restype = ctypes.c_ssize_t
    library.memfd_create.argtypes = [ctypes.c_char_p, ctypes.c_uint]
    library.syscall.restype = ctypes.c_long
    return library


def _checked(result: int) -> int:
    """Return the result of a call. Raise OSError with the call's errno if it is negative."""
    if result < 0:
        import ctypes

        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def memfd_create(name: str | bytes, flags: int = 1) -> int:
    """Create an anonymous file in memory, closed by exec by default, as os.memfd_create does."""
    return _checked(_library().memfd_create(os.fsencode(name), flags))


def pidfd_open(pid: int, flags: int = 0) -> int:
    """Return a descriptor of a process, as os.pidfd_open does."""
    return _checked(_library().syscall(_PIDFD_OPEN, pid, flags))


def pidfd_send_signal(pidfd: int, signalnum: int, siginfo: None = None, flags: int = 0) -> None:
    """Send a signal to the process of a pidfd, as signal.pidfd_send_signal does."""
    _checked(_library().syscall(_PIDFD_SEND_SIGNAL, pidfd, int(signalnum), siginfo, flags))


def copy_file_range(
    src: int, dst: int, count: int, offset_src: int | None = None, offset_dst: int | None = None
) -> int:
    """Copy bytes between two files inside the kernel, as os.copy_file_range does. Return how many were copied."""
    import ctypes

    start, end = (None if at is None else ctypes.c_int64(at) for at in (offset_src, offset_dst))
    return _checked(_library().copy_file_range(src, start, dst, end, count, 0))


MISSING: Final[dict[ModuleType, dict[str, object]]] = {
    os: {
        "MFD_CLOEXEC": 1,
        "MFD_ALLOW_SEALING": 2,
        "P_PIDFD": 3,
        "memfd_create": memfd_create,
        "pidfd_open": pidfd_open,
        "copy_file_range": copy_file_range,
    },
    signal: {"pidfd_send_signal": pidfd_send_signal},
    fcntl: {
        "F_ADD_SEALS": 1033,
        "F_GET_SEALS": 1034,
        "F_SEAL_SEAL": 1,
        "F_SEAL_SHRINK": 2,
        "F_SEAL_GROW": 4,
        "F_SEAL_WRITE": 8,
    },
}
"""The names that kproc uses and that a portable build can lack, by module."""


def add_missing() -> None:
    """Add each name of MISSING that this Python lacks. Names that it has stay as they are."""
    for module, names in MISSING.items():
        for name, value in names.items():
            if not hasattr(module, name):
                setattr(module, name, value)
