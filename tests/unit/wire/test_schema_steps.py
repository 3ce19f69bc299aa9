"""Requests decoded in steps: the same fields, and bounded rows in each step and in total."""

from __future__ import annotations

import random

import pytest

from kproc.broker.api import load_all
from kproc.broker.request import registry
from kproc.common.errors import ProtocolError
from kproc.wire import codec
from kproc.wire.header import ApiKey, parse_request_header
from kproc.wire.schema_steps import RowBudget
from tests.support.cases import in_one_test
from tests.support.filled_requests import filled

load_all()
KEYS = sorted(registry.APIS.keys() - {ApiKey.PRODUCE, ApiKey.FETCH})


def body_of(key: int, version: int, fields: dict[str, object]) -> bytes:
    frame = codec.encode_request(key, version, 1, "c", fields)[4:]
    return frame[parse_request_header(frame)[1] :]


def steps_of(key: int, version: int, body: bytes, budget: RowBudget) -> tuple[dict[str, object], int]:
    """The fields, and after how many pauses."""
    steps = codec.decode_request_by_steps(key, version, body, budget)
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value, pauses
        pauses += 1


@in_one_test("key", KEYS)
def test_decode_by_steps_gives_the_fields_of_one_step(key: int) -> None:
    source = random.Random(key)
    api = registry.APIS[key]
    for version in range(api.lo, api.hi + 1):
        for _ in range(5):
            body = body_of(key, version, filled(codec.schema_of(key, version, "request"), source))
            fields, _ = steps_of(key, version, body, RowBudget(1_000_000, source.randrange(1, 5)))
            assert fields == codec.decode_request(key, version, body)


def test_decode_by_steps_pauses_after_as_many_rows_as_allowed() -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": at, "offset": 0} for at in range(95)]}]
    body = body_of(ApiKey.DELETE_RECORDS, 0, {"topics": topics, "timeout": 1})
    assert steps_of(ApiKey.DELETE_RECORDS, 0, body, RowBudget(1_000, 10))[1] == 9


def test_decode_of_too_many_rows_is_refused_before_they_are_read() -> None:
    """The rows are nothing but zeros: their count alone is looked at."""
    body = (900_000).to_bytes(4, "big") + bytes(4 * 900_000)
    steps = codec.decode_request_by_steps(ApiKey.DESCRIBE_GROUPS, 0, body, RowBudget(100_000, 500))
    with pytest.raises(ProtocolError, match="more than 100000 rows"):
        next(steps)


def test_rows_of_all_arrays_of_a_request_count_together() -> None:
    topics = [{"name": f"t{at}", "partitions": list(range(10))} for at in range(10)]
    fields = {"v3_and_below_transactional_id": "x", "v3_and_below_topics": topics}
    body = body_of(ApiKey.ADD_PARTITIONS_TO_TXN, 1, fields)
    assert steps_of(ApiKey.ADD_PARTITIONS_TO_TXN, 1, body, RowBudget(110, 500))[0]
    with pytest.raises(ProtocolError, match="rows"):
        steps_of(ApiKey.ADD_PARTITIONS_TO_TXN, 1, body, RowBudget(109, 500))


@in_one_test("cut", range(1, 20))
def test_truncated_request_decoded_by_steps_is_refused(cut: int) -> None:
    body = body_of(ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["abc", "def", "ghi"]})
    with pytest.raises(ProtocolError):
        steps_of(ApiKey.DESCRIBE_GROUPS, 5, body[: max(0, len(body) - cut)], RowBudget(100, 1))
