"""The file of a snapshot: the directories and files of a broker's state, packed into one file (snapshots.py).

Creating files and directories takes most of the time of a copy. Therefore a snapshot is one packed file instead of
hundreds, and a restore overwrites existing files, also those of spare directories (spare_directories.py). The packed
file has the contents of all files one after the other, then an index in JSON, then the length of the index (8 bytes)
and its CRC-32 (4 bytes).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from kproc.broker.supervisor.spare_directories import SpareDirectories, delete_entry
from kproc.common.errors import Corrupt

_TRAILER: Final = struct.Struct("<QI")
# Errors of copy_file_range(2) on file systems that do not support it.
_NOT_SUPPORTED: Final = (errno.ENOTSUP, errno.EXDEV, errno.EINVAL, errno.ENOSYS)
_MODE: Final = 0o600
_READ: Final = os.O_RDONLY | os.O_CLOEXEC
# O_NOFOLLOW: a restore must not write through a symbolic link that somebody has put into the data directory.
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class _PackedFile(msgspec.Struct):
    """A packed file's name, mode, size, times and extended attributes."""

    name: str
    mode: int
    size: int
    times_ns: tuple[int, int]
    attributes: dict[str, bytes]


class _PackedDirectory(msgspec.Struct):
    """A directory and its files, in the order in which their contents are packed.

    Each file of the data directory itself has a _PackedDirectory of its own, with the name "".
    """

    name: str
    mode: int
    attributes: dict[str, bytes]
    files: list[_PackedFile]


_decode_index: Final = msgspec.json.Decoder(list[_PackedDirectory]).decode


def pack(source: Path, names: Iterable[str], target: Path) -> None:
    """Copy these files and directories of the directory `source` into a new file."""
    index: list[_PackedDirectory] = []
    writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    try:
        for name in names:
            fd = os.open(source / name, _READ)
            try:
                mode = os.fstat(fd).st_mode
                if stat.S_ISDIR(mode):
                    files = [_pack_entry(fd, each, writer) for each in os.listdir(fd)]
                    index.append(_PackedDirectory(name, mode & 0o777, _attributes_of(fd), files))
                else:
                    index.append(_PackedDirectory("", 0, {}, [_pack_file(fd, name, writer)]))
            finally:
                os.close(fd)
        encoded = msgspec.json.encode(index)
        _write(writer, encoded + _TRAILER.pack(len(encoded), zlib.crc32(encoded)))
    finally:
        os.close(writer)


def _pack_entry(directory: int, name: str, writer: int) -> _PackedFile:
    fd = os.open(name, _READ, dir_fd=directory)
    try:
        return _pack_file(fd, name, writer)
    finally:
        os.close(fd)


def _pack_file(reader: int, name: str, writer: int) -> _PackedFile:
    info = os.fstat(reader)
    size = _copy_bytes(reader, writer, info.st_size)
    times_ns = (info.st_atime_ns, info.st_mtime_ns)
    return _PackedFile(name, info.st_mode & 0o777, size, times_ns, _attributes_of(reader))


def _attributes_of(fd: int) -> dict[str, bytes]:
    # Ignore a file system without extended attributes. Recovery without kproc's marks in them reads more bytes, and is
    # still correct.
    with contextlib.suppress(OSError):
        return {each: os.getxattr(fd, each) for each in os.listxattr(fd)}
    return {}


def _restore_attributes(fd: int, attributes: dict[str, bytes]) -> None:
    """Restore extended attributes, which have marks for recovery. Remove those that were set since."""
    with contextlib.suppress(OSError):
        for name in os.listxattr(fd):
            os.removexattr(fd, name)
        for name, value in attributes.items():
            os.setxattr(fd, name, value)


def unpack(packed: Path, target: Path, replaced: Iterable[str], spare: SpareDirectories) -> None:
    """Unpack a file into the directory `target`.

    replaced: the names of the present entries. Those that the packed file does not have are removed.
    spare: keeps removed directories, and provides directories to overwrite.

    Raises Corrupt before it changes anything if the index of the packed file is damaged.
    """
    reader = os.open(packed, _READ)
    try:
        index = _read_index(reader, packed)
        kept = {each.name or each.files[0].name for each in index}
        spare.keep_or_delete([target / name for name in replaced if name not in kept])
        # Unpack in the order of the index, because the contents are read one after the other.
        for directory in index:
            _unpack_directory(reader, directory, target / directory.name, spare)
    finally:
        os.close(reader)


def check_index(packed: Path) -> None:
    """Raise Corrupt if the index of a packed file is damaged, so that the file cannot be unpacked."""
    reader = os.open(packed, _READ)
    try:
        _read_index(reader, packed)
    finally:
        os.close(reader)


def _read_index(reader: int, packed: Path) -> list[_PackedDirectory]:
    """Return the index of an open packed file. `packed` is its path, which the message of Corrupt names."""
    end = os.fstat(reader).st_size - _TRAILER.size
    encoded, checksum = b"", 0
    if end > 0:
        length, checksum = _TRAILER.unpack(os.pread(reader, _TRAILER.size, end))
        encoded = os.pread(reader, length, end - length) if length <= end else b""
    # An index is never empty. The check matters for a file of zeros, because the CRC-32 of no bytes is 0.
    if not encoded or zlib.crc32(encoded) != checksum:
        raise Corrupt(f"{packed}: the snapshot is damaged")
    return _decode_index(encoded)


def _unpack_directory(reader: int, directory: _PackedDirectory, path: Path, spare: SpareDirectories) -> None:
    if directory.name:
        if not os.path.lexists(path) and not spare.move_to(path, directory.mode):
            path.mkdir(directory.mode)
        names = {each.name for each in directory.files}
        for name in os.listdir(path):
            if name not in names:
                delete_entry(path / name)
    fd = os.open(path, _READ | os.O_DIRECTORY)
    try:
        for each in directory.files:
            _unpack_file(reader, each, fd)
        if directory.name:
            _restore_attributes(fd, directory.attributes)
    finally:
        os.close(fd)


def _unpack_file(reader: int, packed: _PackedFile, directory: int) -> None:
    """Overwrite or create a file. If it has several hard links, the other ones keep their content (faults/power.py)."""
    writer = os.open(packed.name, _WRITE, packed.mode, dir_fd=directory)
    try:
        info = os.fstat(writer)
        if info.st_nlink > 1:
            os.unlink(packed.name, dir_fd=directory)
            os.close(writer)
            writer = os.open(packed.name, _WRITE | os.O_EXCL, packed.mode, dir_fd=directory)
        _copy_bytes(reader, writer, packed.size)
        if info.st_size > packed.size:
            # Truncate only after the copy, because ext4 writes a file to the disk at close() if it was truncated to 0
            # (auto_da_alloc), which is slow.
            os.ftruncate(writer, packed.size)
        if info.st_mode & 0o777 != packed.mode:
            os.fchmod(writer, packed.mode)
        _restore_attributes(writer, packed.attributes)
        # Restore the modification time, which retention uses for logs without timestamps.
        os.utime(writer, ns=packed.times_ns)
    finally:
        os.close(writer)


def _copy_bytes(reader: int, writer: int, size: int) -> int:
    """Copy up to `size` bytes from one file's position to the other's.

    Return the number of bytes copied, which is smaller if the source file ends before.
    """
    left = size
    # copy_file_range(2) copies inside the kernel. XFS and btrfs can share the blocks, so that a copy costs
    # neither time nor space.
    copy: Callable[[int, int, int], int] = os.copy_file_range
    while left > 0:
        try:
            done = copy(reader, writer, left)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED or copy is _copy_by_sendfile:
                raise
            copy, done = _copy_by_sendfile, 0
            continue
        if not done:
            break  # The file has become shorter.
        left -= done
    return size - left


def _copy_by_sendfile(reader: int, writer: int, length: int) -> int:
    return os.sendfile(writer, reader, None, length)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
