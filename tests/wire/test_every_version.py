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
from tests.wire.kio_values import EVERY_MESSAGE, entity_type

# What Apache Kafka 4.4 advertises on a client listener; Produce 0-2 are advertised for librdkafka and never
# decoded.
ADVERTISED = {
    0: (3, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9),
    12: (0, 4), 13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1), 18: (0, 5), 19: (2, 7),
    20: (1, 6), 21: (0, 2), 22: (0, 5), 23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5), 27: (1, 2),
    28: (0, 6), 29: (1, 3), 30: (1, 3), 31: (1, 3), 32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 5),
    36: (0, 2), 37: (0, 3), 38: (1, 3), 39: (1, 2), 40: (1, 2), 41: (1, 3), 42: (0, 3), 43: (0, 2),
    44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0), 48: (0, 1), 49: (0, 1), 50: (0, 0), 51: (0, 0),
    55: (0, 2), 57: (0, 2), 60: (0, 2), 61: (0, 0), 64: (0, 0), 65: (0, 0), 66: (0, 2), 68: (0, 1),
    69: (0, 1), 74: (0, 1), 75: (0, 0), 76: (1, 1), 77: (1, 1), 78: (1, 2), 79: (1, 2), 80: (0, 1),
    81: (0, 0), 83: (0, 0), 84: (0, 0), 85: (0, 1), 86: (0, 0), 87: (0, 1), 88: (0, 1), 89: (0, 1),
    90: (0, 1), 91: (0, 0), 92: (0, 0), 93: (0, 0), 94: (0, 0),
}  # fmt: skip

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
    frame = codec.api_versions_fallback(5, range(5))
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
