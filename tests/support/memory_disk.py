"""MemoryDisk: a file system in memory that knows what a power loss would leave of it.

Inodes have two contents: what the kernel shows (`data`) and what is on the platter (`durable`); a page in between is
dirty until a sync takes it there. Names are one ordered journal: a sync of a directory makes every operation on names
up to then durable, as ext4 does, and a power loss keeps a prefix of the rest. `crash` is that power loss.

    disk = MemoryDisk(now_ns)
    file = disk.open("/data/x", create=True)
    disk.write(file, b"abc", 0)
    disk.sync(file)            # begin_sync() and end_sync() in one
    disk.crash(random.Random(1))

A failed sync (`fail_sync`) does what Linux does: the pages are clean from then on and were never written.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterable
from typing import Final

PAGE: Final = 512
Pages = dict[int, bytes]


class Inode:
    """One file, or a directory (`data` is unused then)."""

    __slots__ = (
        "being_written", "changed_ns", "data", "dirty", "durable", "durable_marks", "is_directory", "links", "marks",
        "modified_ns", "number",
    )  # fmt: skip

    def __init__(self, number: int, *, is_directory: bool, now_ns: int) -> None:
        self.number = number
        self.is_directory = is_directory
        self.data = bytearray()
        self.durable = bytearray()
        self.dirty: set[int] = set()
        self.being_written: list[SyncBegun] = []
        self.marks: dict[str, bytes] = {}  # Extended attributes.
        self.durable_marks: dict[str, bytes] = {}
        self.links = 1
        self.modified_ns = self.changed_ns = now_ns

    @property
    def is_clean(self) -> bool:
        """Return True if a power loss would change nothing in it."""
        return self.data == self.durable


class SyncBegun:
    """What a sync that has begun will have brought to the disk when it ends."""

    __slots__ = ("inode", "marks", "names", "pages", "size")

    def __init__(self, inode: Inode, pages: Pages, size: int, names: int) -> None:
        self.inode = inode
        self.marks = dict(inode.marks)
        self.pages = pages
        self.size = size
        self.names = names


class MemoryDisk:
    """Names are absolute paths as strings. Errors are OSErrors with the errno that Linux gives."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._numbers = itertools.count(2)
        self._names: dict[str, Inode] = {"/": self._new(is_directory=True)}
        # Namespaces after each operation that is not durable yet; the first is what a power loss leaves at least.
        self._history: list[dict[str, Inode]] = [dict(self._names)]
        self._forgotten = 0  # Namespaces that were dropped from the front.

    # -- names -------------------------------------------------------------------------------------------------

    def find(self, path: str) -> Inode:
        """What is at that path."""
        found = self._names.get(path)
        if found is None:
            raise _error(errno.ENOENT, path)
        return found

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> Inode:
        """The inode at a path, made if it is not there and `create` says so."""
        found = self._names.get(path)
        if found is not None:
            if create and exclusive:
                raise _error(errno.EEXIST, path)
            return found
        if not create:
            raise _error(errno.ENOENT, path)
        return self._add(path, is_directory=False)

    def make_directory(self, path: str) -> None:
        if path in self._names:
            raise _error(errno.EEXIST, path)
        self._add(path, is_directory=True)

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted so that every run sees the same."""
        if not self.find(path).is_directory:
            raise _error(errno.ENOTDIR, path)
        start = path.rstrip("/") + "/"
        length = len(start)
        return sorted(
            name[length:] for name in self._names if name.startswith(start) and "/" not in name[length:]
        )

    def rename(self, source: str, target: str) -> None:
        inode = self.find(source)
        if self._parent(target) not in self._names:
            raise _error(errno.ENOENT, target)
        replaced = self._names.get(target)
        if replaced is not None and replaced.is_directory and self.list(target):
            raise _error(errno.ENOTEMPTY, target)
        names = self._names
        if inode.is_directory:
            start = source + "/"
            for name in [name for name in names if name.startswith(start)]:
                names[target + name[len(source) :]] = names.pop(name)
        del names[source]
        names[target] = inode
        if replaced is not None and replaced is not inode:
            replaced.links = 0
        inode.changed_ns = self._now_ns()
        self._journal()

    def unlink(self, path: str) -> None:
        inode = self.find(path)
        if inode.is_directory:
            raise _error(errno.EISDIR, path)
        del self._names[path]
        inode.links = 0
        self._journal()

    def remove_tree(self, path: str) -> None:
        self.find(path)
        for name in [name for name in self._names if name == path or name.startswith(path + "/")]:
            self._names.pop(name).links = 0
        self._journal()

    def paths(self) -> list[str]:
        """Every name there is."""
        return sorted(self._names)

    def may_have(self, path: str) -> bool:
        """Return True if there is such a name, or a power loss now could bring it back."""
        return any(path in names for names in self._history)

    def _new(self, *, is_directory: bool) -> Inode:
        return Inode(next(self._numbers), is_directory=is_directory, now_ns=self._now_ns())

    def _add(self, path: str, *, is_directory: bool) -> Inode:
        if self._parent(path) not in self._names:
            raise _error(errno.ENOENT, path)
        inode = self._names[path] = self._new(is_directory=is_directory)
        self._journal()
        return inode

    def _journal(self) -> None:
        self._history.append(dict(self._names))

    @staticmethod
    def _parent(path: str) -> str:
        return os.path.dirname(path) or "/"

    # -- contents ----------------------------------------------------------------------------------------------

    def read(self, inode: Inode, length: int, position: int) -> bytes:
        return bytes(inode.data[position : position + length])

    def write(self, inode: Inode, content: bytes | bytearray | memoryview, position: int) -> int:
        data = inode.data
        if position > len(data):
            self._grow(inode, position)
        end = position + len(content)
        data[position:end] = content
        inode.dirty.update(range(position // PAGE, -(-end // PAGE)))
        inode.modified_ns = inode.changed_ns = self._now_ns()
        return len(content)

    def truncate(self, inode: Inode, size: int) -> None:
        if size > len(inode.data):
            self._grow(inode, size)
        elif size < len(inode.data):
            del inode.data[size:]
            inode.dirty = {page for page in inode.dirty if page * PAGE < size}
            if size % PAGE:
                inode.dirty.add(size // PAGE)
        inode.modified_ns = inode.changed_ns = self._now_ns()

    def _grow(self, inode: Inode, size: int) -> None:
        before = len(inode.data)
        inode.data.extend(bytes(size - before))
        inode.dirty.update(range(before // PAGE, -(-size // PAGE)))

    # -- durability --------------------------------------------------------------------------------------------

    def begin_sync(self, inode: Inode) -> SyncBegun:
        """What is dirty now goes to the disk, and what another sync has under way; what comes later waits."""
        numbers = inode.dirty.union(*(each.pages for each in inode.being_written))
        pages = {page: bytes(inode.data[page * PAGE : (page + 1) * PAGE]) for page in numbers}
        inode.dirty = set()
        names = self._forgotten + len(self._history) - 1 if inode.is_directory else 0
        begun = SyncBegun(inode, pages, len(inode.data), names)
        inode.being_written.append(begun)
        return begun

    def end_sync(self, begun: SyncBegun) -> None:
        """It is on the disk, with all that a sync that began before it had under way."""
        being_written = begun.inode.being_written
        if begun not in being_written:
            return
        del being_written[: being_written.index(begun) + 1]
        durable = begun.inode.durable
        begun.inode.durable_marks = begun.marks
        if len(durable) < begun.size:
            durable.extend(bytes(begun.size - len(durable)))
        elif len(durable) > begun.size:
            del durable[begun.size :]
        for page, content in begun.pages.items():
            durable[page * PAGE : page * PAGE + len(content)] = content
        if begun.names > self._forgotten:
            del self._history[: begun.names - self._forgotten]
            self._forgotten = begun.names

    def fail_sync(self, begun: SyncBegun) -> None:
        """The device reported an error: its pages count as clean, and never got there."""
        if begun in begun.inode.being_written:
            begun.inode.being_written.remove(begun)

    def end_unseen(self, begun: SyncBegun) -> None:
        """Who asked for it is dead: nothing was written yet, and it stays to be written."""
        if begun in begun.inode.being_written:
            begun.inode.being_written.remove(begun)
            begun.inode.dirty.update(begun.pages)

    def sync(self, inode: Inode) -> None:
        self.end_sync(self.begin_sync(inode))

    def crash(self, rng: random.Random, *, any_order: bool = True) -> None:
        """The power is lost: some of what was not synced is there, and nobody has a file open any more.

        `any_order`: any subset of the dirty pages of a file may be there, lengths may be ahead of their data;
        otherwise what is there of a file is a prefix of what was written.
        """
        keep = rng.randrange(len(self._history))
        self._names = dict(self._history[keep])
        for inode in dict.fromkeys(self._names.values()):
            inode.links = 1
            inode.being_written = []
            if rng.random() < 0.5:
                inode.marks = dict(inode.durable_marks)
            inode.durable_marks = dict(inode.marks)
            if not inode.is_directory and not inode.is_clean:
                _lose(inode, rng, any_order=any_order)
        self._history = [dict(self._names)]
        self._forgotten = 0

    def unsynced(self) -> Iterable[str]:
        """Files that a power loss could change."""
        return [path for path, inode in self._names.items() if not inode.is_directory and not inode.is_clean]


def _lose(inode: Inode, rng: random.Random, *, any_order: bool) -> None:
    """Decide what of one file's unsynced state reached the disk."""
    kind = rng.choice(("none", "all", "some", "some"))
    durable, data = inode.durable, inode.data
    # What a sync had under way, or failed to bring there, is lost as well.
    ends = range(0, len(data), PAGE)
    dirty = [at // PAGE for at in ends if data[at : at + PAGE] != durable[at : at + PAGE]]
    if kind == "none":
        content = bytearray(durable)
    elif kind == "all":
        content = bytearray(data)
    elif any_order:
        kept = [page for page in dirty if rng.random() < 0.5]
        sizes = sorted((len(durable), len(data)))
        size = max(_some_size(rng, *sizes), min(len(data), (kept[-1] + 1) * PAGE if kept else 0))
        content = bytearray(durable[:size]) + bytes(max(0, size - len(durable)))
        for page in kept:
            part = data[page * PAGE : min((page + 1) * PAGE, size)]
            content[page * PAGE : page * PAGE + len(part)] = part
    else:
        start = dirty[0] * PAGE if dirty else min(len(durable), len(data))
        end = _some_size(rng, min(start, len(data)), len(data))
        content = bytearray(data[:end])
        if len(durable) > end and len(data) >= len(durable):
            content += durable[end:]
    inode.data = content
    inode.durable = bytearray(content)
    inode.dirty = set()


def _some_size(rng: random.Random, low: int, high: int) -> int:
    """A length that a file may have after a power loss: it grows page by page, or as far as it was written."""
    return rng.choice([low, high, *range(-(-low // PAGE) * PAGE, high, PAGE)])


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
