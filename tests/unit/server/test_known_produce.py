"""Frames of a known shape: recognised exactly, or left to the general way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kproc.api.context import OwnedPartition
from kproc.api.produce import Placed
from kproc.handler.known_produce import FIRST_VERSION, ProduceShape
from kproc.wire import codec
from kproc.wire.header import ApiKey

RECORDS = b"r" * 300
OWNED = cast(OwnedPartition, SimpleNamespace(key=("topic", 0)))
VERSIONS = range(FIRST_VERSION, 14)


def frame_of(
    version: int, records: bytes, *, acks: int = 1, index: int = 0, correlation_id: int = 1
) -> bytes:
    partition: dict[str, Any] = {"index": index, "records": records}
    topic = {"name": "topic", "topic_id": b"t" * 16, "partition_data": [partition]}
    fields = {"acks": acks, "timeout": 1000, "topic_data": [topic]}
    return codec.encode_request(int(ApiKey.PRODUCE), version, correlation_id, "client", fields)


def placed(size: int) -> Placed:
    return Placed(0, OWNED, size, 1, "topic", None)


def shape_of(version: int, records: bytes = RECORDS) -> ProduceShape:
    shape = ProduceShape.of(
        version, memoryview(frame_of(version, records)), placed(len(records)), pytest.fail
    )
    assert shape is not None
    return shape


def match(shape: ProduceShape, frame: bytes) -> bytes | None:
    """What the Handler does with a frame of the same version."""
    view = memoryview(frame)
    if view[12 : shape.records_at] != shape.prefix:
        return None
    found = shape.records(view, shape.records_at, len(view))
    return None if found is None else bytes(found)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1, 61, 126, 127, 128, 16_382, 16_383, 16_384, 40_000])
def test_records_of_any_size_are_found_in_a_frame_of_the_same_shape(version: int, size: int) -> None:
    records = bytes(number % 251 for number in range(size))
    assert match(shape_of(version), frame_of(version, records, correlation_id=77)) == records


@pytest.mark.parametrize("version", VERSIONS)
def test_other_acks_or_another_partition_is_another_shape(version: int) -> None:
    shape = shape_of(version)
    assert match(shape, frame_of(version, RECORDS, acks=-1)) is None
    assert match(shape, frame_of(version, RECORDS, index=1)) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frame_cut_or_prolonged_anywhere_behind_the_prefix_is_not_recognised(version: int) -> None:
    shape, frame = shape_of(version), frame_of(version, RECORDS)
    for end in range(shape.records_at, len(frame)):
        assert match(shape, frame[:end]) is None, end
    assert match(shape, frame + b"\0") is None
    assert match(shape, frame + b"\1\2\3") is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_null_or_empty_batch_is_not_recognised(version: int) -> None:
    assert match(shape_of(version), frame_of(version, b"")) is None


def test_versions_before_zstd_have_no_shape_because_their_records_must_be_looked_at() -> None:
    frame = memoryview(frame_of(FIRST_VERSION - 1, RECORDS))
    assert ProduceShape.of(FIRST_VERSION - 1, frame, placed(len(RECORDS)), pytest.fail) is None


@pytest.mark.parametrize("version", [9, 12, 13])
def test_a_flexible_frame_with_tagged_fields_has_no_shape(version: int) -> None:
    frame = frame_of(version, RECORDS)
    tagged = frame[:-1] + b"\1\x63\1x"  # One unknown tagged field at the end of the request.
    assert ProduceShape.of(version, memoryview(tagged), placed(len(RECORDS)), pytest.fail) is None


def test_a_length_that_never_ends_is_not_recognised() -> None:
    shape = shape_of(9)
    frame = frame_of(9, RECORDS)[: shape.records_at] + b"\xff" * 10
    assert match(shape, frame) is None
