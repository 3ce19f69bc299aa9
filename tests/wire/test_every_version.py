"""Header versions and first flexible versions of every key, against the schema and against Kafka's table."""

from __future__ import annotations

import pytest

from kproc.wire import codec
from kproc.wire.header import (
    NEVER_FLEXIBLE,
    ApiKey,
    first_flexible,
    request_header_version,
    response_header_version,
)
from tests.support.cases import in_one_test
from tests.support.kafka_apis import ADVERTISED
from tests.wire.kio_values import EVERY_MESSAGE, entity_type

# From Kafka's message definitions: the first version with request header 2 and response header 1.
FIRST_FLEXIBLE = {
    0: 9, 1: 12, 2: 6, 3: 9, 8: 8, 9: 6, 10: 3, 11: 6, 12: 4, 13: 4, 14: 4, 15: 5, 16: 3, 17: None,
    18: 3, 19: 5, 20: 4, 21: 2, 22: 2, 23: 4, 24: 3, 25: 3, 26: 3, 27: 1, 28: 3, 29: 2, 30: 2, 31: 2,
    32: 4, 33: 2, 34: 2, 35: 2, 36: 2, 37: 2, 38: 2, 39: 2, 40: 2, 41: 2, 42: 2, 43: 2, 44: 1, 45: 0,
    46: 0, 47: None, 48: 1, 49: 1, 50: 0, 51: 0, 55: 0, 57: 0, 60: 0, 61: 0, 64: 0, 65: 0, 66: 0, 68: 0,
    69: 0, 75: 0, 80: 0, 81: 0, 93: 0, 94: 0,
}  # fmt: skip


def test_every_advertised_version_can_be_decoded_and_encoded():
    for key, (lowest, highest) in ADVERTISED.items():
        versions = codec.supported_versions(key)
        assert lowest in versions, (key, versions)
        assert highest in versions, (key, versions)


def test_first_flexible_versions_are_kafkas():
    for key, version in FIRST_FLEXIBLE.items():
        assert first_flexible(key) == (NEVER_FLEXIBLE if version is None else version), ApiKey(key)


@pytest.mark.long
def test_header_versions_are_those_of_the_schema():
    for key, version, direction in EVERY_MESSAGE:
        entity = entity_type(key, version, direction)
        assert entity.__flexible__ == (version >= first_flexible(key)), (key, version)
        expected = int(entity.__header_schema__.__version__)
        if direction == "request":
            assert request_header_version(key, version) == expected, (key, version)
        else:
            assert response_header_version(key, version) == expected, (key, version)


@in_one_test("version", range(-1, 6))
def test_the_api_versions_response_has_header_0_in_every_version(version):
    assert response_header_version(ApiKey.API_VERSIONS, version) == 0


def test_api_versions_fallback_is_version_0():
    frame = codec.api_versions_fallback(5, 0, 4)
    assert frame.hex() == "0000001000000005002300000001001200000004"
    assert codec.decode_response(ApiKey.API_VERSIONS, 0, frame[4:]) == (
        5,
        {"error_code": 35, "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 4}]},
    )


def test_a_topic_id_has_16_bytes_and_none_is_the_zero_id():
    with pytest.raises(ValueError, match="UUID has 3 bytes"):
        codec.encode_response(ApiKey.FETCH, 13, 1, {"responses": [{"topic_id": b"abc"}]})
    frame = codec.encode_response(ApiKey.FETCH, 13, 1, {"responses": [{"topic_id": None}]})
    assert codec.decode_response(ApiKey.FETCH, 13, frame[4:])[1]["responses"][0]["topic_id"] == bytes(16)
