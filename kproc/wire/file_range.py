"""FileRange: a reference to bytes of a file, which travels between processes instead of a copy.

A Handler responds to a Fetch with ranges of segment files, and a Processor sends them with sendfile(). The range has
the file's path to open it, and its inode to detect that the path names another file by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class FileRange(NamedTuple):
    """`length` bytes of the file at `path`, from byte `position` on.

    A process that opens `path` must compare the file's inode with `inode`. If they differ, the path names another file.
    """

    path: bytes
    inode: int
    position: int
    length: int


class FileRecords:
    """The records of one partition in a response, as ranges of files. `len` is their size in bytes.

    An encoder accepts it as the value of a field `records`.
    """

    __slots__ = ("_size_bytes", "ranges")

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        self.ranges = ranges
        self._size_bytes = sum(each.length for each in ranges)

    def __len__(self) -> int:
        return self._size_bytes


def size_bytes(pieces: Sequence[bytes | FileRange]) -> int:
    """Return the size in bytes of a message that consists of bytes and file ranges."""
    return sum(each.length if isinstance(each, FileRange) else len(each) for each in pieces)
