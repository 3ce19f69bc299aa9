"""What travels over links: heads and parts come back as they went in."""

from __future__ import annotations

import pytest

from kproc.broker.transport import envelope
from kproc.broker.transport.envelope import (
    BLOCK,
    HEAD,
    HEAD_BYTES,
    TOKEN,
    decode_parts,
    encode_parts,
    encode_range_answer,
    range_answer_of,
)
from kproc.wire.file_range import FileRange

RANGE = FileRange(b"/data/t-0/00000000000000000000.log", 2**63 + 5, 2**40, 2**33)
ODD_PATH = FileRange("/data/ü-\udcff/0.log".encode("utf-8", "surrogateescape"), 1, 0, 1)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b""],
        [b"header"],
        [RANGE],
        [b"header", RANGE, b"between", ODD_PATH, RANGE, b"tail"],
        [b"", RANGE, b""],
        [bytes(100_000), FileRange(b"", 0, 0, 0)],
    ],
    ids=["none", "empty bytes", "bytes", "range", "mixed", "empty around", "large and nameless"],
)
def test_parts_come_back_as_they_went_in(parts: list[bytes | FileRange]) -> None:
    assert decode_parts(memoryview(encode_parts(parts))) == parts


@pytest.mark.parametrize("end", [b"", b"tag"])
@pytest.mark.parametrize("head", [b"", b"header"])
def test_a_range_between_bytes_is_taken_apart_as_any_parts_are(head: bytes, end: bytes) -> None:
    record = encode_range_answer(HEAD.pack(7, 9, 0, 0)[:12], head, RANGE, end)
    assert HEAD.unpack_from(record) == (7, 9, 0, 0)
    parts = [head, RANGE, end] if end else [head, RANGE]
    assert decode_parts(memoryview(record)[HEAD_BYTES:]) == parts
    assert record == HEAD.pack(7, 9, 0, 0) + encode_parts(parts)
    assert range_answer_of(memoryview(record)) == (head, RANGE, end)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"header"],
        [RANGE],
        [RANGE, b"tail"],
        [b"header", b"more"],
        [b"header", RANGE, RANGE],
        [b"header", RANGE, b"between", b"tail"],
        [b"header", RANGE, b"between", ODD_PATH],
        [bytes(100), b""],
    ],
)
def test_other_parts_are_no_range_between_bytes(parts: list[bytes | FileRange]) -> None:
    assert range_answer_of(memoryview(HEAD.pack(7, 9, 0, 0) + encode_parts(parts))) is None


def test_decoded_parts_outlive_the_record_they_came_in() -> None:
    record = bytearray(encode_parts([b"header", RANGE]))
    view = memoryview(record)
    parts = decode_parts(view)
    view.release()
    record[:] = bytes(len(record))
    assert parts == [b"header", RANGE]


def test_heads_carry_their_largest_values() -> None:
    largest = (2**64 - 1, 2**32 - 1, 2**16 - 1, 2**16 - 1)
    assert HEAD.unpack(HEAD.pack(*largest)) == largest
    assert HEAD_BYTES == 16
    assert HEAD_BYTES % 8 == 0, "what follows a head stays aligned"
    assert BLOCK.unpack(BLOCK.pack(2**64 - 1, 2**40)) == (2**64 - 1, 2**40)
    assert TOKEN.unpack(TOKEN.pack(2**64 - 1, 2**32 - 1)) == (2**64 - 1, 2**32 - 1)


def test_every_kind_has_a_number_of_its_own() -> None:
    names = "REQUEST REQUEST_BLOCK DISCONNECTED SEND SEND_PARTS NO_OP CLOSE HINT CALL REPLY DELTA SNAPSHOT"
    names += " DELTA_ACK CHUNK MOVE_OUT MOVED MOVE_IN THROTTLE NOTE IDENTITY TIMES"
    numbers = [getattr(envelope, name) for name in names.split()]
    assert len(set(numbers)) == len(numbers)
    assert 0 not in numbers, "a ring's padding"
