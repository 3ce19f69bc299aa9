"""The index files: bytes, lookups against a list, truncation."""

from __future__ import annotations

import errno
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kproc.broker.storage.fs import Buffer, DiskFull
from kproc.broker.storage.index import (
    OffsetIndex,
    TimeIndex,
    create_index,
    open_offset_index,
    open_time_index,
)
from kproc.broker.storage.os_fs import OsFs

FS = OsFs()
BASE = 1000


@pytest.fixture
def offsets(tmp_path: Path) -> Iterator[OffsetIndex]:
    path = tmp_path / "a.index"
    index = OffsetIndex(FS, path, BASE, 0, create_index(FS, path))
    yield index
    index.close()


@pytest.fixture
def times(tmp_path: Path) -> Iterator[TimeIndex]:
    path = tmp_path / "a.timeindex"
    index = TimeIndex(FS, path, BASE, 0, create_index(FS, path))
    yield index
    index.close()


def test_entries_have_kafkas_bytes(offsets: OffsetIndex, times: TimeIndex) -> None:
    offsets.append([(1005, 4097), (1010, 2**31 - 1)])
    times.append([(0x0102030405060708, 1005)])
    assert offsets.path.read_bytes().hex() == "00000005000010010000000a7fffffff"
    assert times.path.read_bytes().hex() == "010203040506070800000005"


@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 500])
def test_lookup_finds_the_floor(offsets: OffsetIndex, count: int) -> None:
    pairs = [(BASE + 3 * n + 2, 100 * n + 50) for n in range(count)]
    if pairs:
        offsets.append(pairs)
    keys = [offset for offset, _ in pairs]
    for offset in range(BASE, BASE + 3 * count + 5):
        number = bisect_right(keys, offset) - 1
        assert offsets.lookup(offset) == (pairs[number][1] if number >= 0 else 0)


def test_neighbours_of_offset_are_correct_for_any_window(offsets: OffsetIndex) -> None:
    """Forwards, backwards and at random, over entries that are appended to, cut and closed in between."""
    chance = random.Random(4)
    pairs: list[tuple[int, int]] = []
    offset = BASE
    for _ in range(300):
        step = chance.choice(("append", "append", "cut", "close", "ask", "ask"))
        if step == "append":
            new = []
            for _ in range(chance.choice((1, 5, 200))):
                last = pairs[-1] if pairs else (BASE, 0)
                pairs.append((last[0] + chance.randint(1, 3), last[1] + chance.randint(1, 9)))
                new.append(pairs[-1])
            offsets.append(new)
        elif step == "cut":
            del pairs[chance.randint(len(pairs) * 3 // 4, len(pairs)) :]
            offsets.truncate_entries(len(pairs))
        elif step == "close":
            offsets.close()
        offset = chance.choice((BASE, offset, chance.randint(BASE, BASE + 2 * len(pairs))))
        for _ in range(20):
            number = bisect_left(pairs, (offset, 0))
            before = pairs[number - 1][1] if number else 0
            assert offsets.around(offset) == (before, pairs[number][1] if number < len(pairs) else -1)
            offset = max(BASE, offset + chance.choice((-40, 1, 2, 7, 90)))


def test_a_cut_is_not_hidden_by_what_was_read_before(offsets: OffsetIndex) -> None:
    offsets.append([(1001, 10), (1002, 20), (1003, 30)])
    assert offsets.around(1003) == (20, 30)
    offsets.truncate_entries(1)
    offsets.append([(1003, 77)])
    assert offsets.around(1003) == (10, 77)


def test_timestamps_that_do_not_grow_are_left_out(times: TimeIndex) -> None:
    times.append([(10, 1001), (10, 1002), (9, 1003), (11, 1004)])
    times.append([(11, 1005), (-1, 1006)])
    assert (times.count, times.last(), times.last_timestamp) == (2, (11, 1004), 11)
    assert [times.floor(timestamp) for timestamp in (0, 10, 11, 12)] == [
        None,
        (10, 1001),
        (11, 1004),
        (11, 1004),
    ]


def test_truncation(offsets: OffsetIndex, times: TimeIndex) -> None:
    offsets.append([(1001, 10), (1002, 20), (1003, 30)])
    offsets.truncate_entries(1)
    assert (offsets.last(), offsets.path.stat().st_size) == ((1001, 10), 8)
    times.append([(5, 1001), (6, 1002), (7, 1003)])
    times.truncate_to(1003)
    assert (times.last(), times.last_timestamp) == ((6, 1002), 6)
    times.truncate_to(1000)
    assert (times.last(), times.last_timestamp) == (None, -1)


def test_damaged_index_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "b.index"
    assert open_offset_index(FS, path, BASE, 100) is None  # missing
    path.write_bytes(bytes(7))
    assert open_offset_index(FS, path, BASE, 100) is None  # torn
    path.write_bytes(bytes.fromhex("0000000500000064"))
    assert open_offset_index(FS, path, BASE, 100) is None  # points behind the log's 100 bytes
    index = open_offset_index(FS, path, BASE, 101)
    assert index is not None
    assert index.last() == (1005, 100)
    index.close()
    path.write_bytes(bytes.fromhex("ffffffff00000000"))
    assert open_offset_index(FS, path, BASE, 100) is None  # before the base
    path.write_bytes(bytes.fromhex("000000000000000900000001" + "000000000000000800000002"))
    assert open_time_index(FS, path, BASE) is None  # falls
    path.write_bytes(b"")
    empty = open_time_index(FS, path, BASE)
    assert empty is not None
    assert empty.last() is None
    empty.close()


class NoRoomForHalf(OsFs):
    """The next write stores a part of its bytes and fails; so does the truncation that follows."""

    def __init__(self, stored_bytes: int) -> None:
        self._stored_bytes, self._failures = stored_bytes, 2

    def write(self, descriptor: int, buffers: Sequence[Buffer], *, position: int) -> None:
        if self._failures == 2:
            self._failures = 1
            super().write(descriptor, [b"".join(buffers)[: self._stored_bytes]], position=position)
            raise DiskFull(errno.ENOSPC, "write")
        super().write(descriptor, buffers, position=position)

    def truncate(self, descriptor: int, size: int) -> None:
        if self._failures == 1:
            self._failures = 0
            raise DiskFull(errno.ENOSPC, "truncate")
        super().truncate(descriptor, size)


@pytest.mark.parametrize("stored_bytes", range(25))
def test_append_after_a_torn_append_cuts_it_off(
    offsets: OffsetIndex, times: TimeIndex, stored_bytes: int
) -> None:
    """Otherwise whole entries of the torn append would stand between the right ones."""
    offsets.append([(1001, 10)])
    times.append([(5, 1001)])
    offsets._fs = NoRoomForHalf(min(stored_bytes, 24))
    times._fs = NoRoomForHalf(stored_bytes)
    offsets.append([(1002, 20), (1003, 30), (1004, 40)])
    assert times.append([(6, 1002), (7, 1003)]) is False
    assert (offsets.last(), times.last()) == ((1001, 10), (5, 1001))
    offsets.append([(1009, 90)])
    assert times.append([(9, 1009)])
    offsets.close()
    times.close()
    again = open_offset_index(FS, offsets.path, BASE, 100)
    assert again is not None
    assert (again.count, again.last(), again.around(1009)) == (2, (1009, 90), (10, 90))
    again.close()
    assert times.path.read_bytes().hex() == "000000000000000500000001" + "000000000000000900000009"
