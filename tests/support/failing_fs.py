"""FailingFs: the real file system, with one system call that fails as a test says.

    fs = FailingFs()
    fs.fail_write(nth=3, after_bytes=100, error=errno.ENOSPC)   # the third write takes 100 bytes, then fails
    fs.fail_sync(nth=1)                                         # the first sync reports EIO

Counting starts with the call that arms a failure. `calls` is the trace, for tests of order.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from kproc.broker.storage.fs import Buffer, failure
from kproc.broker.storage.os_fs import OsFs

_pwritev = os.pwritev


class FailingFs(OsFs):
    """An OsFs whose nth write, sync, truncation or creation fails."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._write: tuple[int, int, int, bool] | None = None  # countdown, bytes, errno, again
        self._sync: tuple[int, int] | None = None
        self._create: tuple[int, int] | None = None
        self._truncate: tuple[int, int] | None = None
        self._cut = False

    def fail_write(
        self, *, nth: int = 1, after_bytes: int = 0, error: int = errno.ENOSPC, again: bool = False
    ) -> None:
        """The nth write takes `after_bytes` and then fails; `again`: all that follow fail, too."""
        self._write = (nth, after_bytes, error, again)

    def shorten_write(self, *, nth: int = 1, after_bytes: int) -> None:
        """The nth write takes `after_bytes` only, as an interrupted one does; what is left goes through."""
        self._write = (nth, after_bytes, 0, False)

    def fail_sync(self, *, nth: int = 1, error: int = errno.EIO) -> None:
        """The nth sync reports an error."""
        self._sync = (nth, error)

    def fail_truncate(self, *, nth: int = 1, error: int = errno.EIO) -> None:
        """The nth truncation fails and cuts nothing."""
        self._truncate = (nth, error)

    def fail_create(self, *, nth: int = 1, error: int = errno.ENOSPC) -> None:
        """The nth new file cannot be made."""
        self._create = (nth, error)

    def heal(self) -> None:
        """Nothing fails any more."""
        self._write = self._sync = self._create = self._truncate = None
        self._cut = False

    def write(self, descriptor: int, buffers: Sequence[Buffer], *, position: int) -> None:
        """Write as OsFs does, by the system call of this double."""
        before, os.pwritev = os.pwritev, self._write_some
        try:
            super().write(descriptor, buffers, position=position)
        finally:
            os.pwritev = before

    def _write_some(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        self.calls.append("write")
        if self._cut:
            self._cut = False
            assert self._write is not None
            error = self._write[2]
            if not self._write[3]:
                self._write = None
            if error:
                raise OSError(error, os.strerror(error))
        if self._write is not None:
            nth, after_bytes, error, again = self._write
            if nth > 1:
                self._write = (nth - 1, after_bytes, error, again)
            elif not after_bytes:
                if not again:
                    self._write = None
                raise OSError(error, os.strerror(error))
            else:
                self._cut = True
                content = b"".join(bytes(buffer) for buffer in buffers)[:after_bytes]
                return os.pwrite(descriptor, content, position)
        return _pwritev(descriptor, buffers, position)

    def sync(self, descriptor: int) -> None:
        self.calls.append("sync")
        if self._sync is not None:
            nth, error = self._sync
            self._sync = (nth - 1, error) if nth > 1 else None
            if nth == 1:
                raise failure(OSError(error, os.strerror(error)), "fdatasync")
        super().sync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        if self._truncate is not None:
            nth, error = self._truncate
            self._truncate = (nth - 1, error) if nth > 1 else None
            if nth == 1:
                raise failure(OSError(error, os.strerror(error)), "truncate")
        super().truncate(descriptor, size)

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        if create and self._create is not None:
            nth, error = self._create
            self._create = (nth - 1, error) if nth > 1 else None
            if nth == 1:
                raise failure(OSError(error, os.strerror(error)), f"open {path}")
        return super().open(path, create=create, writable=writable)
