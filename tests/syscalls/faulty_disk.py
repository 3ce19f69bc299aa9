"""FaultyDisk: a RecordingFs whose n-th call fails with a chosen error, and the errors that each call can have."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from kproc.broker.storage.fs import Buffer, failure
from kproc.common.clock import Clock
from tests.powerloss.disk import Inode, RecordingFs

SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT})
_OPEN: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
_NAME: Final = (errno.ENOSPC, errno.ENOMEM, errno.EIO)
_LOOK: Final = (errno.ENOMEM, errno.EIO)
# What the call can report, by the manual pages of Linux. Errors of a wrong call (EBADF, EINVAL) are left out.
ERRORS: Final[dict[str, tuple[int, ...]]] = {
    "open": _OPEN,
    "create": (*_OPEN, errno.ENOSPC, errno.EDQUOT),
    "open_directory": _OPEN,
    "list_directory": _OPEN,
    "read_file": _OPEN,
    "make_directory": (*_NAME, errno.EDQUOT),
    "rename": _NAME,
    "unlink": (errno.ENOMEM, errno.EIO, errno.EROFS),
    "read": _LOOK,
    "write": (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EIO),
    "truncate": (errno.ENOMEM, errno.EIO),
    "sync": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "write_synced_mark": (errno.EIO,),  # OsFs passes over a shortage: the old mark is lower, and true.
    "write_aborted_mark": (errno.EIO,),
    "read_aborted_mark": (errno.EIO,),
    "write_newest_mark": (errno.EIO,),
    "read_newest_mark": (errno.EIO,),
    "write_start_mark": (errno.EIO,),
    "read_start_mark": (errno.EIO,),
    "facts": _LOOK,
    "facts_at": _LOOK,
    "set_modified": _LOOK,
}


class FaultyDisk(RecordingFs):
    """Counts calls from `arm` on. `calls` names them, so that a first run says what a sweep can fail."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.calls: list[str] = []
        self.error = 0
        self.fails_at = 0  # Which call, counted from 1; 0: none.
        self.stays = False  # Every later call of that kind fails, too, until `heal`.
        self.is_counting = False

    def arm(self, fails_at: int, error: int, *, stays: bool = False) -> None:
        self.calls, self.is_counting = [], True
        self.fails_at, self.error, self.stays = fails_at, error, stays

    def heal(self) -> None:
        self.is_counting = False

    @property
    def has_failed(self) -> bool:
        return 0 < self.fails_at <= len(self.calls)

    def _fails(self, kind: str) -> bool:
        """Return True if this call fails."""
        if not self.is_counting:
            return False
        self.calls.append(kind)
        if not self.fails_at or len(self.calls) < self.fails_at:
            return False
        return len(self.calls) == self.fails_at or (self.stays and kind == self.calls[self.fails_at - 1])

    def _raise(self, kind: str) -> None:
        raise failure(OSError(self.error, os.strerror(self.error)), kind)

    def write(self, descriptor: int, buffers: Sequence[Buffer], *, position: int) -> None:
        """A write that fails may have taken any part: here it takes half."""
        if self._fails("write"):
            content = b"".join(map(bytes, buffers))
            super().write(descriptor, [content[: len(content) // 2]], position=position)
            self._raise("write")
        super().write(descriptor, buffers, position=position)

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        if self._fails("create" if create else "open"):
            self._raise(f"open {path}")
        return super().open(path, create=create, writable=writable)

    def exists(self, path: Path) -> bool:
        return self.facts_at(path) is not None

    def facts_at(self, path: Path) -> Inode | None:
        if self._fails("facts_at"):
            self._raise(f"stat {path}")
        return super().facts_at(path)


def _counted(kind: str) -> Callable[..., Any]:
    real = getattr(RecordingFs, kind)

    def call(self: FaultyDisk, *arguments: Any, **more: Any) -> Any:
        if self._fails(kind):
            self._raise(kind)
        return real(self, *arguments, **more)

    return call


for _kind in ERRORS.keys() - {"open", "create", "write", "facts_at"}:
    setattr(FaultyDisk, _kind, _counted(_kind))
