"""FileRange: a reference to bytes of a file, which travels between processes instead of a copy.

A Handler responds to a Fetch with ranges of segment files, and a Processor sends them with sendfile(). The range has
the file's path to open it, and its inode to detect that the path meanwhile names another file.
"""

from __future__ import annotations

from typing import NamedTuple


class FileRange(NamedTuple):
    """`length` bytes of a file from byte `position` on. After opening `path`, compare its inode with `inode`."""

    path: bytes
    inode: int
    position: int
    length: int
