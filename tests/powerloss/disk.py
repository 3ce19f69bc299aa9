"""RecordingFs: an Fs in memory that knows what of each file and directory was synced, and forks into crash images.

An inode has what the kernel shows and what the disk has; pages of 4 KiB differ between them from a write until a sync.
Names are a journal: each operation is durable once its directory was synced, or, as ext4 orders them, once anything
behind it in the journal is. `crash` builds what is left: a new disk, on which nothing is open.
"""

from __future__ import annotations

import errno
import random
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kproc.broker.storage.fs import Buffer, DiskFailed
from kproc.common.clock import Clock

PAGE: Final = 4096


class Inode:
    """A file or a directory: its present state, and the durable one."""

    __slots__ = (
        "aborted",
        "changed_ns",
        "data",
        "dirty",
        "disk",
        "disk_aborted",
        "disk_mark",
        "disk_newest",
        "disk_start",
        "entries",
        "mark",
        "modified_ns",
        "newest",
        "number",
        "old",
        "start",
    )

    def __init__(self, number: int, now_ns: int, *, is_directory: bool) -> None:
        self.number = number
        self.data, self.disk = bytearray(), bytearray()
        self.dirty: set[int] = set()
        self.mark = self.disk_mark = 0
        self.aborted: int | None = None
        self.disk_aborted: int | None = None
        self.newest: int | None = None  # Of a partition's directory.
        self.disk_newest: int | None = None
        self.start: bytes | None = None  # Of a partition's directory.
        self.disk_start: bytes | None = None
        self.modified_ns = self.changed_ns = now_ns
        self.entries: dict[str, Inode] | None = {} if is_directory else None
        self.old: dict[
            str, Inode
        ] = {}  # Of a directory: the names before the operations that are journalled.

    @property
    def st_ino(self) -> int:
        return self.number

    @property
    def st_nlink(self) -> int:
        return 0  # Not counted, as on some file systems: the broker looks at the path then.

    @property
    def st_mode(self) -> int:
        return stat.S_IFREG if self.entries is None else stat.S_IFDIR

    @property
    def st_size(self) -> int:
        return len(self.data)

    @property
    def st_mtime_ns(self) -> int:
        return self.modified_ns

    @property
    def st_ctime_ns(self) -> int:
        return self.changed_ns


# One change of names: (directory, name, inode or None) pairs that happen together.
Change = tuple[tuple[Inode, str, Inode | None], ...]


class Entry:
    """A change in the journal, and whether a sync of its directory has made it durable by itself."""

    __slots__ = ("change", "is_synced")

    def __init__(self, change: Change) -> None:
        self.change = change
        self.is_synced = False


class RecordingFs:
    """The Fs. `on_change` is called before each operation that a crash could come before."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 1
        self.root = Inode(1, clock.now_ns(), is_directory=True)
        self._open: dict[int, Inode] = {}
        self._next_descriptor = 1000
        self._journal: list[Entry] = []
        self.on_change: Callable[[], None] = lambda: None
        # Whether the next sync of a file that has dirty pages fails: they count as clean then, and nothing wrote them.
        self.fails_sync = False

    # -- names -------------------------------------------------------------------------------------------------

    def _find(self, path: Path) -> Inode | None:
        inode: Inode | None = self.root
        for part in path.parts[1:]:
            inode = inode.entries.get(part) if inode is not None and inode.entries is not None else None
        return inode

    def _get(self, path: Path) -> Inode:
        inode = self._find(path)
        if inode is None:
            raise DiskFailed(errno.ENOENT, f"no {path}")
        return inode

    def _parent(self, path: Path) -> Inode:
        return self._get(path.parent)

    def _new(self, *, is_directory: bool = False) -> Inode:
        self._count += 1
        return Inode(self._count, self._clock.wall_ms() * 1_000_000 + self._count, is_directory=is_directory)

    def _change(self, *parts: tuple[Inode, str, Inode | None]) -> None:
        self.on_change()
        for directory, name, inode in parts:
            assert directory.entries is not None
            if inode is None:
                directory.entries.pop(name, None)
            else:
                directory.entries[name] = inode
        self._journal.append(Entry(parts))

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        del writable
        if create:
            if self._find(path) is not None:
                raise DiskFailed(errno.EEXIST, f"{path} is there")
            inode = self._new()
            self._change((self._parent(path), path.name, inode))
        else:
            inode = self._get(path)
        return self._opened(inode)

    def _opened(self, inode: Inode) -> int:
        self._next_descriptor += 1
        self._open[self._next_descriptor] = inode
        return self._next_descriptor

    def close(self, descriptor: int) -> None:
        del self._open[descriptor]

    def open_directory(self, path: Path) -> int:
        return self._opened(self._get(path))

    def make_directory(self, path: Path) -> bool:
        if self._find(path) is not None:
            return False
        self._change((self._parent(path), path.name, self._new(is_directory=True)))
        return True

    def list_directory(self, path: Path) -> list[str]:
        return list(self._get(path).entries or ())

    def exists(self, path: Path) -> bool:
        return self._find(path) is not None

    def facts_at(self, path: Path) -> Inode | None:
        return self._find(path)

    def rename(self, source: Path, target: Path) -> bool:
        inode = self._find(source)
        if inode is None:
            return False
        inode.changed_ns = self._clock.wall_ms() * 1_000_000
        self._change((self._parent(source), source.name, None), (self._parent(target), target.name, inode))
        return True

    def unlink(self, path: Path) -> bool:
        if self._find(path) is None:
            return False
        self._change((self._parent(path), path.name, None))
        return True

    def remove_tree(self, path: Path) -> None:
        inode = self._find(path)
        if inode is None:
            return
        for name in list(inode.entries or ()):
            self._change((inode, name, None))
        self._change((self._parent(path), path.name, None))

    # -- contents ----------------------------------------------------------------------------------------------

    def read(self, descriptor: int, length: int, *, position: int) -> bytes:
        return bytes(self._open[descriptor].data[position : position + length])

    def read_file(self, path: Path) -> bytes | None:
        inode = self._find(path)
        return None if inode is None else bytes(inode.data)

    def write(self, descriptor: int, buffers: Sequence[Buffer], *, position: int) -> None:
        self.on_change()
        inode, content = self._open[descriptor], b"".join(buffers)
        if position > len(inode.data):
            inode.data.extend(bytes(position - len(inode.data)))
        inode.data[position : position + len(content)] = content
        inode.dirty.update(range(position // PAGE, (position + len(content) - 1) // PAGE + 1))
        inode.modified_ns = self._clock.wall_ms() * 1_000_000 + self._count

    def reserve(self, descriptor: int, position: int, length: int) -> bool:
        del descriptor, position, length
        return False

    def truncate(self, descriptor: int, size: int) -> None:
        inode = self._open[descriptor]
        if size == len(inode.data):
            return
        self.on_change()
        if size > len(inode.data):
            inode.data.extend(bytes(size - len(inode.data)))
        del inode.data[size:]
        inode.dirty = {page for page in inode.dirty if page * PAGE < size} | (
            {size // PAGE} if size % PAGE else set()
        )

    def facts(self, descriptor: int) -> Inode:
        return self._open[descriptor]

    def set_modified(self, descriptor: int, modified_ns: int) -> None:
        self._open[descriptor].modified_ns = modified_ns

    def write_synced_mark(self, descriptor: int, size: int) -> None:
        self._open[descriptor].mark = size

    def read_synced_mark(self, descriptor: int) -> int:
        return self._open[descriptor].mark

    def write_aborted_mark(self, descriptor: int, checksum: int) -> None:
        self._open[descriptor].aborted = checksum

    def read_aborted_mark(self, descriptor: int) -> int | None:
        return self._open[descriptor].aborted

    def write_newest_mark(self, descriptor: int, base_offset: int) -> None:
        self._open[descriptor].newest = base_offset

    def read_newest_mark(self, descriptor: int) -> int | None:
        return self._open[descriptor].newest

    def write_start_mark(self, descriptor: int, content: bytes) -> None:
        self._open[descriptor].start = content

    def read_start_mark(self, descriptor: int) -> bytes | None:
        return self._open[descriptor].start

    def sync(self, descriptor: int) -> None:
        self.on_change()
        inode = self._open[descriptor]
        if inode.entries is not None:
            for entry in self._journal:
                entry.is_synced |= any(part[0] is inode for part in entry.change)
            while self._journal and self._journal[0].is_synced:
                for directory, name, target in self._journal.pop(0).change:
                    _put(directory.old, name, target)
            inode.disk_newest, inode.disk_start = inode.newest, inode.start
            return
        if self.fails_sync and inode.dirty:
            self.fails_sync = False
            inode.dirty = set()
            raise DiskFailed(errno.EIO, "fdatasync: the device failed")
        for page in inode.dirty:
            content = inode.data[page * PAGE : (page + 1) * PAGE]
            if len(inode.disk) < page * PAGE:
                inode.disk.extend(bytes(page * PAGE - len(inode.disk)))
            inode.disk[page * PAGE : page * PAGE + len(content)] = content
        del inode.disk[len(inode.data) :]
        inode.disk.extend(bytes(len(inode.data) - len(inode.disk)))
        inode.dirty = set()
        inode.disk_mark, inode.disk_aborted = inode.mark, inode.aborted

    # -- crashes -----------------------------------------------------------------------------------------------

    def crash(self, rng: random.Random, *, contents: str, names: str) -> RecordingFs:
        """A new disk with what a power loss at this moment may leave.

        `contents`: "synced" nothing else, "all", "pages" any subset of the dirty ones under any length. `names`:
        "synced", "all", "prefix" of the journal, "subset" of what no sync of a directory covered.
        """
        last = max((n for n, entry in enumerate(self._journal, 1) if entry.is_synced), default=0)
        upto = rng.randint(last, len(self._journal)) if names == "prefix" else 0
        taken = [
            entry.change
            for number, entry in enumerate(self._journal)
            if entry.is_synced
            or names == "all"
            or number < upto
            or (names == "subset" and rng.random() < 0.5)
        ]
        listings: dict[Inode, dict[str, Inode]] = {}
        for change in taken:
            for directory, name, inode in change:
                _put(listings.setdefault(directory, dict(directory.old)), name, inode)
        image = RecordingFs(self._clock)
        image._count = self._count + 1
        made: dict[Inode, Inode] = {}

        def copy(inode: Inode) -> Inode:
            if inode in made:
                return made[inode]
            new = made[inode] = Inode(inode.number, inode.modified_ns, is_directory=inode.entries is not None)
            new.changed_ns = inode.changed_ns
            if new.entries is not None:
                new.entries = {name: copy(each) for name, each in listings.get(inode, inode.old).items()}
                new.old = dict(new.entries)
                # The journal commits an attribute with other changes: without a sync it can be on the disk as well.
                new.newest = new.disk_newest = inode.disk_newest if contents == "synced" else inode.newest
                new.start = new.disk_start = inode.disk_start if contents == "synced" else inode.start
            else:
                new.data = _left_of(inode, rng, contents)
                new.disk = bytearray(new.data)
                is_old = contents == "synced" or rng.random() < 0.5
                new.mark = inode.disk_mark if is_old else inode.mark
                new.aborted = inode.disk_aborted if is_old else inode.aborted
                new.disk_mark, new.disk_aborted = new.mark, new.aborted
            return new

        image.root = copy(self.root)
        return image


def _put(entries: dict[str, Inode], name: str, inode: Inode | None) -> None:
    if inode is None:
        entries.pop(name, None)
    else:
        entries[name] = inode


def _left_of(inode: Inode, rng: random.Random, contents: str) -> bytearray:
    """A file's bytes after the power loss."""
    if contents == "all":
        return bytearray(inode.data)
    left = bytearray(inode.disk)
    if contents == "synced" or (not inode.dirty and len(inode.disk) == len(inode.data)):
        return left
    shorter, longer = sorted((len(inode.disk), len(inode.data)))
    size = rng.choice((shorter, longer, longer, rng.randint(shorter, longer)))
    del left[size:]
    left.extend(bytes(size - len(left)))
    share = rng.choice((0.1, 0.5, 0.9))
    for page in sorted(inode.dirty):
        if rng.random() < share:
            content = inode.data[page * PAGE : min((page + 1) * PAGE, size)]
            left[page * PAGE : page * PAGE + len(content)] = content
    return left
