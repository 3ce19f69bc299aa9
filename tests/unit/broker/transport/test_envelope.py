"""Messages over links: heads and parts are decoded as they were encoded."""

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
)
from kproc.wire.file_range import FileRange
from tests.support.cases import in_one_test

RANGE = FileRange(b"/data/t-0/00000000000000000000.log", 2**63 + 5, 2**40, 2**33)
ODD_PATH = FileRange("/data/ü-\udcff/0.log".encode("utf-8", "surrogateescape"), 1, 0, 1)


@in_one_test(
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
)
def test_parts_come_back_as_they_went_in(parts: list[bytes | FileRange]) -> None:
    assert decode_parts(memoryview(encode_parts(parts)), FileRange) == parts


@pytest.mark.parametrize("end", [b"", b"tag"])
@pytest.mark.parametrize("head", [b"", b"header"])
def test_template_of_one_range_equals_encoded_parts(head: bytes, end: bytes) -> None:
    record = encode_range_answer(HEAD.pack(7, 9, 0, 0)[:12], head, RANGE, end)
    assert HEAD.unpack_from(record) == (7, 9, 0, 0)
    parts = [head, RANGE, end] if end else [head, RANGE]
    assert decode_parts(memoryview(record)[HEAD_BYTES:], FileRange) == parts
    assert record == HEAD.pack(7, 9, 0, 0) + encode_parts(parts)


def test_bytes_are_decoded_without_copy() -> None:
    view = memoryview(encode_parts([b"header", RANGE, b"tail"]))
    header, _, tail = decode_parts(view, FileRange)
    assert isinstance(header, memoryview)
    assert isinstance(tail, memoryview)
    assert header.obj is tail.obj is view.obj


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
