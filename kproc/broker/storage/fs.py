"""The interface through which storage makes its system calls, its errors, and functions on top of it.

All system calls of a log go through `Fs`, so that a test can fail the nth write or sync. os_fs.py implements it. Every
implementation converts an OSError into one of these errors, and no other module of storage/ catches OSError:

- `Shortage`: the host has no free descriptor or memory (EMFILE, ENFILE, ENOMEM). The operation fails, its caller undoes
  it, and a later operation may succeed.
- `DiskFull`, a kind of Shortage: no space (ENOSPC, EDQUOT, EFBIG). The caller truncates the partial write
  and continues.
- `DiskFailed`: anything else. After a failed write or sync the disk's content is unknown: the kernel drops the dirty
  pages and reports the error once, so a second fsync that succeeds proves nothing. The log goes offline, and the call
  is never retried. This holds for every error of a sync of a log, whatever its number.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

# EFBIG: the write exceeds the limit of a file's size (RLIMIT_FSIZE). As with a full disk, one write fails and the file
# stays usable.
FULL_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
SHORTAGE_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class StorageFailure(OSError):
    """A system call on a log's files failed. It has the errno of the OSError."""


class Shortage(StorageFailure):
    """The host is temporarily short of a resource: the caller undoes the operation and may try again later."""


class DiskFull(Shortage):
    """The disk or quota has no space: the caller undoes the write and may try again later."""


class DiskFailed(StorageFailure):
    """The disk or the file system failed: nothing written since the last good sync can be trusted."""


Buffer = bytes | bytearray | memoryview


class Fs(Protocol):
    """The file system calls that storage makes. Descriptors are plain ints, because a sync thread uses them, too."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int: ...
    def close(self, descriptor: int) -> None: ...
    def read(self, descriptor: int, length: int, *, position: int) -> bytes: ...
    def write(self, descriptor: int, buffers: Sequence[Buffer], *, position: int) -> None: ...
    def reserve(self, descriptor: int, position: int, length: int) -> bool: ...
    def truncate(self, descriptor: int, size: int) -> None: ...
    def sync(self, descriptor: int) -> None: ...
    def write_synced_mark(self, descriptor: int, size: int) -> None: ...
    def read_synced_mark(self, descriptor: int) -> int: ...
    def write_aborted_mark(self, descriptor: int, checksum: int) -> None: ...
    def read_aborted_mark(self, descriptor: int) -> int | None: ...
    def write_newest_mark(self, descriptor: int, base_offset: int) -> None: ...
    def read_newest_mark(self, descriptor: int) -> int | None: ...
    def write_start_mark(self, descriptor: int, content: bytes) -> None: ...
    def read_start_mark(self, descriptor: int) -> bytes | None: ...
    def facts(self, descriptor: int) -> os.stat_result: ...
    def set_modified(self, descriptor: int, modified_ns: int) -> None: ...
    def open_directory(self, path: Path) -> int: ...
    def make_directory(self, path: Path) -> bool: ...
    def list_directory(self, path: Path) -> list[str]: ...
    def exists(self, path: Path) -> bool: ...
    def facts_at(self, path: Path) -> os.stat_result | None: ...
    def rename(self, source: Path, target: Path) -> bool: ...
    def unlink(self, path: Path) -> bool: ...
    def remove_tree(self, path: Path) -> None: ...
    def read_file(self, path: Path) -> bytes | None: ...


def failure(error: OSError, what: str) -> StorageFailure:
    """Return the exception for an OSError. `what` names the system call and its path."""
    kind = (
        DiskFull if error.errno in FULL_ERRORS else Shortage if error.errno in SHORTAGE_ERRORS else DiskFailed
    )
    return kind(error.errno, f"{what}: {error.strerror or error}")


def is_unlinked(fs: Fs, descriptor: int, path: Path) -> bool:
    """Return True if an open file was deleted or replaced at its path, so that its content ends with its descriptor."""
    facts = fs.facts(descriptor)
    if facts.st_nlink:
        return False
    # Check the path, too, because some file systems count no links.
    try:
        named = fs.facts_at(path)
    except Shortage:
        # A host that is short of memory proves nothing. The next check decides.
        return False
    except StorageFailure:
        named = None
    return named is None or named.st_ino != facts.st_ino


def replace_file(fs: Fs, path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace a file so that a reader, or a crash, sees either the old or the new content.

    `durable` also makes it survive a power loss, with two syncs. Without it, a power loss can bring back the old
    content or an empty file. That is right for files that can be rebuilt: creating 1,000 topics is then 20 times
    cheaper.
    """
    temporary = path.with_name(path.name + ".tmp")
    # Remove the temporary file that a crash inside an earlier call left, because open(create=True) fails for an
    # existing file.
    fs.unlink(temporary)
    descriptor = fs.open(temporary, create=True)
    try:
        fs.write(descriptor, [content], position=0)
        if durable:
            # Sync before the rename. Otherwise a power loss can leave an empty file under the final name, because file
            # systems may write the new name before the data.
            fs.sync(descriptor)
    except StorageFailure:
        fs.close(descriptor)
        fs.unlink(temporary)
        raise
    fs.close(descriptor)
    fs.rename(temporary, path)
    if durable:
        # The rename is durable only after a sync of the directory that contains the name.
        sync_directory(fs, path.parent)


def sync_directory(fs: Fs, path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = fs.open_directory(path)
    try:
        fs.sync(descriptor)
    finally:
        fs.close(descriptor)
