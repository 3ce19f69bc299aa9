"""OsFs: makes the system calls of storage on the real file system, and converts their errors (fs.py)."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kproc.broker.storage.fs import FULL_ERRORS, SHORTAGE_ERRORS, Buffer, failure
from kproc.common.regular_file import open_regular

IOV_COUNT_MAX: Final = 1024  # IOV_MAX of Linux; writev refuses more buffers with EINVAL.

_SYNCED: Final = "user.kproc.synced"
_ABORTED: Final = "user.kproc.aborted"
_NEWEST: Final = "user.kproc.newest"
_START: Final = "user.kproc.start"
# Errors of an extended attribute that leave recovery with less knowledge but do no harm: the file system has no space
# for it, does not support it, or does not permit it.
_NO_MARK: Final = (
    FULL_ERRORS | SHORTAGE_ERRORS | {errno.ENODATA, errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.E2BIG}
)

# The f_type that statfs reports for ext2, ext3 and ext4.
_EXT4: Final = 0xEF53
# Flag of fallocate: keep the file's size. Otherwise the file would end behind the reserved blocks, and recovery would
# take that for the end of the records.
_FALLOC_KEEP_SIZE: Final = 1
_FREE_SHARE: Final = 64  # At most 1/64 of the free disk space is reserved at once.

# Bytes of one read of a small file. A shorter result means the end of the file.
_SMALL_BYTES: Final = 1 << 16

# Mode of new files. Kafka leaves it to the umask, so that usually every user of the host can read records in spite of
# ACLs. kproc lets no other users read them. The mode of the data directory determines if its group can.
FILE_MODE: Final = 0o640
DIRECTORY_MODE: Final = 0o750


# fallocate and fstatfs are called through libc, because Python has no fallocate with flags, and its fstatvfs lacks
# f_type.
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_libc.fstatfs.argtypes = (ctypes.c_int, ctypes.c_void_p)


class OsFs:
    """The real file system. Stateless; one instance serves a whole process."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        """Open a file and return its descriptor. With `create` the file must not exist."""
        flags = os.O_RDWR if writable else os.O_RDONLY
        try:
            if create:
                # O_EXCL: a file that exists already was left by a failed creation or belongs to another owner. It must
                # not be overwritten silently.
                return os.open(path, flags | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, FILE_MODE)
            return open_regular(path, flags)
        except OSError as error:
            raise failure(error, f"open {path}") from error

    def close(self, descriptor: int) -> None:
        """Close a descriptor. Raises StorageFailure, which says nothing about the data: only a sync confirms these."""
        try:
            os.close(descriptor)
        except OSError as error:
            raise failure(error, "close") from error

    def read(self, descriptor: int, length: int, *, position: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the file."""
        try:
            # pread leaves the file position alone, because a sync thread and a reader may share the
            # descriptor.
            return os.pread(descriptor, length, position)
        except OSError as error:
            raise failure(error, "read") from error
        except MemoryError as error:
            # Report a lack of memory as a shortage (ENOMEM). Otherwise it would count as a defect: the log cleaner
            # would skip a compacted log until the next start, and a client's connection would be closed.
            raise failure(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "read") from error

    def write(self, descriptor: int, buffers: Sequence[Buffer], *, position: int) -> None:
        """Write all buffers from `position` on, or raise. After an error any prefix may be in the file.

        The position is explicit, so that the next write overwrites what a failed one has left.
        """
        try:
            # Fast path without slicing the list, because nearly every append fits into one call.
            if len(buffers) <= IOV_COUNT_MAX:
                wanted = sum(map(len, buffers))
                written = os.pwritev(descriptor, buffers, position)
                if written == wanted:
                    return
                self._write_rest(descriptor, buffers, written, position)
                return
            for first in range(0, len(buffers), IOV_COUNT_MAX):
                part = buffers[first : first + IOV_COUNT_MAX]
                self.write(descriptor, part, position=position)
                position += sum(map(len, part))
        except OSError as error:
            raise failure(error, "write") from error

    def _write_rest(self, descriptor: int, buffers: Sequence[Buffer], written: int, position: int) -> None:
        """Write the bytes that a call of pwritev did not write, by further calls. Raises OSError.

        Linux writes at most 2 GiB - 4 KiB in one call, and less if the disk becomes full during the call. In that case
        the next call raises the error. `written`: the number of bytes that the first call wrote.
        """
        rest = [memoryview(buffer) for buffer in buffers]
        position += written
        while rest:
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if not rest:
                return
            rest[0] = rest[0][written:]
            written = os.pwritev(descriptor, rest, position)
            # A call that writes 0 bytes reports no error. Without this check the loop would never end.
            if written == 0:
                raise OSError(errno.ENOSPC, "pwritev wrote 0 bytes")
            position += written

    def reserve(self, descriptor: int, position: int, length: int) -> bool:
        """Reserve disk blocks for bytes that will be written, also beyond the file's end; its size does not change.

        Only ext4 gets a reservation, because there it makes writes cheaper. Without reserved blocks ext4 updates quota,
        space and extents for every 4 KiB that are written. With 16 MiB reserved, a write of 1 MB takes 66 % of the CPU
        cycles, and a write of 16 KB takes 84 % (bench/micro/preallocation.py). XFS reserves blocks by itself. On tmpfs
        a reservation would use up memory.

        Returns False if nothing was reserved. That does no harm, because a write reports any problem of the disk.
        """
        facts = (ctypes.c_long * 32)()  # struct statfs: type, block size, blocks, free, free for us, ...
        if (
            _libc.fstatfs(descriptor, facts)
            or facts[0] != _EXT4
            or facts[1] * facts[4] < _FREE_SHARE * length
        ):
            return False
        return bool(_libc.fallocate(descriptor, _FALLOC_KEEP_SIZE, position, length) == 0)

    def truncate(self, descriptor: int, size: int) -> None:
        """Truncate the file to `size` bytes, or extend it with zeroes."""
        try:
            # An extension is a hole, which takes no blocks. So this cannot reserve space: see reserve().
            os.ftruncate(descriptor, size)
        except OSError as error:
            raise failure(error, "truncate") from error

    def sync(self, descriptor: int) -> None:
        """Call fdatasync: write the data and the metadata needed to read it, such as the size. Blocks."""
        try:
            # fdatasync and not fsync: it does not write the inode if only its times have changed.
            os.fdatasync(descriptor)
        except OSError as error:
            raise failure(error, "fdatasync") from error

    def write_synced_mark(self, descriptor: int, size: int) -> None:
        """Record in a file's extended attribute that its first `size` bytes were synced.

        The next sync of the file makes the attribute durable at no extra cost, because a sync of a file that grew also
        writes its inode. If the attribute does not fit, or the file system has no attributes, the old one stays. It has
        a smaller number of bytes, which were also synced.
        """
        _set_number(descriptor, _SYNCED, size)

    def read_synced_mark(self, descriptor: int) -> int:
        """Return the size in bytes that write_synced_mark() last recorded for a file, or 0 without a mark."""
        return _get_number(descriptor, _SYNCED) or 0

    def write_aborted_mark(self, descriptor: int, checksum: int) -> None:
        """Record the checksum of a segment's transaction index in an attribute of its .log file."""
        _set_number(descriptor, _ABORTED, checksum)

    def read_aborted_mark(self, descriptor: int) -> int | None:
        """Return the checksum that write_aborted_mark() last recorded for a file, or None without a mark."""
        return _get_number(descriptor, _ABORTED)

    def write_newest_mark(self, descriptor: int, base_offset: int) -> None:
        """Record in a partition directory's attribute that a segment's name, and all segments below it, were synced.

        The file system writes the attribute to the disk some time later. After a crash before that, the attribute still
        names an older segment, which was synced, too.
        """
        _set_number(descriptor, _NEWEST, base_offset)

    def read_newest_mark(self, descriptor: int) -> int | None:
        """Return the base offset that write_newest_mark() last recorded for a directory, or None without a mark."""
        return _get_number(descriptor, _NEWEST)

    def write_start_mark(self, descriptor: int, content: bytes) -> None:
        """Set the attribute of a partition's directory that records the log's start. See log_start.py."""
        _set_mark(descriptor, _START, content)

    def read_start_mark(self, descriptor: int) -> bytes | None:
        """Return the content that write_start_mark() last set for a directory, or None without a mark."""
        return _get_mark(descriptor, _START)

    def facts(self, descriptor: int) -> os.stat_result:
        """Return the attributes (mode, inode, size and times) of an open file."""
        try:
            return os.fstat(descriptor)
        except OSError as error:
            raise failure(error, "stat") from error

    def set_modified(self, descriptor: int, modified_ns: int) -> None:
        """Set the file's modification time, in nanoseconds since 1970."""
        try:
            os.utime(descriptor, ns=(modified_ns, modified_ns))
        except OSError as error:
            raise failure(error, "utime") from error

    def open_directory(self, path: Path) -> int:
        """Open a directory to sync it. The name of a new file is durable only after a sync of its directory."""
        try:
            # fsync of a directory needs a descriptor of the directory itself. Linux allows it for a read-only one.
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise failure(error, f"open {path}") from error

    def make_directory(self, path: Path) -> bool:
        """Create a directory and return True, or return False if it exists. Its parent must exist."""
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            return False
        except OSError as error:
            raise failure(error, f"mkdir {path}") from error
        return True

    def list_directory(self, path: Path) -> list[str]:
        """Return the names in a directory, in no order."""
        try:
            return os.listdir(path)
        except OSError as error:
            raise failure(error, f"list {path}") from error

    def exists(self, path: Path) -> bool:
        """Return True if a file or directory with this path exists."""
        return self.facts_at(path) is not None

    def facts_at(self, path: Path) -> os.stat_result | None:
        """Return the attributes of a file or directory by its path, or None if it does not exist."""
        try:
            return os.stat(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise failure(error, f"stat {path}") from error

    def rename(self, source: Path, target: Path) -> bool:
        """Rename a file and replace the target. Return False if the source does not exist."""
        try:
            os.rename(source, target)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise failure(error, f"rename {source}") from error
        return True

    def unlink(self, path: Path) -> bool:
        """Remove a file. Return False if it does not exist."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise failure(error, f"unlink {path}") from error
        return True

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with its content, or a symbolic link without its target. A missing path is no error."""
        try:
            # Unlink a symbolic link itself. rmtree rejects it, and its target may be outside of the data directory.
            if path.is_symlink():
                path.unlink()
            else:
                shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise failure(error, f"remove {path}") from error

    def read_file(self, path: Path) -> bytes | None:
        """Return the content of a small file, or None if it does not exist."""
        try:
            descriptor = open_regular(path, os.O_RDONLY)
            try:
                content = part = os.read(descriptor, _SMALL_BYTES)
                while len(part) == _SMALL_BYTES:
                    part = os.read(descriptor, _SMALL_BYTES)
                    content += part
                return content
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise failure(error, f"read {path}") from error


def _set_number(descriptor: int, name: str, number: int) -> None:
    _set_mark(descriptor, name, b"%d" % number)


def _set_mark(descriptor: int, name: str, content: bytes) -> None:
    """Set an extended attribute, unless the file system supports none or has no space for it."""
    try:
        # Use an extended attribute, because it lives in the inode: it is renamed and deleted together with its file. A
        # mark in a second file could belong to another log.
        os.setxattr(descriptor, name, content)
    except OSError as error:
        # Raise errors that may also concern the file's data, such as EIO.
        if error.errno not in _NO_MARK:
            raise failure(error, "setxattr") from error


def _get_number(descriptor: int, name: str) -> int | None:
    """Return the number in an extended attribute, or None if the file has no such attribute or it is not a number."""
    content = _get_mark(descriptor, name)
    try:
        return None if content is None else int(content)
    except ValueError:
        return None


def _get_mark(descriptor: int, name: str) -> bytes | None:
    """Return the content of an extended attribute, or None if the file has no such attribute."""
    try:
        return os.getxattr(descriptor, name)
    except OSError as error:
        if error.errno not in _NO_MARK:
            raise failure(error, "getxattr") from error
        return None


class UnsyncedFs(OsFs):
    """The real file system without syncs, for data that are deleted when their broker ends."""

    def sync(self, _descriptor: int) -> None:
        """Do nothing. The page cache survives the death of a process, and the data need not survive a host crash."""
