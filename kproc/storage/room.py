"""A file system that counts what found no room, for a role to tell: one full disk concerns the whole broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

from kproc.metrics.spec import SLOT
from kproc.storage.fs import Buffer, DiskFull, Fs

_SHORT: Final = SLOT["writes_without_room"]
_WANTED: Final = SLOT["room_wanted_bytes"]


def counting(fs: Fs, values: list[int]) -> Fs:
    """`fs`; into a role's metrics goes how often it was full, and how much was to be written then."""
    return cast(Fs, CountingFs(fs, values))


class CountingFs:
    """What `counting` returns: an Fs by delegation, whatever is behind it."""

    def __init__(self, fs: Fs, values: list[int]) -> None:
        self._fs = fs
        self._values = values

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._fs, name)
        setattr(self, name, method)  # The next call finds it at once.
        return method

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        """As the Fs behind it."""
        try:
            return self._fs.open(path, create=create, writable=writable)
        except DiskFull:
            self.note(0)
            raise

    def write(self, descriptor: int, buffers: Sequence[Buffer], *, position: int) -> None:
        """As the Fs behind it."""
        try:
            self._fs.write(descriptor, buffers, position=position)
        except DiskFull:
            self.note(sum(map(len, buffers)))
            raise

    def make_directory(self, path: Path) -> bool:
        """As the Fs behind it."""
        try:
            return self._fs.make_directory(path)
        except DiskFull:
            self.note(0)
            raise

    def note(self, wanted_bytes: int) -> None:
        """There was no room for so many bytes."""
        note_shortage(self._values, wanted_bytes)


def note_shortage(values: list[int], wanted_bytes: int) -> None:
    """Count one in a role's metrics."""
    values[_SHORT] += 1
    values[_WANTED] = wanted_bytes
