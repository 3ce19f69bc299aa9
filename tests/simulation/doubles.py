"""Doubles of os, select, socket and the like: what the broker's modules get in their place while a simulation runs.

A module of kproc that says `import os` has a name `os`, which is set to the double here; what a double does not know
goes to the real module. There is one simulated host at a time: `host`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl as real_fcntl
import gc as real_gc
import importlib
import mmap
import os as real_os
import pathlib
import pkgutil
import random as real_random
import select as real_select
import shutil as real_shutil
import socket as real_socket
import stat as stat_module
import struct
import sys
import uuid as real_uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PosixPath
from typing import Any, Final

from kproc import broker
from kproc.broker.ipc.layout import PAGE_BYTES, align
from kproc.broker.ipc.region import Region
from tests.simulation.kernel import (
    Epoll,
    EventFd,
    File,
    Kernel,
    Listening,
    RegionFile,
    Socket,
    SocketHandle,
    error,
)
from tests.support.memory_disk import Inode, MemoryDisk, SyncBegun

_WORD: Final = struct.Struct("=Q")
# The packages of kproc.broker that meet the host, and those that do not.
_PACKAGES: Final = frozenset(
    {
        "acceptor", "api", "calls", "cleaner", "cluster", "controller", "faults", "fetch", "group", "handler", "ipc",
        "observe", "peers", "processor", "produce", "request", "role", "share", "storage", "streams", "supervisor",
        "transport",
    }
)  # fmt: skip
# A module outside of these packages that opens files for storage.
_FILE_OPENER: Final = "kproc.common.regular_file"
_WITHOUT_HOST: Final = frozenset({"config", "coordinator", "metrics", "security", "transaction"})


class SimulatedHost:
    """What the doubles act on; a new one for every run."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.rng = real_random.Random(0)
        self.disk: MemoryDisk = None  # type: ignore[assignment]
        # Asked before each operation on the disk: an errno, or how many bytes of a write get through.
        self.fault: Any = lambda what, path, size: None
        # Called whenever a file is opened, for the time that this may take.
        self.spend: Callable[[], None] = lambda: None
        # A list while a round of syncs begins: they end when the simulation says so.
        self.begun: list[SyncBegun] | None = None


host = SimulatedHost()


def use(new: SimulatedHost) -> None:
    """From now on this is the host."""
    global host
    host = new


class DiskFile(File):
    """An open file of the simulated disk."""

    def __init__(self, inode: Inode, path: str) -> None:
        super().__init__()
        self.inode = inode
        self.path = path
        self.position = 0


class Stat:
    """What os.stat says."""

    def __init__(self, inode: Inode) -> None:
        self.st_ino = inode.number
        self.st_size = len(inode.data)
        self.st_mtime_ns = inode.modified_ns
        self.st_ctime_ns = inode.changed_ns
        self.st_nlink = inode.links
        self.st_blocks = -(-len(inode.data) // 512)
        self.st_mode = stat_module.S_IFDIR if inode.is_directory else stat_module.S_IFREG


def _text(path: Any) -> str:
    return real_os.fsdecode(real_os.fspath(path))


def _check(what: str, path: str, size: int = 0) -> int | None:
    """Fail if a fault is due; how many bytes of a write get through, None for all."""
    found = host.fault(what, path, size)
    if found is None:
        return None
    kind, value = found
    if kind == "short":
        return int(value)
    raise error(int(value), path)


class _Entry:
    """What scandir gives."""

    def __init__(self, directory: str, name: str) -> None:
        self.name = name
        self.path = f"{directory.rstrip('/')}/{name}"

    def stat(self) -> Stat:
        return Stat(host.disk.find(self.path))

    def is_dir(self) -> bool:
        return host.disk.find(self.path).is_directory


class OsDouble:
    """The calls of `os` that the broker makes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(real_os, name)

    # -- files -------------------------------------------------------------------------------------------------

    def open(self, path: Any, flags: int, _mode: int = 0o777) -> int:
        text = _text(path)
        host.spend()
        if flags & real_os.O_CREAT and text not in host.disk._names:
            _check("create", text)
        inode = host.disk.open(
            text, create=bool(flags & real_os.O_CREAT), exclusive=bool(flags & real_os.O_EXCL)
        )
        if flags & real_os.O_TRUNC:
            host.disk.truncate(inode, 0)
        file = DiskFile(inode, text)
        if flags & real_os.O_APPEND:
            file.position = len(inode.data)
        return host.kernel.install(file)

    def close(self, fd: int) -> None:
        host.kernel.close(fd)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        file: Any = host.kernel.file(fd)
        if isinstance(file, RegionFile):
            return bytes(file.storage[position : position + length])
        _check("read", file.path)
        return host.disk.read(file.inode, length, position)

    def preadv(self, fd: int, buffers: list[Any], position: int) -> int:
        total = 0
        for buffer in buffers:
            part = self.pread(fd, len(buffer), position + total)
            buffer[: len(part)] = part
            total += len(part)
        return total

    def pwrite(self, fd: int, data: Any, position: int) -> int:
        return self.pwritev(fd, [data], position)

    def pwritev(self, fd: int, buffers: Iterable[Any], position: int) -> int:
        file: Any = host.kernel.file(fd)
        content = b"".join(buffers)
        limit = _check("write", file.path, len(content))
        if limit is not None:
            content = content[:limit]
        return host.disk.write(file.inode, content, position)

    def write(self, fd: int, data: Any) -> int:
        file: Any = host.kernel.file(fd)
        if isinstance(file, RegionFile):
            file.storage += bytes(data)
            return len(data)
        limit = _check("write", file.path, len(data))
        content = bytes(data) if limit is None else bytes(data)[:limit]
        host.disk.write(file.inode, content, file.position)
        file.position += len(content)
        return len(content)

    def read(self, fd: int, length: int) -> bytes:
        file: Any = host.kernel.file(fd)
        part = host.disk.read(file.inode, length, file.position)
        file.position += len(part)
        return part

    def ftruncate(self, fd: int, size: int) -> None:
        file: Any = host.kernel.file(fd)
        _check("truncate", file.path)
        host.disk.truncate(file.inode, size)

    def fdatasync(self, fd: int) -> None:
        file: Any = host.kernel.file(fd)
        begun = host.disk.begin_sync(file.inode)
        try:
            _check("sync", file.path)
        except OSError:
            host.disk.fail_sync(begun)
            raise
        if host.begun is None:
            host.disk.end_sync(begun)
        else:
            host.begun.append(begun)

    fsync = fdatasync

    def fstat(self, fd: int) -> Any:
        file: Any = host.kernel.file(fd)
        if isinstance(file, RegionFile):
            return real_os.stat_result((0, 0, 0, 0, 0, 0, len(file.storage), 0, 0, 0))
        return Stat(file.inode)

    def utime(self, fd: int, *, ns: tuple[int, int]) -> None:
        file: Any = host.kernel.file(fd)
        file.inode.modified_ns = ns[1]

    def setxattr(self, fd: int, name: str, value: bytes) -> None:
        file: Any = host.kernel.file(fd)
        file.inode.marks[name] = value

    def getxattr(self, fd: int, name: str) -> bytes:
        file: Any = host.kernel.file(fd)
        if name not in file.inode.marks:
            raise error(errno.ENODATA, file.path)
        return bytes(file.inode.marks[name])

    def sendfile(self, out: int, into: int, position: int, count: int) -> int:
        file: Any = host.kernel.file(into)
        part = host.disk.read(file.inode, count, position)
        target: Any = host.kernel.file(out)
        return int(target.send(part)) if part else 0

    # -- names -------------------------------------------------------------------------------------------------

    def stat(self, path: Any) -> Stat:
        return Stat(host.disk.find(_text(path)))

    def mkdir(self, path: Any, _mode: int = 0o777) -> None:
        text = _text(path)
        if text not in host.disk._names:
            _check("create", text)
        host.disk.make_directory(text)

    def makedirs(self, path: Any, _mode: int = 0o777, exist_ok: bool = False) -> None:
        SimulatedPath(_text(path)).mkdir(parents=True, exist_ok=exist_ok)

    def listdir(self, path: Any) -> list[str]:
        return host.disk.list(_text(path))

    @contextlib.contextmanager
    def scandir(self, path: Any) -> Iterator[list[_Entry]]:
        text = _text(path)
        yield [_Entry(text, name) for name in host.disk.list(text)]

    def rename(self, source: Any, target: Any) -> None:
        _check("rename", _text(source))
        host.disk.rename(_text(source), _text(target))

    replace = rename

    def unlink(self, path: Any) -> None:
        host.disk.unlink(_text(path))

    remove = unlink

    # -- other descriptors -------------------------------------------------------------------------------------

    def eventfd(self, value: int = 0, _flags: int = 0) -> int:
        return host.kernel.install(EventFd(value))

    def eventfd_write(self, fd: int, value: int) -> None:
        file: Any = host.kernel.find(fd)
        if file is not None:
            file.add(value)

    def eventfd_read(self, fd: int) -> int:
        file: Any = host.kernel.file(fd)
        if not file.value:
            raise error(errno.EAGAIN)
        value, file.value = file.value, 0
        return int(value)

    def memfd_create(self, _name: str, _flags: int = 0) -> int:
        return host.kernel.install(RegionFile(bytearray()))

    def dup(self, fd: int) -> int:
        return host.kernel.dup(fd)

    def getpid(self) -> int:
        return int(getattr(host.kernel.current, "pid", 1))


class SocketModule:
    """The module `socket`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(real_socket, name)

    def socket(
        self, family: int = -1, kind: int = -1, proto: int = -1, fileno: int | None = None
    ) -> SocketHandle:
        del family, kind, proto
        kernel = host.kernel
        return SocketHandle(kernel, kernel.install(Listening(kernel.host)) if fileno is None else fileno)

    def socketpair(
        self, family: int = -1, kind: int = real_socket.SOCK_STREAM
    ) -> tuple[SocketHandle, SocketHandle]:
        del family
        kernel = host.kernel
        one, other = Socket.pair(is_stream=kind == real_socket.SOCK_STREAM)
        return SocketHandle(kernel, kernel.install(one)), SocketHandle(kernel, kernel.install(other))


class _Poll:
    """What select.poll makes."""

    def __init__(self) -> None:
        self._asked: list[tuple[int, int]] = []

    def register(self, fd: int, mask: int) -> None:
        self._asked.append((fd, mask))

    def poll(self, _timeout: float = 0) -> list[tuple[int, int]]:
        found = [(fd, host.kernel.file(fd).events() & mask) for fd, mask in self._asked]
        return [each for each in found if each[1]]


class SelectModule:
    """The module `select`."""

    poll = _Poll

    def __getattr__(self, name: str) -> Any:
        return getattr(real_select, name)

    def epoll(self) -> Epoll:
        return Epoll(host.kernel, host.kernel.current)


class FcntlModule:
    """The module `fcntl`: locks of the data directory are always free."""

    def __getattr__(self, name: str) -> Any:
        return getattr(real_fcntl, name)

    def flock(self, _fd: int, _operation: int) -> None:
        """One broker, one directory."""

    def lockf(self, _fd: int, _operation: int) -> None:
        """No Kafka."""


class ShutilModule:
    """The module `shutil`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(real_shutil, name)

    def rmtree(self, path: Any, *, ignore_errors: bool = False) -> None:
        with contextlib.suppress(OSError) if ignore_errors else contextlib.nullcontext():
            host.disk.remove_tree(_text(path))

    def disk_usage(self, _path: Any) -> Any:
        return real_shutil._ntuple_diskusage(1 << 40, 1 << 39, 1 << 39)


class UuidModule:
    """The module `uuid`, by the seed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(real_uuid, name)

    def uuid4(self) -> real_uuid.UUID:
        return real_uuid.UUID(int=host.rng.getrandbits(128), version=4)


class RandomModule:
    """The module `random`, by the seed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(real_random, name)

    def Random(self, *seed: Any) -> real_random.Random:
        return real_random.Random(*(seed or (host.rng.getrandbits(64),)))


class GcModule:
    """The module `gc`: a role's wishes about the collector are not the simulation's."""

    def __getattr__(self, name: str) -> Any:
        if name in ("freeze", "enable", "disable", "set_threshold", "collect", "unfreeze"):
            return lambda *_: None
        return getattr(real_gc, name)


class _PathFile:
    """What Path.open gives, as far as it is used."""

    def __init__(self, path: str, mode: str) -> None:
        flags = real_os.O_RDWR
        if "w" in mode:
            flags |= real_os.O_CREAT | real_os.O_TRUNC
        self._fd = OS.open(path, flags)
        self._position = 0

    def __enter__(self) -> _PathFile:
        return self

    def __exit__(self, *_: object) -> None:
        OS.close(self._fd)

    def fileno(self) -> int:
        return self._fd

    def write(self, data: bytes) -> int:
        written = OS.pwrite(self._fd, data, self._position)
        self._position += written
        return written

    def truncate(self, size: int) -> None:
        OS.ftruncate(self._fd, size)

    def flush(self) -> None:
        """Nothing is buffered."""

    def tell(self) -> int:
        return self._position


class SimulatedPath(PosixPath):
    """A Path whose questions to the file system go to the simulated disk."""

    def stat(self, *, follow_symlinks: bool = True) -> Any:
        del follow_symlinks
        return OS.stat(self)

    def exists(self) -> bool:
        return str(self) in host.disk._names

    def is_dir(self) -> bool:
        return self.exists() and host.disk.find(str(self)).is_directory

    def read_bytes(self) -> bytes:
        return bytes(host.disk.find(str(self)).data)

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if parents and not self.parent.exists():
            self.parent.mkdir(mode, parents=True, exist_ok=True)
        if exist_ok and self.exists():
            return
        OS.mkdir(self, mode)

    def unlink(self, missing_ok: bool = False) -> None:
        if missing_ok and not self.exists():
            return
        OS.unlink(self)

    def rename(self, target: Any) -> SimulatedPath:
        OS.rename(self, target)
        return SimulatedPath(target)

    def iterdir(self) -> Any:
        return iter([self / name for name in OS.listdir(self)])

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:  # type: ignore[override]
        return _PathFile(str(self), mode)


OS: Final = OsDouble()
_DOUBLES: Final[dict[str, tuple[Any, Any]]] = {
    "os": (real_os, OS),
    "socket": (real_socket, SocketModule()),
    "select": (real_select, SelectModule()),
    "fcntl": (real_fcntl, FcntlModule()),
    "shutil": (real_shutil, ShutilModule()),
    "uuid": (real_uuid, UuidModule()),
    "random": (real_random, RandomModule()),
    "gc": (real_gc, GcModule()),
    "Path": (pathlib.Path, SimulatedPath),
}
assert Path is pathlib.Path


class RegionDouble:
    """Replacements for methods of Region: its memory is an anonymous mapping that all simulated processes share."""

    @classmethod
    def create(cls, kind: int, payload_bytes: int, generation: int, *, is_sparse: bool = False) -> Region:
        storage = mmap.mmap(
            -1, PAGE_BYTES + align(payload_bytes, PAGE_BYTES), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        file = RegionFile(storage)
        file.facts = (int(kind), generation, payload_bytes, is_sparse)  # type: ignore[attr-defined]
        region = Region(host.kernel.install(file), int(kind), generation, payload_bytes, is_sparse=is_sparse)
        region._map = storage
        return region

    @classmethod
    def attach(cls, fd: int, *, kind: int | None = None, generation: int | None = None) -> Region:
        file: Any = host.kernel.file(fd)
        found_kind, found_generation, payload_bytes, is_sparse = file.facts
        assert kind in (None, found_kind)
        assert generation in (None, found_generation)
        region = Region(fd, found_kind, found_generation, payload_bytes, is_sparse=is_sparse)
        region._map = file.storage
        return region

    def write_word(self: Any, offset: int, value: int) -> None:
        _WORD.pack_into(self._map, PAGE_BYTES + offset, value)

    def read_word(self: Any, offset: int) -> int:
        return int(_WORD.unpack_from(self._map, PAGE_BYTES + offset)[0])

    def release_pages(self: Any, offset: int, length: int) -> None:
        self._map[PAGE_BYTES + offset : PAGE_BYTES + offset + length] = bytes(length)

    def close_fd(self: Any) -> None:
        if self.fd >= 0:
            host.kernel.close(self.fd)
            self.fd = -1

    def close(self: Any) -> bool:
        """Its own views end; the mapping is everybody's."""
        if self._is_closed:
            return self._map is None
        self._is_closed = True
        self._view = self._words = None
        while self._closers:
            self._closers.pop()()
        while self._views:
            self._views.pop().release()
        self.close_fd()
        self._map = None
        return True


def install(extra: dict[tuple[str, str], Any]) -> None:
    """Put every double in its place in this Python process; `extra` by (module, name). There is no way back."""
    packages = {each.name for each in pkgutil.iter_modules(broker.__path__) if each.ispkg}
    # A package that is not listed would use the real host.
    assert packages == _PACKAGES | _WITHOUT_HOST, packages ^ (_PACKAGES | _WITHOUT_HOST)
    for package in sorted(_PACKAGES):
        path = [str(pathlib.Path(directory) / package) for directory in broker.__path__]
        for found in pkgutil.iter_modules(path, f"kproc.broker.{package}."):
            importlib.import_module(found.name)
    for name, module in list(sys.modules.items()):
        parts = name.split(".")
        is_in_package = parts[:2] == ["kproc", "broker"] and len(parts) > 2 and parts[2] in _PACKAGES
        if module is None or not (is_in_package or name == _FILE_OPENER):
            continue
        for attribute, (real, double) in _DOUBLES.items():
            if module.__dict__.get(attribute) is real:
                setattr(module, attribute, double)
    for method in ("create", "attach", "write_word", "read_word", "release_pages", "close_fd", "close"):
        setattr(Region, method, RegionDouble.__dict__[method])
    for (module_name, attribute), double in extra.items():
        target: Any = importlib.import_module(module_name)
        assert hasattr(target, attribute), f"{module_name} has no {attribute}"
        setattr(target, attribute, double)
