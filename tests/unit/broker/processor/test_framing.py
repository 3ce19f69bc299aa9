"""Framing: whole frames are found in bytes that arrive in any pieces. Neither a socket nor a ring is involved."""

from __future__ import annotations

import random

import pytest

from kproc.broker.processor.framing import LENGTH_BYTES, find_frames, frame_length, pack_length
from tests.support.cases import in_one_test

LENGTH_MAX = 1 << 20
COUNT_MAX = 64


def framed(body: bytes) -> bytes:
    return pack_length(len(body)) + body


def find(data: bytes, *, start: int = 0, count_max: int = COUNT_MAX) -> tuple[int, int, bool]:
    return find_frames(data, start, len(data), count_max=count_max, length_max=LENGTH_MAX)


class Receiver:
    """The bytes of one connection: whole frames are removed, and the rest waits for more bytes."""

    def __init__(self) -> None:
        self.rest = b""
        self.frames: list[bytes] = []

    def feed(self, piece: bytes) -> None:
        data = self.rest + piece
        end, count, is_valid = find(data)
        assert is_valid
        position = 0
        for _ in range(count):
            following = position + LENGTH_BYTES + frame_length(data, position)
            self.frames.append(data[position + LENGTH_BYTES : following])
            position = following
        assert position == end
        self.rest = data[end:]


@pytest.mark.parametrize("seed", range(5))
def test_find_frames_is_independent_of_read_boundaries(seed: int) -> None:
    chance = random.Random(seed)
    bodies = [chance.randbytes(chance.choice([0, 1, 3, 4, 100, 3000])) for _ in range(50)]
    stream = b"".join(map(framed, bodies))
    receiver = Receiver()
    while stream:
        size = chance.choice([1, 2, 5, 1000, 20_000])
        receiver.feed(stream[:size])
        stream = stream[size:]
    assert receiver.frames == bodies
    assert receiver.rest == b""


def test_find_frames_byte_by_byte() -> None:
    receiver = Receiver()
    for byte in framed(b"one") + framed(b"") + framed(b"three"):
        receiver.feed(bytes([byte]))
    assert receiver.frames == [b"one", b"", b"three"]


@in_one_test("data", [b"", b"\0", b"\0\0\0", framed(b"body")[:-1], pack_length(LENGTH_MAX)])
def test_partial_frame_is_not_found(data: bytes) -> None:
    assert find(data) == (0, 0, True)


def test_find_frames_skips_bytes_before_start() -> None:
    data = b"\xff" * 7 + framed(b"one") + framed(b"two")[:4]
    assert find(data, start=7) == (14, 1, True)


def test_find_frames_stops_at_end() -> None:
    data = framed(b"one") + framed(b"two")
    assert find_frames(data, 0, 13, count_max=COUNT_MAX, length_max=LENGTH_MAX) == (7, 1, True)


def test_find_frames_stops_at_count_max() -> None:
    data = framed(b"one") + framed(b"two") + pack_length(-1)
    assert find(data, count_max=0) == (0, 0, True)
    assert find(data, count_max=1) == (7, 1, True)
    assert find(data, count_max=2) == (14, 2, True), "the invalid length is found by the next search"
    assert find(data, count_max=3) == (14, 2, False)


@pytest.mark.parametrize("length", [-1, -(1 << 31), LENGTH_MAX + 1, (1 << 31) - 1])
def test_find_frames_stops_at_invalid_length(length: int) -> None:
    data = framed(b"one") + pack_length(length) + b"rest"
    assert find(data) == (7, 1, False)
    assert frame_length(data, 7) == length


def test_frame_of_length_max_is_valid() -> None:
    assert find(framed(bytes(LENGTH_MAX))) == (LENGTH_BYTES + LENGTH_MAX, 1, True)


def test_find_frames_keeps_no_view() -> None:
    view = memoryview(bytearray(framed(b"one")))
    assert find_frames(view, 0, len(view), count_max=COUNT_MAX, length_max=LENGTH_MAX) == (7, 1, True)
    view.release()
