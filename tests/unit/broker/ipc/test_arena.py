"""Blocks never overlap, memory goes back to the kernel, and mistakes are loud."""

from __future__ import annotations

import os
import socket
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproc.broker.ipc.arena import Arena, ArenaReader
from kproc.broker.ipc.layout import PAGE_BYTES
from kproc.broker.ipc.region import Region, RegionKind, RegionMismatch
from kproc.common.errors import FatalError
from tests.support.budget import example_count
from tests.support.proc import open_descriptors
from tests.support.ring_pair import Forked

PAGES = 16


@pytest.fixture
def arena():
    """Sixteen pages, none of them kept warm."""
    made = Arena.create(PAGES * PAGE_BYTES, 1, warm_bytes=0)
    yield made
    made.close()


def pages_in_use(arena: Arena) -> int:
    """As the kernel counts them, without the header's."""
    return os.fstat(arena.fd).st_blocks * 512 // PAGE_BYTES - 1


def fill(arena: Arena, offset: int, length: int, byte: bytes = b"x") -> None:
    arena.view(offset, length)[:] = byte * length


def test_blocks_are_whole_pages_from_the_low_end(arena):
    assert [arena.allocate(length) for length in (1, PAGE_BYTES, PAGE_BYTES + 1, 1)] == [
        0,
        PAGE_BYTES,
        2 * PAGE_BYTES,
        4 * PAGE_BYTES,
    ]
    assert arena.lent_bytes == 5 * PAGE_BYTES
    assert arena.lent_count() == 4
    assert arena.free_bytes() == (PAGES - 5) * PAGE_BYTES


def test_exhausted_arena_answers_none_until_something_is_freed(arena):
    blocks = [arena.allocate(PAGE_BYTES) for _ in range(PAGES)]
    assert arena.allocate(1) is None
    arena.free(blocks[7])
    assert arena.allocate(PAGE_BYTES + 1) is None
    assert arena.allocate(PAGE_BYTES) == blocks[7]
    assert arena.allocate(1) is None


def test_more_than_the_whole_arena_is_none_and_the_whole_is_not(arena):
    assert arena.allocate(PAGES * PAGE_BYTES + 1) is None
    assert arena.allocate(PAGES * PAGE_BYTES) == 0


def test_fragmented_arena_rejects_long_run_and_merges_blocks(arena):
    blocks = [arena.allocate(PAGE_BYTES) for _ in range(PAGES)]
    for offset in blocks[::2]:
        arena.free(offset)
    assert arena.free_bytes() == PAGES // 2 * PAGE_BYTES
    assert arena.allocate(2 * PAGE_BYTES) is None
    arena.free(blocks[5])  # Joins the runs on both of its sides: pages 4, 5 and 6.
    assert arena.allocate(3 * PAGE_BYTES) == blocks[4]
    arena.free(blocks[4])
    for offset in blocks[1::2]:
        if offset != blocks[5]:
            arena.free(offset)
    assert arena.allocate(PAGES * PAGE_BYTES) == 0


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1)])
def test_neighbours_join_in_whatever_order_they_are_freed(arena, order):
    blocks = [arena.allocate(PAGE_BYTES) for _ in range(3)]
    for place in order:
        arena.free(blocks[place])
    assert (arena._free_starts, arena._free_lengths) == ([0], [PAGES * PAGE_BYTES])


def test_memory_comes_with_the_bytes_and_goes_with_the_block(arena):
    offset = arena.allocate(8 * PAGE_BYTES)
    assert pages_in_use(arena) == 0
    fill(arena, offset, 3 * PAGE_BYTES)
    assert pages_in_use(arena) == 3
    fill(arena, offset, 8 * PAGE_BYTES)
    other = arena.allocate(PAGE_BYTES)
    fill(arena, other, PAGE_BYTES, b"o")
    assert arena.resident_bytes() == 10 * PAGE_BYTES
    arena.free(offset)
    assert pages_in_use(arena) == 1
    assert bytes(arena.view(other, PAGE_BYTES)) == b"o" * PAGE_BYTES


def test_warm_pages_stay_allocated_after_free():
    arena = Arena.create(PAGES * PAGE_BYTES, 1, warm_bytes=4 * PAGE_BYTES)
    low = arena.allocate(2 * PAGE_BYTES)
    across = arena.allocate(4 * PAGE_BYTES)
    high = arena.allocate(2 * PAGE_BYTES)
    for offset, count in ((low, 2), (across, 4), (high, 2)):
        fill(arena, offset, count * PAGE_BYTES)
    assert pages_in_use(arena) == 8
    arena.free(high)
    assert pages_in_use(arena) == 6
    arena.free(across)  # Its two pages below the line stay.
    assert pages_in_use(arena) == 4
    assert bytes(arena.view(low, PAGE_BYTES)) == b"x" * PAGE_BYTES
    arena.free(low)
    assert pages_in_use(arena) == 4
    assert arena.allocate(PAGES * PAGE_BYTES) == 0
    assert arena.close()


def test_steady_traffic_reuses_the_same_warm_pages():
    arena = Arena.create(1 << 26, 1, warm_bytes=1 << 20)
    for _ in range(50):
        offset = arena.allocate(1 << 20)
        assert offset == 0
        fill(arena, offset, 1 << 20)
        arena.free(offset)
    assert pages_in_use(arena) == (1 << 20) // PAGE_BYTES
    assert arena.close()


def test_freeing_twice_or_what_was_never_lent_asserts(arena):
    offset = arena.allocate(3 * PAGE_BYTES)
    for wrong in (offset + PAGE_BYTES, PAGES * PAGE_BYTES, -1):
        with pytest.raises(AssertionError, match="no block is lent"):
            arena.free(wrong)
    arena.free(offset)
    with pytest.raises(AssertionError, match=f"no block is lent at {offset}"):
        arena.free(offset)
    assert arena.free_bytes() == arena.capacity


def test_owner_cannot_look_outside_a_block(arena):
    offset = arena.allocate(100)
    assert len(arena.view(offset, 100)) == 100
    assert len(arena.view(offset, 0)) == 0
    for wrong_offset, length in ((offset, PAGE_BYTES + 1), (offset, -1), (offset + 1, 1), (PAGE_BYTES, 1)):
        with pytest.raises(AssertionError):
            arena.view(wrong_offset, length)
    with pytest.raises(AssertionError):
        arena.allocate(0)


def test_reader_cannot_look_outside_the_arena(arena):
    reader = ArenaReader.attach(os.dup(arena.fd), generation=1)
    whole = PAGES * PAGE_BYTES
    assert len(reader.view(0, whole)) == whole
    assert len(reader.view(whole, 0)) == 0
    for offset, length in ((0, whole + 1), (whole, 1), (-1, 1), (1, -1), (1 << 62, 1 << 62)):
        with pytest.raises(FatalError, match="outside an arena"):
            reader.view(offset, length)
    reader.close()


def test_reader_refuses_another_kind_and_generation(arena):
    with pytest.raises(RegionMismatch, match="generation 1, expected 2"):
        ArenaReader.attach(arena.fd, generation=2)
    with Region.create(RegionKind.LINK, PAGE_BYTES, 1) as link, pytest.raises(RegionMismatch, match="kind 1"):
        ArenaReader.attach(link.fd)


def test_reader_attaches_without_populating_a_sparse_arena():
    arena = Arena.create(1 << 30, 4)
    reader = ArenaReader.attach(os.dup(arena.fd))
    assert reader.generation == arena.generation == 4
    assert pages_in_use(arena) == 0
    reader.close()
    assert arena.close()


def test_frame_in_block_is_read_and_stamped_by_other_process(arena):
    near, far = socket.socketpair()
    offset = arena.allocate(10_000)
    body = os.urandom(10_000)
    with near, far:
        far.sendall(body)
        view = arena.view(offset, 10_000)
        received = 0
        while received < len(body):
            received += near.recv_into(view[received:])
        view.release()

    def stamp() -> bytes:
        reader = ArenaReader.attach(os.dup(arena.fd), generation=1)
        block = reader.view(offset, 10_000)
        seen = bytes(block)
        block[:8] = b"stamped!"
        block.release()
        reader.close()
        return seen

    assert Forked(stamp).result() == body
    assert bytes(arena.view(offset, 10_000)) == b"stamped!" + body[8:]


def test_arena_outlives_its_owner_until_the_last_view_is_dropped():
    """A successor has an arena of its own, so what a Handler still reads cannot be overwritten."""
    before = open_descriptors()
    arena = Arena.create(PAGES * PAGE_BYTES, 1)
    offset = arena.allocate(100)
    fill(arena, offset, 100, b"v")
    reader = ArenaReader.attach(os.dup(arena.fd))
    held = reader.view(offset, 100)
    assert arena.close()
    reader.close()
    assert bytes(held) == b"v" * 100
    del held
    assert open_descriptors() == before


def test_close_says_when_a_view_is_still_held():
    arena = Arena.create(PAGE_BYTES, 1)
    held = arena.view(arena.allocate(10), 10)
    assert not arena.close()
    del held


@settings(max_examples=example_count(60), deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 6 * PAGE_BYTES), st.integers(0, 1 << 30)), max_size=60)
)
def test_blocks_never_overlap_and_all_pages_come_back(steps):
    arena = Arena.create(PAGES * PAGE_BYTES, 1, warm_bytes=3 * PAGE_BYTES)
    lent: dict[int, int] = {}
    for is_allocation, length, choice in steps:
        if is_allocation:
            offset = arena.allocate(length)
            free = set(range(PAGES)) - {
                page
                for start, count in lent.items()
                for page in range(start // PAGE_BYTES, start // PAGE_BYTES + count)
            }
            need = -(-length // PAGE_BYTES)
            runs = [page for page in free if all(page + step in free for step in range(need))]
            if offset is None:
                assert not runs
            else:
                assert offset == min(runs) * PAGE_BYTES
                fill(arena, offset, length)
                lent[offset] = need
        elif lent:
            offset = sorted(lent)[choice % len(lent)]
            arena.free(offset)
            del lent[offset]
        assert arena.lent_bytes == sum(lent.values()) * PAGE_BYTES
    for offset in lent:
        arena.free(offset)
    assert pages_in_use(arena) <= 3
    assert (arena._free_starts, arena._free_lengths) == ([0], [PAGES * PAGE_BYTES])
    assert arena.close()


def test_arena_grow_stays_in_place_or_moves_with_its_bytes() -> None:
    with closing(Arena.create(32 * PAGE_BYTES, 1, warm_bytes=0)) as arena:
        first = arena.allocate(2 * PAGE_BYTES)
        assert first is not None
        with arena.view(first, 5) as view:
            view[:] = b"hello"
        assert arena.grow(first, 4 * PAGE_BYTES, 5) == first
        assert arena.grow(first, PAGE_BYTES, 5) == first, "it never shrinks"
        assert arena.lent_bytes == 4 * PAGE_BYTES
        behind = arena.allocate(PAGE_BYTES)
        moved = arena.grow(first, 8 * PAGE_BYTES, 5)
        assert moved is not None
        assert moved > first
        with arena.view(moved, 5) as view:
            assert view == b"hello"
        assert arena.lent_bytes == 9 * PAGE_BYTES
        assert arena.grow(moved, 28 * PAGE_BYTES, 5) is None
        assert arena.lent_bytes == 9 * PAGE_BYTES
        for offset in (behind, moved):
            assert offset is not None
            arena.free(offset)
        assert arena.allocate(32 * PAGE_BYTES) == 0, "one free run again"
        arena.free(0)
