"""The fast path of Produce: a frame is recognised exactly, or left to the general way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kproc.broker.handler.owned_partition import OwnedPartition
from kproc.broker.handler.produce_fast_path import FIRST_VERSION, ProduceFastPath, RequestCount
from kproc.broker.produce.append_queue import AppendQueue
from kproc.broker.produce.produce import Destination
from kproc.broker.produce.reply import OneProduce, RepeatedProduce
from kproc.broker.request.request import ClientPeer, HandlerRequest
from kproc.broker.transport.envelope import FLAG_LOOPBACK, FLAG_TIMED, HEAD
from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.cases import in_one_test

RECORDS = b"r" * 300
LOG = SimpleNamespace(state=SimpleNamespace(offline_reason=None))
OWNED = cast(OwnedPartition, SimpleNamespace(key=("topic", 0), log=LOG))
VERSIONS = range(FIRST_VERSION, 14)
NO_PEER = ClientPeer(cast(Any, None))


class Records:
    """Stands in for an AppendQueue: the records that were enqueued."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.targets: list[RepeatedProduce] = []

    def enqueue(self, owned: OwnedPartition, records: memoryview, target: RepeatedProduce) -> None:
        self.taken.append(bytes(records))
        self.targets.append(target)


def frame_of(
    version: int, records: bytes, *, acks: int = 1, index: int = 0, correlation_id: int = 1
) -> bytes:
    """As it is sent, its length in front."""
    partition: dict[str, Any] = {"index": index, "records": records}
    topic = {"name": "topic", "topic_id": b"t" * 16, "partition_data": [partition]}
    fields = {"acks": acks, "timeout": 1000, "topic_data": [topic]}
    return codec.encode_request(int(ApiKey.PRODUCE), version, correlation_id, "client", fields)


def learn(version: int, frame: bytes, size: int = len(RECORDS)) -> ProduceFastPath | None:
    services = cast(Any, SimpleNamespace(config=SimpleNamespace(waits_for_sync=False)))
    request = HandlerRequest(
        services, NO_PEER, 5, 0, 2, FLAG_LOOPBACK, int(ApiKey.PRODUCE), version, 1, b"client"
    )
    destination = Destination(0, OWNED, size, OneProduce(request, 1, "topic", b"t" * 16))
    queue = cast(AppendQueue, Records())
    return ProduceFastPath.learn(request, memoryview(frame)[4:], destination, queue, RequestCount())


def path_of(version: int, records: bytes = RECORDS) -> ProduceFastPath:
    path = learn(version, frame_of(version, records), len(records))
    assert path is not None
    return path


def match(path: ProduceFastPath, frame: bytes, *, flags: int = FLAG_LOOPBACK) -> bytes | None:
    """The records that it takes from a frame, or None."""
    taken = cast(Records, path._queue).taken
    before = len(taken)
    is_taken = path.handle_frame(memoryview(frame)[4:], 5, 1, 2, flags)
    assert is_taken == (len(taken) > before)
    return taken[-1] if is_taken else None


def record_of(frame: bytes, *, flags: int = FLAG_LOOPBACK) -> memoryview:
    return memoryview(HEAD.pack(5, 1, 2, flags) + frame)


@in_one_test("version", VERSIONS)
@in_one_test("size", [1, 61, 126, 127, 128, 16_382, 16_383, 16_384, 40_000])
def test_records_of_any_size_match_frame_shape(version: int, size: int) -> None:
    records = bytes(number % 251 for number in range(size))
    assert match(path_of(version), frame_of(version, records, correlation_id=77)) == records


@in_one_test("version", VERSIONS)
def test_fast_path_takes_a_ring_record_of_any_length(version: int) -> None:
    path = path_of(version)
    taken = cast(Records, path._queue).taken
    other = b"s" * len(RECORDS)
    assert path.handle(record_of(frame_of(version, other, correlation_id=77)))
    assert taken == [other]
    for refused in (
        record_of(frame_of(version, other, acks=-1)),
        record_of(frame_of(version, other, index=1)),
        record_of(frame_of(version, other), flags=FLAG_LOOPBACK | FLAG_TIMED),
        record_of(frame_of(version, other), flags=0),
        record_of(frame_of(version, other)[:-1] + b"\1")[: 0 if version < 9 else None],
    ):
        assert not path.handle(refused)
    assert path.handle(record_of(frame_of(version, other + b"s")))
    assert taken == [other, other + b"s"]


@in_one_test("version", VERSIONS)
def test_a_timed_request_goes_the_general_way(version: int) -> None:
    path, frame = path_of(version), frame_of(version, RECORDS)
    assert match(path, frame, flags=FLAG_LOOPBACK | FLAG_TIMED) is None
    assert match(path, frame) == RECORDS


@in_one_test("version", VERSIONS)
def test_other_acks_or_another_partition_is_another_shape(version: int) -> None:
    path = path_of(version)
    assert match(path, frame_of(version, RECORDS, acks=-1)) is None
    assert match(path, frame_of(version, RECORDS, index=1)) is None


@in_one_test("version", VERSIONS)
def test_a_frame_cut_or_prolonged_anywhere_is_not_recognised(version: int) -> None:
    path, frame = path_of(version), frame_of(version, RECORDS)
    for end in range(4, len(frame)):
        assert match(path, frame[:end]) is None, end
    assert match(path, frame + b"\0") is None
    assert match(path, frame + b"\1\2\3") is None


@in_one_test("version", VERSIONS)
def test_a_null_or_empty_batch_is_not_recognised(version: int) -> None:
    assert match(path_of(version), frame_of(version, b"")) is None


def test_produce_versions_before_zstd_have_no_shape() -> None:
    assert learn(FIRST_VERSION - 1, frame_of(FIRST_VERSION - 1, RECORDS)) is None


@pytest.mark.parametrize("version", [9, 12, 13])
def test_a_flexible_frame_with_tagged_fields_has_no_shape(version: int) -> None:
    frame = frame_of(version, RECORDS)
    tagged = frame[:-1] + b"\1\x63\1x"  # One unknown tagged field at the end of the request.
    assert learn(version, tagged) is None


def test_a_length_that_never_ends_is_not_recognised() -> None:
    path = path_of(9)
    frame = frame_of(9, RECORDS)[: 16 + len(path._prefix) - 4] + b"\xff" * 10
    assert match(path, frame) is None
