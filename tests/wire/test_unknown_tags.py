"""Unknown tagged fields are skipped in every struct of every flexible version (KIP-482)."""

from __future__ import annotations

import dataclasses
import random

import pytest

from kproc.common.errors import ProtocolError
from kproc.wire import codec, hot
from kproc.wire.header import ApiKey, parse_request_header, parse_response_header
from kproc.wire.primitives import encode_unsigned_varint
from kproc.wire.schema import Field, Schema
from kproc.wire.schema_writer import writer_of
from tests.support.cases import in_one_test
from tests.wire.kio_values import EVERY_MESSAGE, entity_type, random_message

# Tags of one and of three bytes; short, long and empty values.
STRANGERS = ((77, b"surprise"), (100_000, b"\xff" * 300), (100_001, b""))


def with_strange_fields(schema: Schema) -> Schema:
    """The same schema with three more tagged fields in every struct."""
    fields = [
        dataclasses.replace(field, struct=with_strange_fields(field.struct)) if field.struct else field
        for field in schema.fields
    ]
    fields += [Field(f"stranger_{tag}", "bytes", False, False, tag, b"not this") for tag, _ in STRANGERS]
    return dataclasses.replace(schema, fields=tuple(fields))


def with_strange_values(value):
    """The same fields with values for the added ones in every struct."""
    if isinstance(value, dict):
        known = {name: with_strange_values(inner) for name, inner in value.items()}
        return known | {f"stranger_{tag}": raw for tag, raw in STRANGERS}
    if isinstance(value, list):
        return [with_strange_values(inner) for inner in value]
    return value


def refuse_name(path: str, name: str) -> None:
    raise AssertionError((path, name))


def strange_body(key: int, version: int, direction: str, fields) -> bytes:
    """Body of the message with unknown tags in every struct."""
    body = bytearray()
    schema = with_strange_fields(codec.schema_of(key, version, direction))
    writer_of(schema, refuse_name)(body, with_strange_values(fields))
    return bytes(body)


@pytest.mark.parametrize("step", [40, pytest.param(1, marks=pytest.mark.long)])
def test_unknown_tags_are_skipped_in_every_flexible_struct(step: int) -> None:
    """A plain run takes one of 40 messages, because kio loads a module for each."""
    flexible = [message for message in EVERY_MESSAGE if codec.schema_of(*message).is_flexible]
    assert len(flexible) > 300
    for key, version, direction in flexible[::step]:
        _, fields = random_message(entity_type(key, version, direction), random.Random(f"{key}{version}"))
        body = strange_body(key, version, direction, fields)
        assert body.count(b"surprise") >= 1
        if direction == "request":
            assert codec.decode_request(key, version, body) == fields, (key, version)
        else:
            head = codec.encode_response_header(key, version, 1)
            assert codec.decode_response(key, version, head + body) == (1, fields), (key, version)


@in_one_test("version", [version for version in hot.PRODUCE_VERSIONS if version >= 9])
def test_hot_produce_skips_unknown_tags(version):
    fields = {
        "acks": -1,
        "timeout": 5,
        "topic_data": [
            {"name": "t", "topic_id": b"i" * 16, "partition_data": [{"index": 3, "records": b"r" * 200}]}
        ],
    }
    # The augmented writer knows the names of one version only.
    del fields["topic_data"][0]["name" if version >= 13 else "topic_id"]
    request = hot.decode_produce(version, memoryview(strange_body(0, version, "request", fields)))
    assert (request.acks, request.timeout_ms) == (-1, 5)
    assert request.topics[0].partitions == [(3, b"r" * 200)]


@in_one_test("version", [version for version in hot.FETCH_VERSIONS if version >= 12])
def test_hot_fetch_skips_unknown_tags_and_reads_replica_state(version):
    key = {"topic": "t"} if version == 12 else {"topic_id": b"i" * 16}
    partition = {"partition": 2, "fetch_offset": 9, "partition_max_bytes": 11}
    fields = {
        "topics": [key | {"partitions": [partition]}],
        "forgotten_topics_data": [key | {"partitions": [4]}],
    }
    fields |= {"replica_state": {"replica_id": 6}} if version >= 15 else {"replica_id": 6}
    request = hot.decode_fetch(version, memoryview(strange_body(1, version, "request", fields)))
    assert request.replica_id == 6
    assert [(p.index, p.fetch_offset, p.max_bytes) for p in request.topics[0][2]] == [(2, 9, 11)]
    assert request.forgotten[0][2] == [4]


def test_headers_skip_unknown_tags():
    tags = encode_unsigned_varint(1) + encode_unsigned_varint(500) + b"\x03abc"
    frame = codec.encode_request(ApiKey.METADATA, 12, 3, "me", {})[4:]
    end_of_header = 10 + len("me")
    header, position = parse_request_header(frame[:end_of_header] + tags + frame[end_of_header + 1 :])
    assert (header.client_id, position) == ("me", end_of_header + len(tags))
    assert parse_response_header(ApiKey.METADATA, 12, b"\0\0\0\7" + tags) == (7, 4 + len(tags))


def test_tag_that_runs_past_the_end_is_refused():
    body = codec.encode_request(ApiKey.METADATA, 12, 3, None, {})
    _, position = parse_request_header(body, 4)
    cut = body[position:-1] + b"\x01\x63\x05abcd"
    with pytest.raises(ProtocolError, match="past the end"):
        codec.decode_request(ApiKey.METADATA, 12, cut)


def test_known_tag_of_wrong_size_is_rejected():
    # Fetch v12, tag 0 is the cluster id: a string of 2 bytes in a tag of 4.
    body = codec.encode_request(ApiKey.FETCH, 12, 3, None, {})
    _, position = parse_request_header(body, 4)
    with pytest.raises(ProtocolError, match="cluster_id"):
        codec.decode_request(ApiKey.FETCH, 12, body[position:-1] + b"\x01\x00\x04\x03ab\x00")
