"""Writers built from schemas reject values that do not fit."""

from __future__ import annotations

import pytest

from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.cases import in_one_test


def test_field_of_no_version_is_rejected_other_versions_dropped():
    fields = {"throttle_time": 5, "error_code": 1, "session_id": 3, "responses": []}
    for version in (4, 7, 12, 18):
        codec.encode_response(ApiKey.FETCH, version, 1, fields)
    with pytest.raises(ValueError, match="no field throttle_time_ms"):
        codec.encode_response(ApiKey.FETCH, 12, 1, {"throttle_time_ms": 5})
    with pytest.raises(ValueError, match="no field partition"):
        codec.encode_response(ApiKey.FETCH, 12, 1, {"responses": [{"partitions": [{"partition": 1}]}]})


@in_one_test(
    "fields",
    [
        {"error_code": 70_000},
        {"responses": None},
        {"responses": [{"topic": None}]},
        {"responses": [{"topic": "x" * 40_000}]},
        {"session_id": None},
    ],
)
def test_encoding_value_out_of_range_raises_value_error(fields):
    with pytest.raises(ValueError, match="FETCH response v12"):
        codec.encode_response(ApiKey.FETCH, 12, 1, fields)
