"""CountingFs: an Fs that counts writes and creations that fail on a full disk, in the metrics of its role."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

from kproc.broker.metrics.spec import SLOT
from kproc.broker.storage.fs import Buffer, DiskFull, Fs

_SHORT: Final = SLOT["writes_without_room"]
_WANTED: Final = SLOT["room_wanted_bytes"]


def counting(fs: Fs, values: list[int]) -> Fs:
    """Wrap `fs`, so that the metrics `values` count failed writes on a full disk and the bytes of the last one."""
    # Cast the type, because CountingFs delegates by __getattr__, which a type checker cannot follow.
    return cast(Fs, CountingFs(fs, values))


class CountingFs:
    """An Fs that calls another one and counts its failures by a full disk. `counting` creates it."""

    def __init__(self, fs: Fs, values: list[int]) -> None:
        self.wrapped = fs
        self._values = values

    def __getattr__(self, name: str) -> Any:
        fs = self.wrapped
        method = getattr(fs, name)
        # Cache the method on the instance, so that Python does not call __getattr__ for it again.
        setattr(self, name, method)
        # A sync thread can run __getattr__ while the Handler's thread runs `divert`, and would cache the former method
        # for ever. If `divert` comes after this comparison, `divert` removes the method.
        if self.wrapped is not fs:
            self.__dict__.pop(name, None)
        return method

    def divert(self, fs: Fs) -> Fs:
        """Call `fs` from now on, and return the Fs that was called before."""
        before, self.wrapped = self.wrapped, fs
        # Remove the cached methods, which belong to the former Fs. A call that runs now finishes on the former Fs.
        for name in self.__dict__.keys() - {"wrapped", "_values"}:
            self.__dict__.pop(name, None)
        return before

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        """Open a file by the wrapped Fs. If the disk is full, count that in the metrics and raise."""
        try:
            return self.wrapped.open(path, create=create, writable=writable)
        except DiskFull:
            self._count(0)
            raise

    def write(self, descriptor: int, buffers: Sequence[Buffer], *, position: int) -> None:
        """Write by the wrapped Fs. If the disk is full, count that in the metrics and raise."""
        try:
            self.wrapped.write(descriptor, buffers, position=position)
        except DiskFull:
            self._count(sum(map(len, buffers)))
            raise

    def make_directory(self, path: Path) -> bool:
        """Create a directory by the wrapped Fs. If the disk is full, count that in the metrics and raise."""
        try:
            return self.wrapped.make_directory(path)
        except DiskFull:
            self._count(0)
            raise

    def _count(self, wanted_bytes: int) -> None:
        """Count a write that failed on a full disk. wanted_bytes: the size of this write."""
        count_shortage(self._values, wanted_bytes)


def count_shortage(values: list[int], wanted_bytes: int) -> None:
    """Count a write that failed on a full disk, and store its size in bytes, in the metrics `values` of a role."""
    values[_SHORT] += 1
    values[_WANTED] = wanted_bytes
