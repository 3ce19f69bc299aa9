"""FileRange: bytes that travel as a reference to a file instead of a copy.

A Handler answers a Fetch with ranges of segment files and a Processor sends them with sendfile(). The range
names the file twice, by path to open it and by inode to notice that the path meanwhile means another file.
"""

from __future__ import annotations

from typing import NamedTuple


class FileRange(NamedTuple):
    """`length` bytes of a file from byte `position`; whoever opens `path` must compare `inode` first."""

    path: bytes
    inode: int
    position: int
    length: int
