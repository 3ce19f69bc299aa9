"""Regions: sealed, anonymous shared memory that is handed over by descriptor.

A region is a memfd, never a named segment. A memfd needs no unlink, Python's resource tracker cannot unlink it by
mistake, the 64 MiB limit of a container's /dev/shm does not apply, and the kernel frees it with its last user, killed
or not. It is sealed SHRINK | GROW | SEAL, so that no peer can cut off the memory under a reader (SIGBUS). It is not
sealed WRITE, which fails while it is mapped, nor FUTURE_WRITE, which would forbid later attachment.

A region is never reset. When one side of it dies, both sides get a new region of a new generation, and nobody reads
what the dead process left half-written in the old one.

Forked children inherit mappings together with a hidden descriptor that `mmap` keeps. If a child closes all descriptors
that it should not have, it must not destroy such an mmap object later: that would close the number again, which may
belong to another file by then. A region is therefore mapped at its first use only. A supervisor that makes regions and
hands them out never maps them. A process that does map them must `close()` them in the child first.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, Self

from kproc.broker.ipc.layout import LAYOUT_VERSION, PAGE_BYTES, REGION_HEADER, REGION_MAGIC, WORD_BYTES, align
from kproc.broker.ipc.words import cast_words
from kproc.common.errors import FatalError

SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_HEADER: Final = struct.Struct(f"={len(REGION_HEADER.words)}Q")
_WORD: Final = struct.Struct("=Q")
assert list(REGION_HEADER.word) == ["magic", "version", "kind", "generation", "payload_bytes", "is_sparse"]
assert list(REGION_HEADER.word.values()) == list(range(6)), "the header is packed as one struct"


class RegionKind(IntEnum):
    """The content of a region's payload. Add new kinds at the end, and never reuse a number."""

    LINK = 1
    ARENA = 2
    SLAB = 3
    TABLE = 4


class RegionMismatch(FatalError):
    """The descriptor is not the region that was expected: another version, kind, generation or size."""


class Region:
    """One process's handle of a region: its descriptor and, after the first use, its mapping.

    The process that makes the region keeps `fd` as long as it may have to hand the region out. A process that attaches
    may call `close_fd()` at once. `close()` releases the descriptor and the mapping.
    """

    def __init__(self, fd: int, kind: int, generation: int, payload_bytes: int, *, is_sparse: bool) -> None:
        self.fd = fd
        self.kind = kind
        self.generation = generation
        self.payload_bytes = payload_bytes
        self._is_sparse = is_sparse
        self._map: mmap.mmap | None = None
        self._is_closed = False
        # Released in reverse order at close(), because an mmap refuses to unmap under a view. Its BufferError would
        # hide the error that made us close.
        self._views: list[memoryview] = []
        self._closers: list[Callable[[], None]] = []
        self._view: memoryview | None = None
        self._words: memoryview | None = None

    @classmethod
    def create(cls, kind: int, payload_bytes: int, generation: int, *, is_sparse: bool = False) -> Self:
        """Make a region; its payload is zeros. Raises FatalError if that fails.

        Its pages are allocated now, so that a lack of memory is an error here and not a SIGBUS in a hot loop. The pages
        of a sparse region are allocated at their first use instead.
        """
        assert payload_bytes > 0, payload_bytes
        assert generation >= 0, generation
        total_bytes = PAGE_BYTES + align(payload_bytes, PAGE_BYTES)
        fd = -1
        try:
            fd = os.memfd_create(f"kproc-{int(kind)}-{generation}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, total_bytes)
            # ftruncate alone allocates nothing: a memfd is a file of tmpfs, and a full tmpfs or cgroup shows at the
            # first store, as SIGBUS.
            os.posix_fallocate(fd, 0, PAGE_BYTES if is_sparse else total_bytes)
            # A plain write is enough, because no other process can see the region yet.
            header = (REGION_MAGIC, LAYOUT_VERSION, kind, generation, payload_bytes, is_sparse)
            os.pwrite(fd, _HEADER.pack(*header), 0)
            # Seal only now, because the seals also forbid this process to change the size.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            raise FatalError(
                f"cannot create a region of {payload_bytes} bytes of shared memory: {error}"
            ) from error
        return cls(fd, int(kind), generation, payload_bytes, is_sparse=is_sparse)

    @classmethod
    def attach(cls, fd: int, *, kind: int | None = None, generation: int | None = None) -> Self:
        """Return a region that owns a received descriptor.

        kind, generation: the values that the region must have; None: any. Raise RegionMismatch if the descriptor is not
        such a region. The caller must then close the descriptor.
        """
        # Check the header through the descriptor before mapping it, because a mapped file that can shrink would kill
        # this process with SIGBUS.
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            size = os.fstat(fd).st_size
            head = os.pread(fd, _HEADER.size, 0)
        except OSError as error:
            raise RegionMismatch(f"descriptor {fd} is not a region: {error}") from error
        if len(head) != _HEADER.size:
            raise RegionMismatch(f"descriptor {fd} is not a region: it holds {size} bytes")
        magic, version, found_kind, found_generation, payload_bytes, is_sparse = _HEADER.unpack(head)
        if magic != REGION_MAGIC:
            raise RegionMismatch(f"descriptor {fd} is not a region: magic {magic:#x}")
        if version != LAYOUT_VERSION:
            raise RegionMismatch(
                f"region has layout version {version}, but this version of kproc expects {LAYOUT_VERSION}"
            )
        # A peer could shrink a region that is not sealed, and the next access would kill this process with SIGBUS.
        if seals & SEALS != SEALS:
            raise RegionMismatch(f"region is not sealed: seals {seals:#x}, expected {SEALS:#x}")
        if size != PAGE_BYTES + align(payload_bytes, PAGE_BYTES) or not payload_bytes:
            raise RegionMismatch(f"region of {size} bytes claims a payload of {payload_bytes} bytes")
        if kind is not None and found_kind != kind:
            raise RegionMismatch(f"region of kind {found_kind}, expected {int(kind)}")
        if generation is not None and found_generation != generation:
            raise RegionMismatch(f"region of generation {found_generation}, expected {generation}")
        return cls(fd, found_kind, found_generation, payload_bytes, is_sparse=bool(is_sparse))

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            assert not self._is_closed, "the region was closed"
            # MAP_POPULATE maps all pages at once, so that hot loops have no page faults. A sparse region must stay
            # without pages.
            flags = mmap.MAP_SHARED if self._is_sparse else mmap.MAP_SHARED | mmap.MAP_POPULATE
            try:
                self._map = mmap.mmap(self.fd, 0, flags=flags)
            except OSError as error:
                raise FatalError(
                    f"cannot map a region of {self.payload_bytes} bytes of shared memory: {error}"
                ) from error
        return self._map

    def carve(self, offset: int, length: int) -> memoryview:
        """Return a writable view of a part of the payload. Raise FatalError if the part is not inside the payload.

        close() releases the view if the caller has not.
        """
        if offset < 0 or length < 0 or offset + length > self.payload_bytes:
            raise FatalError(
                f"{length} bytes at offset {offset} lie outside a payload of {self.payload_bytes} bytes"
            )
        with memoryview(self._mapped()) as whole:
            part = whole[PAGE_BYTES + offset : PAGE_BYTES + offset + length]
        self._views.append(part)
        return part

    def carve_words(self, offset: int, count: int) -> memoryview:
        """Return a part of the payload, like `carve`, as shared words."""
        assert offset % WORD_BYTES == 0, offset
        words = cast_words(self.carve(offset, count * WORD_BYTES))
        self._views.append(words)
        return words

    @property
    def view(self) -> memoryview:
        """Return the whole payload as bytes. Call it once and keep the result; it is too slow for hot loops."""
        if self._view is None:
            self._view = self.carve(0, self.payload_bytes)
        return self._view

    @property
    def words(self) -> memoryview:
        """Return the payload as words. Call it once and keep the result; it is too slow for hot loops."""
        if self._words is None:
            self._words = self.carve_words(0, self.payload_bytes // WORD_BYTES)
        return self._words

    def write_word(self, offset: int, value: int) -> None:
        """Store a word by the descriptor, without mapping the region, while no other process has it."""
        assert offset % WORD_BYTES == 0, offset
        assert 0 <= offset < self.payload_bytes, offset
        os.pwrite(self.fd, _WORD.pack(value), PAGE_BYTES + offset)

    def read_word(self, offset: int) -> int:
        """Read a shared word by the descriptor, for a process that reads seldom and must not map the region."""
        assert offset % WORD_BYTES == 0, offset
        assert 0 <= offset < self.payload_bytes, offset
        value: int = _WORD.unpack(os.pread(self.fd, WORD_BYTES, PAGE_BYTES + offset))[0]
        return value

    def release_pages(self, offset: int, length: int) -> None:
        """Return whole pages of the payload to the kernel (MADV_REMOVE). They read as zeros from now on."""
        assert offset % PAGE_BYTES == 0, offset
        assert length % PAGE_BYTES == 0, length
        assert 0 <= offset <= offset + length <= align(self.payload_bytes, PAGE_BYTES), (offset, length)
        if length:
            # MADV_REMOVE punches a hole into the memfd, so that the memory is free for all processes
            # (madvise(2)). MADV_DONTNEED would only unmap the pages of this process, and the memfd would keep
            # them.
            self._mapped().madvise(mmap.MADV_REMOVE, PAGE_BYTES + offset, length)

    def resident_bytes(self) -> int:
        """Return the memory that the region takes, in bytes. A process's PSS has only the pages that it has mapped."""
        # Multiply by 512, because st_blocks counts units of 512 bytes, whatever the block size of the file system is.
        return os.fstat(self.fd).st_blocks * 512

    def before_close(self, closer: Callable[[], None]) -> None:
        """Have close() call `closer`, which releases views that only it knows."""
        self._closers.append(closer)

    def close_fd(self) -> None:
        """Close the descriptor but keep the mapping, because this process will not pass the region on."""
        if self.fd >= 0:
            self._mapped()
            # The mapping keeps the memfd alive without a descriptor (mmap(2)).
            os.close(self.fd)
            self.fd = -1

    def close(self) -> bool:
        """Release the region. Return False if a view is still held: then the memory is freed with the last view."""
        if self._is_closed:
            return self._map is None
        self._is_closed = True
        self._view = self._words = None
        # Call the closers first, because they release views that were made from this region's views.
        while self._closers:
            self._closers.pop()()
        while self._views:
            self._views.pop().release()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self._map is None:
            return True
        held, self._map = self._map, None
        try:
            held.close()
        except BufferError:
            # A view may outlive the region on purpose, so that its user can finish with it. The views keep the
            # mapping alive, and it is unmapped when the last of them is dropped.
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
