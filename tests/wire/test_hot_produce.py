"""The codec of Produce written by hand decodes and encodes like the generated one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproc.wire import codec, hot
from kproc.wire.header import ApiKey
from tests.support.cases import in_one_test
from tests.support.hot_values import (
    CASES,
    body_of,
    ids,
    int16,
    int32,
    int64,
    keyed,
    names,
    outcome,
    records,
)
from tests.support.wire_mutations import mutations

produce_versions = st.sampled_from(hot.PRODUCE_VERSIONS)

produce_requests = st.fixed_dictionaries(
    {
        "transactional_id": st.one_of(st.none(), st.none(), names),
        "acks": int16,
        "timeout": int32,
        "topic_data": st.lists(
            st.fixed_dictionaries(
                {
                    "name": names,
                    "topic_id": ids,
                    "partition_data": st.lists(
                        st.fixed_dictionaries({"index": int32, "records": records}), max_size=3
                    ),
                }
            ),
            max_size=3,
        ),
    }
)
# The shape with a decoder of its own must not be a rare find.
one_partition = st.builds(
    lambda fields, name, topic_id, index, raw: (
        fields
        | {
            "transactional_id": None,
            "topic_data": [
                {"name": name, "topic_id": topic_id, "partition_data": [{"index": index, "records": raw}]}
            ],
        }
    ),
    produce_requests,
    names,
    ids,
    int32,
    records,
)


def produce_as_fields(request: hot.ProduceRequest) -> dict:
    """A hot request in codec.py's shape."""
    topics = []
    for topic in request.topics:
        key = {"name": topic.name} if topic.topic_id is None else {"topic_id": topic.topic_id}
        partitions = [
            {"index": index, "records": None if raw is None else bytes(raw)}
            for index, raw in topic.partitions
        ]
        topics.append(key | {"partition_data": partitions})
    return {
        "transactional_id": request.transactional_id,
        "acks": request.acks,
        "timeout": request.timeout_ms,
        "topic_data": topics,
    }


@CASES
@given(
    version=produce_versions, fields=st.one_of(produce_requests, one_partition), extra=st.binary(max_size=3)
)
def test_hot_produce_request_equals_codec_without_a_copy(version, fields, extra):
    body = body_of(ApiKey.PRODUCE, version, fields) + extra
    view = memoryview(body)
    request = hot.decode_produce(version, view)
    assert produce_as_fields(request) == codec.decode_request(ApiKey.PRODUCE, version, body)
    for topic in request.topics:
        for _, raw in topic.partitions:
            assert raw is None or raw.obj is body


@CASES
@given(version=produce_versions, data=st.data())
def test_malformed_produce_requests_fail_in_both_or_decode_alike(version, data):
    bodies = st.one_of(produce_requests, one_partition).map(lambda f: body_of(ApiKey.PRODUCE, version, f))
    body = data.draw(mutations(bodies))
    by_hand = outcome(lambda: produce_as_fields(hot.decode_produce(version, memoryview(body))))
    assert by_hand == outcome(codec.decode_request, ApiKey.PRODUCE, version, body)


messages = st.one_of(st.none(), names)
record_errors = st.lists(st.tuples(int32, names), max_size=3).map(tuple)
partition_answers = st.tuples(int32, int16, int64, int64, int64, messages, record_errors)
topic_answers = st.tuples(names, ids, st.lists(partition_answers, max_size=3))


@CASES
@given(
    version=produce_versions,
    topics=st.lists(topic_answers, max_size=3),
    correlation_id=int32,
    throttle_ms=int32,
)
def test_produce_responses_are_the_codecs_bytes(version, topics, correlation_id, throttle_ms):
    fields = {
        "throttle_time": throttle_ms,
        "responses": [
            keyed(version, 13, "name", name, topic_id)
            | {
                "partition_responses": [
                    {
                        "index": index,
                        "error_code": error_code,
                        "base_offset": base_offset,
                        "log_append_time": append_time,
                        "log_start_offset": log_start,
                        "error_message": message,
                        "record_errors": [
                            {"batch_index": number, "batch_index_error_message": why} for number, why in bad
                        ],
                    }
                    for index, error_code, base_offset, append_time, log_start, message, bad in partitions
                ]
            }
            for name, topic_id, partitions in topics
        ],
    }
    frame = hot.encode_produce_response(version, correlation_id, topics, throttle_ms)
    assert frame == codec.encode_response(ApiKey.PRODUCE, version, correlation_id, fields)


@in_one_test(
    "encode",
    [
        lambda: hot.encode_produce_response(13, 1, [("t", None, [])]),
        lambda: hot.encode_produce_response(9, 1, [(None, bytes(16), [])]),
        lambda: hot.encode_produce_response(13, 1, [(None, b"short", [])]),
        lambda: hot.encode_fetch_response(13, 1, 0, 0, 0, [("t", None, [])]),
        lambda: hot.encode_fetch_response(12, 1, 0, 0, 0, [(None, bytes(16), [])]),
    ],
)
def test_hot_response_without_topic_key_of_version_raises(encode):
    with pytest.raises(ValueError, match="topic"):
        encode()
