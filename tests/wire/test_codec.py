"""The codec writes and reads every (key, version) exactly as kio does, for random messages of each."""

from __future__ import annotations

import io
import random

import pytest
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer

from kproc.wire import codec
from kproc.wire.header import ApiKey, parse_request_header, parse_response_header
from kproc.wire.schema_additions import NEW
from tests.wire.kio_values import EVERY_MESSAGE, entity_type, random_message

EXAMPLES = 4


def _encode(api_key, version, direction, fields):
    """Body as the codec writes it."""
    if direction == "request":
        frame = codec.encode_request(api_key, version, 7, "client", fields)
        header, position = parse_request_header(frame, 4)
        assert (header.api_key, header.api_version, header.correlation_id) == (api_key, version, 7)
    else:
        frame = codec.encode_response(api_key, version, 7, fields)
        correlation_id, position = parse_response_header(api_key, version, frame, 4)
        assert correlation_id == 7
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame[position:]


def _decode(api_key, version, direction, body):
    if direction == "request":
        return codec.decode_request(api_key, version, memoryview(bytearray(body)))
    head = codec.encode_response_header(api_key, version, 9)
    correlation_id, fields = codec.decode_response(api_key, version, head + body)
    assert correlation_id == 9
    return fields


@pytest.mark.long
@pytest.mark.parametrize("api_key", sorted(api_key_map), ids=lambda key: ApiKey(key).name.lower())
def test_codec_equals_kio_in_every_version_and_direction(api_key):
    for key, version, direction in EVERY_MESSAGE:
        if key != api_key:
            continue
        entity = entity_type(key, version, direction)
        read, write = entity_reader(entity), entity_writer(entity)
        rng = random.Random(f"{key} {version} {direction}")
        for _ in range(EXAMPLES):
            message, fields = random_message(entity, rng)
            buffer = io.BytesIO()
            write(buffer, message)
            expected = buffer.getvalue()
            body = _encode(key, version, direction, fields)
            assert body == expected, (version, direction, fields)
            assert _decode(key, version, direction, expected) == fields, (version, direction)
            assert read(body, 0) == (message, len(body))


def test_every_api_of_kio_has_a_key_and_every_key_has_versions():
    assert sorted(set(ApiKey) - NEW.keys()) == sorted(api_key_map)
    for key, name in api_key_map.items():
        assert ApiKey(key).name == name.upper()
    for key in ApiKey:
        assert len(codec.supported_versions(key)) > 0
    assert not codec.supported_versions(4711)


def test_missing_fields_take_the_defaults_of_the_schema():
    for key, version, direction in EVERY_MESSAGE:
        fields = _decode(key, version, direction, _encode(key, version, direction, {}))
        schema = codec.schema_of(key, version, direction)
        assert (list(fields) and set(fields) == {field.name for field in schema.fields}) or not schema.fields
    assert _decode(1, 12, "request", _encode(1, 12, "request", {}))["max_bytes"] == 0x7FFFFFFF
    assert _decode(1, 12, "request", _encode(1, 12, "request", {}))["replica_id"] == -1
    answer = _encode(0, 8, "response", {"responses": [{"partition_responses": [{}]}]})
    partition = _decode(0, 8, "response", answer)["responses"][0]["partition_responses"][0]
    assert partition["log_append_time"] == -1
    assert partition["error_message"] is None


def test_defaults_are_never_shared_between_messages():
    first = _decode(18, 3, "response", _encode(18, 3, "response", {}))
    first["supported_features"].append("mine")
    assert _decode(18, 3, "response", _encode(18, 3, "response", {}))["supported_features"] == []
