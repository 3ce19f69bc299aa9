"""A file system that counts what found no room, for a role to tell: one full disk concerns the whole broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kproc.metrics.spec import SLOT
from kproc.storage.fs import Buffer, DiskFull, OsFs

_SHORT: Final = SLOT["writes_without_room"]
_WANTED: Final = SLOT["room_wanted_bytes"]


class CountingFs(OsFs):
    """The real file system; into a role's metrics goes how often it was full, and how much was to be written then."""

    def __init__(self, values: list[int]) -> None:
        self._values = values

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        """As OsFs."""
        try:
            return super().open(path, create=create, writable=writable)
        except DiskFull:
            self.note(0)
            raise

    def write(self, descriptor: int, buffers: Sequence[Buffer], *, position: int) -> None:
        """As OsFs."""
        try:
            super().write(descriptor, buffers, position=position)
        except DiskFull:
            self.note(sum(map(len, buffers)))
            raise

    def make_directory(self, path: Path) -> bool:
        """As OsFs."""
        try:
            return super().make_directory(path)
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
