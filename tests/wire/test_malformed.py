"""Whatever the bytes are, decoding ends soon, in a dict or in ProtocolError, and takes no memory to speak of.

Valid bodies of every request are mutated with a fixed seed: what fails once fails always.
"""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest

from kproc.common.errors import ProtocolError
from kproc.wire import codec, hot
from kproc.wire.header import ApiKey, encode_response_header, parse_request_header
from tests.support.cases import in_one_test
from tests.wire.kio_values import EVERY_MESSAGE, entity_type, random_message

MUTANTS_PER_MESSAGE = 8
BOMBS = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\xff\xff",
)


def body_of(api_key: int, version: int, direction: str, fields) -> bytes:
    if direction == "request":
        frame = codec.encode_request(api_key, version, 1, None, fields)
        return frame[parse_request_header(frame, 4)[1] :]
    frame = codec.encode_response(api_key, version, 1, fields)
    return frame[4 + len(encode_response_header(api_key, version, 1)) :]


def decode(api_key: int, version: int, direction: str, body: bytes):
    if direction == "request":
        return codec.decode_request(api_key, version, body)
    return codec.decode_response(api_key, version, encode_response_header(api_key, version, 1) + body)[1]


def mutate(body: bytes, rng: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(changed))
        match rng.randrange(5):
            case 0:
                del changed[at:]
            case 1:
                changed[at:at] = rng.randbytes(rng.randint(1, 8))
            case 2:
                bomb = rng.choice(BOMBS)
                changed[at : at + len(bomb)] = bomb
            case 3:
                del changed[at : at + rng.randint(1, 8)]
            case _:
                changed[at : at + 1] = rng.randbytes(1)
    return bytes(changed)


@pytest.mark.long
def test_mutated_bodies_decode_or_raise_protocol_error():
    refused = 0
    for key, version, direction in EVERY_MESSAGE:
        rng = random.Random(f"{key} {version} {direction}")
        _, fields = random_message(entity_type(key, version, direction), rng)
        body = body_of(key, version, direction, fields)
        for _ in range(MUTANTS_PER_MESSAGE):
            try:
                decode(key, version, direction, mutate(body, rng))
            except ProtocolError:
                refused += 1
    # The mutations bite: a decoder that accepts everything would pass otherwise.
    assert refused > len(EVERY_MESSAGE) * MUTANTS_PER_MESSAGE // 4


@pytest.mark.long
def test_truncated_body_is_rejected():
    for key, version, direction in EVERY_MESSAGE:
        rng = random.Random(f"cut {key} {version} {direction}")
        _, fields = random_message(entity_type(key, version, direction), rng)
        body = body_of(key, version, direction, fields)
        for end in {0, len(body) // 2, len(body) - 1} if body else ():
            with pytest.raises(ProtocolError):
                decode(key, version, direction, body[:end])


@in_one_test(
    ("api_key", "version", "prefix"),
    [
        (ApiKey.METADATA, 1, b""),
        (ApiKey.LIST_OFFSETS, 1, struct.pack(">i", -1)),
        (ApiKey.CREATE_TOPICS, 2, b""),
        (ApiKey.DELETE_RECORDS, 0, b""),
        (ApiKey.OFFSET_FETCH, 1, struct.pack(">h", 0)),
        (ApiKey.FETCH, 4, bytes(17)),
        (ApiKey.PRODUCE, 3, struct.pack(">hhi", -1, 1, 1)),
    ],
)
@in_one_test("count", [0x7FFFFFFF, 50_000_000])
def test_an_array_of_two_billion_elements_allocates_nothing(api_key, version, prefix, count):
    body = prefix + struct.pack(">i", count) + bytes(200)
    assert_refused_without_memory(api_key, version, body)


@in_one_test(
    ("api_key", "version", "prefix"),
    [
        (ApiKey.METADATA, 12, b""),
        (ApiKey.LIST_OFFSETS, 6, struct.pack(">ib", -1, 0)),
        (ApiKey.CREATE_TOPICS, 7, b""),
        (ApiKey.FETCH, 13, bytes(25)),
        (ApiKey.PRODUCE, 9, struct.pack(">bhi", 0, 1, 1)),
        (ApiKey.DESCRIBE_CLUSTER, 1, b"\0\0"),  # A count of tagged fields.
    ],
)
@in_one_test("count", [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\xfe\xff\xff\x7f"])
def test_compact_array_of_2_billion_elements_allocates_nothing(api_key, version, prefix, count):
    assert_refused_without_memory(api_key, version, prefix + count + b"\1" * 200)


def assert_refused_without_memory(api_key: int, version: int, body: bytes) -> None:
    by_hand = {ApiKey.FETCH: hot.decode_fetch, ApiKey.PRODUCE: hot.decode_produce}.get(api_key)
    decoders = [lambda: codec.decode_request(api_key, version, body)]
    if by_hand is not None:
        decoders.append(lambda: by_hand(version, memoryview(body)))
    for attempt in decoders:
        with pytest.raises(ProtocolError):  # The first time, modules are imported.
            attempt()
        tracemalloc.start()
        try:
            with pytest.raises(ProtocolError):
                attempt()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 100_000, peak


@pytest.mark.parametrize("version", [-1, 6, 99, 32767])
def test_unknown_version_is_rejected(version):
    with pytest.raises(ProtocolError, match="no version"):
        codec.decode_request(ApiKey.API_VERSIONS, version, b"")
    with pytest.raises(ProtocolError, match="no version"):
        codec.decode_request(4711, 0, b"")


def test_null_in_non_nullable_field_is_rejected():
    with pytest.raises(ProtocolError, match=r"topics\.name must not be null"):
        codec.decode_request(ApiKey.METADATA, 1, struct.pack(">ih", 1, -1))
    with pytest.raises(ProtocolError, match="topics must not be null"):
        codec.decode_request(ApiKey.LIST_OFFSETS, 1, struct.pack(">ii", -1, -1))
    with pytest.raises(ProtocolError, match=r"topics must not be null"):
        codec.decode_request(ApiKey.METADATA, 1, struct.pack(">i", -2))


def test_string_that_is_not_utf8_is_rejected():
    with pytest.raises(ProtocolError, match="UTF-8"):
        codec.decode_request(ApiKey.METADATA, 1, struct.pack(">ih2s", 1, 2, b"\xff\xfe"))


def test_bytes_behind_the_body_are_ignored_as_in_kafka():
    assert codec.decode_request(ApiKey.METADATA, 1, struct.pack(">i", 0) + b"more") == {"topics": []}
