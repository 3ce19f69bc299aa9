"""FileCache: the segment files that a Processor sends from, opened by path and checked by inode.

A Fetch answer names a file range by path and inode. The owner may have renamed or replaced the file before it is opened
here; then the inode differs. The owner keeps deleted files open for file.delete.delay.ms, so that an inode number is
not used again while an answer may name it.
"""

from __future__ import annotations

import os
from typing import Final

from kproc.broker.config.descriptor_limit import share_of_descriptors
from kproc.broker.processor.answer_parts import FileSend
from kproc.broker.processor.transport_layer import FILE_TOO_SHORT

# Up to this size, a pread and one send cost no more than a send with MSG_MORE and a sendfile. Measured: 1.9 us against
# 2.1 us at 256 B, equal from 4 to 8 KiB, 2.8 us against 2.4 us at 16 KiB.
_COPY_BYTES_MAX: Final = 8192
# Limit of open descriptors; lower if the process's limit is low. A Fetch over more partitions opens files again, which
# costs only time.
_FILES_MAX: Final = 512


class StaleFile(Exception):
    """The path of a segment no longer leads to the inode that a Fetch answer names."""


class OpenFile:
    """One descriptor. It is closed when neither the cache nor a pending answer uses it any more."""

    __slots__ = ("fd", "inode")

    def __init__(self, path: bytes) -> None:
        self.fd = -1
        # Without O_NONBLOCK a FIFO in the file's place would block the Processor until the inode can be compared.
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        # Compare by the descriptor and not by the path, because the name can lead to another file after the
        # check.
        self.inode = os.fstat(self.fd).st_ino

    @classmethod
    def of_descriptor(cls, fd: int) -> OpenFile:
        """Create an OpenFile from a descriptor that another Processor sent, and own it.

        The file's path may be gone by now.
        """
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

    def open_range(self, path: bytes, inode: int, position: int, length: int) -> FileSend:
        """Return a range of a file (FileRange) to be sent by sendfile.

        Raises StaleFile if the path leads to another inode, OSError if the file cannot be opened.
        """
        return FileSend(self.get(path, inode), position, length)

    def open_or_read_range(self, path: bytes, inode: int, position: int, length: int) -> bytes | FileSend:
        """Return the bytes of a range of up to 8 KiB. Return a longer one as `open_range` does.

        Raises EOFError if the file ends within a short range, otherwise StaleFile and OSError like `open_range`.
        """
        if length > _COPY_BYTES_MAX:
            return FileSend(self.get(path, inode), position, length)
        data = os.pread(self.get(path, inode).fd, length, position)
        if len(data) != length:
            raise EOFError(FILE_TOO_SHORT)
        return data

    def get(self, path: bytes, inode: int) -> OpenFile:
        """Return the open file with this path and inode.

        A deleted segment is looked for under the name `path`.deleted, too. Raises StaleFile if the path leads to
        another inode, OSError if the file cannot be opened.
        """
        files = self._files
        found = files.get(path)
        if found is not None and found.inode == inode:
            files[path] = files.pop(path)
            return found
        # Retention may just have deleted the segment, or compaction may have replaced it. The owner renames such a file
        # and keeps it for file.delete.delay.ms.
        opened = None
        for name in (path, path + b".deleted"):
            try:
                opened = OpenFile(name)
            except FileNotFoundError:
                continue
            if opened.inode == inode:
                break
        if opened is None:
            raise FileNotFoundError(f"segment file {os.fsdecode(path)} does not exist any more")
        if opened.inode != inode:
            raise StaleFile(f"segment file {os.fsdecode(path)} was replaced by another file")
        files.pop(path, None)
        while len(files) >= self._limit:
            del files[next(iter(files))]
        files[path] = opened
        return opened

    def drop_unlinked(self) -> None:
        """Close deleted files, because the file system frees their space only when the last descriptor is closed."""
        gone = [path for path, file in self._files.items() if os.fstat(file.fd).st_nlink == 0]
        for path in gone:
            del self._files[path]

    def close(self) -> None:
        self._files.clear()
