"""Segment files that a Processor sends from: opened by path, checked by inode, kept for a while.

A Fetch answer names a file range by path and inode. Between the Handler's answer and the open here the
owner may have renamed or replaced the file; the inode tells. The owner keeps deleted files for
file.delete.delay.ms and holds them open, so an inode number is not reused while an answer may name it.
"""

from __future__ import annotations

import os
from typing import Final

from kproc.wire.file_range import FileRange

_FILES_MAX: Final = 512  # Descriptors kept open; a Fetch over more partitions than this only opens again.


class StaleFile(Exception):
    """The path no longer leads to the inode that the answer was made from."""


class OpenFile:
    """One descriptor, closed when the cache and the last pending answer have let go of it."""

    __slots__ = ("fd", "inode")

    def __init__(self, path: bytes) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.inode = os.fstat(self.fd).st_ino

    @classmethod
    def of_descriptor(cls, fd: int) -> OpenFile:
        """Take over a descriptor that another Processor sent: its path may lead nowhere by now."""
        file = cls.__new__(cls)
        file.fd = fd
        file.inode = os.fstat(fd).st_ino
        return file

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class FileCache:
    """Path -> open file, dropped in order of opening. One per Processor."""

    def __init__(self) -> None:
        self._files: dict[bytes, OpenFile] = {}

    def get(self, wanted: FileRange) -> OpenFile:
        """The open file that `wanted` lies in; raises StaleFile or OSError."""
        found = self._files.get(wanted.path)
        if found is not None and found.inode == wanted.inode:
            return found
        # Retention may just have taken the segment, or compaction have put another in its place: its file stays,
        # renamed, for file.delete.delay.ms.
        opened = None
        for path in (wanted.path, wanted.path + b".deleted"):
            try:
                opened = OpenFile(path)
            except FileNotFoundError:
                continue
            if opened.inode == wanted.inode:
                break
        if opened is None:
            raise FileNotFoundError(f"{os.fsdecode(wanted.path)} is gone")
        if opened.inode != wanted.inode:
            raise StaleFile(f"{os.fsdecode(wanted.path)} was replaced")
        self._files.pop(wanted.path, None)
        while len(self._files) >= _FILES_MAX:
            del self._files[next(iter(self._files))]
        self._files[wanted.path] = opened
        return opened

    def drop_unlinked(self) -> None:
        """Let go of files that were deleted: their space is freed only when the last descriptor closes."""
        gone = [path for path, file in self._files.items() if os.fstat(file.fd).st_nlink == 0]
        for path in gone:
            del self._files[path]

    def close(self) -> None:
        self._files.clear()
