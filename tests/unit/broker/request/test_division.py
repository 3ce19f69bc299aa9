"""A divided request and its joined answer mean what the whole ones mean, for each API and version with rows."""

from __future__ import annotations

import random
from operator import itemgetter
from typing import Any

import pytest
from msgspec.structs import replace

from kproc.broker.api import load_all
from kproc.broker.request import registry
from kproc.broker.request.division import JoinedAnswer, Rows, divide, rows_at
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey
from kproc.wire.schema import Schema
from kproc.wire.schema_writer import PIECE_BYTES
from tests.support.cases import in_one_test
from tests.support.filled_requests import filled

load_all()

TOPICS = rows_at("topics.partitions", "topics.partitions", size=5)
# Their error responses name no rows.
WITHOUT_ROWS = {
    ApiKey.LEAVE_GROUP,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.ELECT_LEADERS,
    ApiKey.OFFSET_DELETE,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS,
}
WITH_ROWS = sorted(key for key, api in registry.APIS.items() if api.rows)


def count(fields: Any, path: tuple[str, ...]) -> int:
    """The rows of a request."""
    found = fields[path[0]] or []
    return len(found) if len(path) == 1 else sum(count(row, path[1:]) for row in found)


def test_long_answer_has_pieces_that_were_not_copied() -> None:
    """Copying 20 MB into a frame took 20 ms in one duty cycle, and twice more."""
    key, version, path = ApiKey.DESCRIBE_CONFIGS, 4, ("results",)
    row = {
        "error_code": 0,
        "error_message": "x" * 1_000,
        "resource_type": 2,
        "resource_name": "t",
        "configs": [],
    }
    joined = JoinedAnswer(key, version, path)
    count = 3 * PIECE_BYTES // 1_000
    for _ in range(count // 2):
        before = joined.count(), joined.size_bytes()
        joined.add({"throttle_time": 0, "results": [row]})
        joined.repeat(*joined.rows_since(*before))
    fields = joined.fields()
    kept = list(fields["results"].pieces)
    pieces = codec.encode_response_in_pieces(key, version, 7, fields)
    assert len(kept) >= 2
    assert all(any(piece is each for piece in pieces) for each in kept)
    assert max(map(len, pieces)) < 2 * PIECE_BYTES
    whole = {"throttle_time": 0, "results": [row] * (count // 2 * 2)}
    assert b"".join(pieces) == codec.encode_response(key, version, 7, whole)


def test_long_answer_within_one_container_equals_the_whole_one() -> None:
    key, version, path = ApiKey.OFFSET_FETCH, 5, ("topics", "partitions")
    rows = [
        {
            "partition_index": at,
            "committed_offset": at,
            "committed_leader_epoch": -1,
            "metadata": "x" * 1_000,
            "error_code": 0,
        }
        for at in range(600)
    ]
    joined = JoinedAnswer(key, version, path)
    for at in range(0, 600, 100):
        part = [{"name": "t", "partitions": rows[at : at + 100]}]
        joined.add({"topics": part, "error_code": 0}, 1 if at else 0)
    whole = {"topics": [{"name": "t", "partitions": rows}], "error_code": 0}
    pieces = codec.encode_response_in_pieces(key, version, 7, joined.fields())
    assert b"".join(pieces) == codec.encode_response(key, version, 7, whole)


def test_divide_bounds_every_slice_and_keeps_the_order() -> None:
    rows = [{"name": "a", "partitions": list(range(7))}, {"name": "b", "partitions": [7]}]
    rows += [{"name": "none", "partitions": None}, {"name": "c", "partitions": [8, 9]}]
    slices = list(divide({"topics": rows, "timeout": 3}, TOPICS))
    assert [each.fields["topics"] for each in slices] == [
        [{"name": "a", "partitions": [0, 1, 2, 3]}],
        [{"name": "a", "partitions": [4, 5, 6]}, {"name": "b", "partitions": [7]}],
        [{"name": "none", "partitions": None}],
        [{"name": "c", "partitions": [8, 9]}],
    ]
    assert [each.continued for each in slices] == [0, 1, 0, 0]
    assert all(each.fields["timeout"] == 3 for each in slices)


def test_divide_without_rows_yields_the_request() -> None:
    (only,) = divide({"topics": []}, TOPICS)
    assert only.fields == {"topics": []}


def test_divide_keeps_duplicates_of_unique_rows_together() -> None:
    """CreateTopics rejects both rows of a name; in two slices the first would be created."""
    where = rows_at("topics", "topics", size=2, unique=itemgetter("name"))
    names = ["a", "b", "c", "a", "d", "a"]
    slices = list(divide({"topics": [{"name": name} for name in names]}, where))
    assert [[row["name"] for row in each.fields["topics"]] for each in slices] == [
        ["b", "c"],
        ["d"],
        ["a", "a", "a"],
    ]


@pytest.mark.long
@in_one_test("key", WITH_ROWS)
def test_joined_answer_equals_the_answer_to_the_whole_request(key: int) -> None:
    api = registry.APIS[key]
    error_response = api.error_response
    assert error_response is not None
    source = random.Random(key)
    compared = 0
    for version in range(api.lo, api.hi + 1):
        for _ in range(20):
            request = filled(codec.schema_of(key, version, "request"), source)
            where = api.rows_in(request)
            if where is None:
                continue
            small = replace(where, size=source.randrange(2, 7), unique=None)
            joined = JoinedAnswer(key, version, where.response, shared=where.shared)
            for part in divide(request, small):
                assert count(part.fields, where.request) <= small.size
                answer = error_response(part.fields, int(ErrorCode.INVALID_REQUEST), "why")
                joined.add(answer, where.shared + part.continued)
            whole = error_response(request, int(ErrorCode.INVALID_REQUEST), "why")
            assert decoded(key, version, joined.fields()) == decoded(key, version, whole)
            compared += count(whole, where.response[:1])
    assert compared or key in WITHOUT_ROWS


def decoded(key: int, version: int, fields: dict[str, Any]) -> dict[str, Any]:
    """The answer as a client reads it."""
    return codec.decode_response(key, version, codec.encode_response(key, version, 1, fields)[4:])[1]


def test_every_declared_path_is_in_some_version() -> None:
    """A path that no version has would leave an API undivided."""
    for key, api in registry.APIS.items():
        for where in api.rows:
            # The handler function of Metadata divides its request by this field. No client sends it.
            is_own = (key, where.request[0]) == (ApiKey.METADATA, "found")
            assert any(
                (is_own or _has(codec.schema_of(key, version, "request"), where.request))
                and _has(codec.schema_of(key, version, "response"), where.response)
                for version in range(api.lo, api.hi + 1)
            ), (api.key.name, where)


def _has(schema: Schema, path: tuple[str, ...]) -> bool:
    field = next((each for each in schema.fields if each.name == path[0] and each.is_array), None)
    if field is None or len(path) == 1:
        return field is not None
    return field.struct is not None and _has(field.struct, path[1:])


def test_join_keeps_the_first_error_of_the_whole_answer() -> None:
    joined = JoinedAnswer(ApiKey.DELETE_ACLS, 2, ("filter_results",))
    joined.add({"filter_results": [], "error_code": 0})
    joined.add({"filter_results": [], "error_code": 42})
    joined.add({"filter_results": [], "error_code": 7})
    assert joined.fields()["error_code"] == 42


def test_join_keeps_all_topics_within_one_log_directory() -> None:
    """The request of DescribeLogDirs names no directories: each slice answers with a row for the same one."""
    where = registry.APIS[ApiKey.DESCRIBE_LOG_DIRS].rows[0]
    joined = JoinedAnswer(ApiKey.DESCRIBE_LOG_DIRS, 1, where.response, shared=1)
    partition = {"partition_index": 0, "partition_size": 1, "offset_lag": 0, "is_future_key": False}
    names = [f"t{at}" for at in range(6)]
    for at in range(0, 6, 2):
        topics = [{"name": name, "partitions": [partition]} for name in names[at : at + 2]]
        row = {"error_code": 0, "log_dir": "/data", "topics": topics}
        joined.add({"results": [row], "error_code": 0})
    (row,) = decoded(ApiKey.DESCRIBE_LOG_DIRS, 1, joined.fields())["results"]
    assert [topic["name"] for topic in row["topics"]] == names


def test_divide_never_ends_a_slice_with_an_empty_container() -> None:
    """A group whose first topic did not fit was answered without topics by the slice that named it."""
    where = rows_at("groups.topics.partitions", "groups.topics.partitions", size=5)
    groups = [
        {"group_id": name, "topics": [{"name": "t", "partitions": list(range(count))}]}
        for name, count in [("a", 1), ("b", 3), ("empty", 0), ("c", 2), ("d", 9)]
    ]
    for size in range(1, 9):
        slices = list(divide({"groups": groups}, replace(where, size=size)))
        parts = [
            (group["group_id"], topic["partitions"])
            for each in slices
            for group in each.fields["groups"]
            for topic in group["topics"]
        ]
        assert {name for name, rows in parts if not rows} == {"empty"}
        assert all(group["topics"] for each in slices for group in each.fields["groups"])
        rows = [(name, row) for name, found in parts for row in found]
        assert rows == [
            (group["group_id"], row) for group in groups for row in group["topics"][0]["partitions"]
        ]


@pytest.mark.parametrize("codes", [(0, 16), (16, 0)])
def test_join_keeps_the_error_of_any_part_of_a_group(codes: tuple[int, int]) -> None:
    """Clients use the first row of a group: with error 0 they would take missing offsets for none."""
    where = Rows(("groups", "topics", "partition_indexes"), ("groups", "topics", "partitions"))
    joined = JoinedAnswer(ApiKey.OFFSET_FETCH, 8, where.response)
    row = {"partition_index": 0, "committed_offset": 1, "metadata": "", "error_code": 0}
    topics = [{"name": "t", "partitions": [row]}]
    for continued, code in enumerate(codes):
        found = [] if code else topics
        joined.add({"groups": [{"group_id": "g", "topics": found, "error_code": code}]}, continued)
    joined.add({"groups": [{"group_id": "h", "topics": topics, "error_code": 0}]})
    groups = decoded(ApiKey.OFFSET_FETCH, 8, joined.fields())["groups"]
    assert [(group["group_id"], group["error_code"]) for group in groups] == [("g", 16), ("h", 0)]
    assert groups[0]["topics"] == groups[1]["topics"]
