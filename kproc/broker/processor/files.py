"""FileCache: the segment files that a Processor sends from, opened by path and checked by inode.

A Fetch answer names a file range by path and inode. The owner may have renamed or replaced the file before it is opened
here; then the inode differs. The owner keeps deleted files open for file.delete.delay.ms, so that an inode number is
not used again while an answer may name it.
"""

from __future__ import annotations

import os
from typing import Final

from kproc.broker.config.descriptor_limit import share_of_descriptors
from kproc.wire.file_range import FileRange

# Limit of open descriptors; lower if the process's limit is low. A Fetch over more partitions opens files again, which
# costs only time.
_FILES_MAX: Final = 512


class StaleFile(Exception):
    """The path no longer leads to the inode that the answer was made from."""


class OpenFile:
    """One descriptor. It is closed when neither the cache nor a pending answer uses it any more."""

    __slots__ = ("fd", "inode")

    def __init__(self, path: bytes) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.inode = os.fstat(self.fd).st_ino

    @classmethod
    def of_descriptor(cls, fd: int) -> OpenFile:
        """Own a descriptor that another Processor sent; the file's path may be gone by now."""
        file = cls.__new__(cls)
        file.fd = fd
        file.inode = os.fstat(fd).st_ino
        return file

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class FileCache:
    """Open files by path, with eviction of the least recently used. One per Processor."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = share_of_descriptors(8, most=_FILES_MAX) if limit is None else limit
        self._files: dict[bytes, OpenFile] = {}  # The least recently used comes first.

    def get(self, wanted: FileRange) -> OpenFile:
        """Return the open file of the range `wanted`.

        Raises StaleFile if the path leads to another inode, OSError if the file cannot be opened.
        """
        found = self._files.get(wanted.path)
        if found is not None and found.inode == wanted.inode:
            self._files[wanted.path] = self._files.pop(wanted.path)
            return found
        # Retention may just have deleted the segment, or compaction may have replaced it. The owner renames such a file
        # and keeps it for file.delete.delay.ms.
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
        while len(self._files) >= self._limit:
            del self._files[next(iter(self._files))]
        self._files[wanted.path] = opened
        return opened

    def drop_unlinked(self) -> None:
        """Close deleted files, because the file system frees their space only when the last descriptor is closed."""
        gone = [path for path, file in self._files.items() if os.fstat(file.fd).st_nlink == 0]
        for path in gone:
            del self._files[path]

    def close(self) -> None:
        self._files.clear()
