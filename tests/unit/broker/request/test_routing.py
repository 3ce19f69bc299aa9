"""ProduceRouter: the key is the same bytes in a Processor's frame and in a Handler's body, in every version."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from kproc.broker.request.dispatch import after_header_tags
from kproc.broker.request.routing import OWNER, ProduceRouter, body_key, partition_key
from kproc.wire import codec
from kproc.wire.header import ApiKey, first_flexible, parse_request_header
from tests.support.cases import in_one_test
from tests.support.raw import batch, fetch_fields, produce_fields

VERSIONS = range(3, 14)
TOPIC_ID = bytes(range(16))
Topics = list[tuple[str, bytes, list[tuple[int, bytes | None]]]]


def frame_of(
    version: int, topics: Topics, *, client_id: str | None = "client", transactional_id: str | None = None
) -> memoryview:
    """A Produce frame without its length, as a Processor sees it."""
    fields: dict[str, Any] = {**produce_fields(topics), "transactional_id": transactional_id}
    return memoryview(codec.encode_request(ApiKey.PRODUCE, version, 99, client_id, fields))[4:]


def body_of(version: int, frame: memoryview) -> memoryview:
    """The body as a Handler's RecordRouter sees it."""
    _, at = parse_request_header(frame)
    return frame[at:]


def one(name: str = "orders", index: int = 3, records: bytes | None = None) -> Topics:
    return [(name, TOPIC_ID, [(index, batch(b"v") if records is None else records)])]


@in_one_test("version", VERSIONS)
def test_frame_and_body_give_the_same_key(version: int) -> None:
    client_ids = ("", "c", "a much longer client id " * 10, None)
    for client_id, transactional_id in product(client_ids, (None, "", "t", "x" * 200)):
        frame = frame_of(version, one(), client_id=client_id, transactional_id=transactional_id)
        key = partition_key(frame)
        assert key is not None, (client_id, transactional_id)
        assert key == body_key(version, body_of(version, frame)), (client_id, transactional_id)
        assert key == partition_key(frame_of(version, one(records=b""))), "only topic and partition count"


@in_one_test("version", VERSIONS)
@in_one_test("name", ["a", "n" * 126, "n" * 127, "n" * 249])
def test_one_look_says_the_same_as_the_walk(version: int, name: str) -> None:
    several = [(name, TOPIC_ID, [(3, b"x"), (4, b"x")])]
    for ids in product(("", "c", "a longer client id " * 20, None), (None, "", "t")):
        router = ProduceRouter()
        for topics, owner in ((one(name), 7), (several, -1), (one(name, 4), -1)):
            frame = frame_of(version, topics, client_id=ids[0], transactional_id=ids[1])
            if owner >= 0:
                router.learn(memoryview(OWNER.pack(owner) + (partition_key(frame) or b"")))
            assert router.route(frame) == owner, ids


@in_one_test("version", VERSIONS)
def test_key_names_topic_and_partition(version: int) -> None:
    keys = {
        partition_key(frame_of(version, [(name, topic_id, [(index, b"x")])]))
        for name, topic_id in (("orders", TOPIC_ID), ("ordera", TOPIC_ID[::-1]))
        for index in (0, 1, 2**31 - 1)
    }
    assert None not in keys
    assert len(keys) == 6


@in_one_test("version", VERSIONS)
@in_one_test("name", ["a", "n" * 126, "n" * 127, "n" * 249])
def test_names_of_any_length_have_keys(version: int, name: str) -> None:
    assert partition_key(frame_of(version, one(name))) is not None


@in_one_test("version", VERSIONS)
@in_one_test(
    "topics",
    [
        [],
        [("a", TOPIC_ID, [])],
        [("a", TOPIC_ID, [(0, b"x"), (1, b"x")])],
        [("a", TOPIC_ID, [(0, b"x")]), ("b", TOPIC_ID, [(0, b"x")])],
        [(str(number), TOPIC_ID, [(0, b"x")]) for number in range(300)],
    ],
)
def test_requests_over_several_partitions_have_no_key(version: int, topics: Topics) -> None:
    frame = frame_of(version, topics)
    assert partition_key(frame) is None
    assert body_key(version, body_of(version, frame)) is None


@in_one_test("version", VERSIONS)
def test_cut_frames_are_home_or_known_but_never_a_surprise(version: int) -> None:
    frame = frame_of(version, one())
    whole = partition_key(frame)
    router = ProduceRouter()
    router.learn(memoryview(OWNER.pack(1) + (whole or b"")))
    for cut in range(len(frame)):
        key = partition_key(frame[:cut])
        assert key is None or whole is not None
        assert router.route(frame[:cut]) in (-1, 1)


@pytest.mark.parametrize("seed", range(20))
def test_garbage_is_sent_home(seed: int) -> None:
    source = random.Random(seed)
    router = ProduceRouter()
    for _ in range(300):
        frame = bytearray(frame_of(source.choice(VERSIONS), one())[:120])
        for _ in range(source.randint(1, 8)):
            frame[source.randrange(len(frame))] = source.choice([0, 1, 2, 127, 128, 255])
        assert router.route(memoryview(frame)) == -1


def test_unknown_partition_goes_home_until_hint_arrives() -> None:
    for version in VERSIONS:
        router = ProduceRouter()
        frame = frame_of(version, one())
        assert router.route(frame) == -1
        key = body_key(version, body_of(version, frame))
        assert key is not None
        router.learn(memoryview(OWNER.pack(2) + key))
        assert router.route(frame) == 2
        assert router.route(frame_of(version, one(index=4))) == -1


def test_later_hint_replaces_an_earlier_one() -> None:
    router = ProduceRouter()
    frame = frame_of(9, one())
    for owner in (0, 5, 1):
        router.learn(memoryview(OWNER.pack(owner) + (partition_key(frame) or b"")))
        assert router.route(frame) == owner


@pytest.mark.parametrize("version", [4, 12])
def test_other_apis_go_home(version: int) -> None:
    fields = fetch_fields([("orders", TOPIC_ID, [(3, 0)])])
    frame = memoryview(codec.encode_request(ApiKey.FETCH, version, 1, "c", fields))[4:]
    assert ProduceRouter().route(frame) == -1


@in_one_test("frame", [b"", b"\0", b"\0\0", b"\0\0\0\x09\0\0\0\1\0", bytes(10)])
def test_frames_too_short_for_a_header_go_home(frame: bytes) -> None:
    assert ProduceRouter().route(memoryview(frame)) == -1


def test_hints_are_bounded() -> None:
    router = ProduceRouter()
    for number in range(20_000):
        router.learn(memoryview(OWNER.pack(1) + number.to_bytes(8, "big")))
    assert 0 < len(router._owners) <= 8192


def test_tagged_header_fields_are_left_to_home_handler() -> None:
    frame = frame_of(9, one())
    _, at = parse_request_header(frame)
    tagged = bytes(frame[: at - 1]) + b"\x01\x05\x02ab" + bytes(frame[at:])
    assert partition_key(memoryview(tagged)) is None
    body = after_header_tags(memoryview(tagged)[at - 1 :])
    assert body_key(9, body) == partition_key(frame), "which knows the key, and says so in vain"


def test_boundary_of_the_flexible_versions_is_kafkas() -> None:
    assert first_flexible(ApiKey.PRODUCE) == 9
