"""The codec of Fetch written by hand decodes and encodes like the generated one."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kproc.common.errors import ProtocolError
from kproc.wire import codec, hot
from kproc.wire.file_range import FileRange
from kproc.wire.header import ApiKey, parse_request_header
from tests.support.wire_mutations import mutations

CASES = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
fetch_versions = st.sampled_from(hot.FETCH_VERSIONS)

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
names = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["orders", "тема-日本", "x" * 126, "x" * 127, "x" * 249, "x" * 1000]),
)
ids = st.one_of(st.just(bytes(16)), st.binary(min_size=16, max_size=16))
records = st.one_of(
    st.none(), st.binary(max_size=40), st.integers(120, 300).map(lambda n: b"r" * n), st.just(b"r" * 20_000)
)


def body_of(api_key: int, version: int, fields: dict) -> bytes:
    frame = codec.encode_request(api_key, version, 1, None, fields)
    return frame[parse_request_header(frame, 4)[1] :]


fetch_partitions = st.fixed_dictionaries(
    {
        "partition": int32,
        "current_leader_epoch": int32,
        "fetch_offset": int64,
        "last_fetched_epoch": int32,
        "log_start_offset": int64,
        "partition_max_bytes": int32,
        "replica_directory_id": ids,
        "high_watermark": int64,
    }
)
fetch_requests = st.fixed_dictionaries(
    {
        "cluster_id": st.one_of(st.none(), names),
        "replica_id": int32,
        "replica_state": st.fixed_dictionaries({"replica_id": int32, "replica_epoch": int64}),
        "max_wait": int32,
        "min_bytes": int32,
        "max_bytes": int32,
        "isolation_level": st.integers(-128, 127),
        "session_id": int32,
        "session_epoch": int32,
        "topics": st.lists(
            st.fixed_dictionaries(
                {"topic": names, "topic_id": ids, "partitions": st.lists(fetch_partitions, max_size=3)}
            ),
            max_size=3,
        ),
        "forgotten_topics_data": st.lists(
            st.fixed_dictionaries(
                {"topic": names, "topic_id": ids, "partitions": st.lists(int32, max_size=4)}
            ),
            max_size=3,
        ),
        "rack_id": names,
    }
)


def expected_fetch(version: int, fields: dict) -> hot.FetchRequest:
    """What a hot request must be, given the codec's fields."""

    def key(topic: dict) -> tuple:
        return topic.get("topic"), topic.get("topic_id")

    topics = [
        (
            *key(topic),
            [
                hot.FetchPartition(
                    p["partition"],
                    p.get("current_leader_epoch", -1),
                    p["fetch_offset"],
                    p.get("last_fetched_epoch", -1),
                    p.get("log_start_offset", -1),
                    p["partition_max_bytes"],
                )
                for p in topic["partitions"]
            ],
        )
        for topic in fields["topics"]
    ]
    forgotten = [(*key(topic), topic["partitions"]) for topic in fields.get("forgotten_topics_data", ())]
    return hot.FetchRequest(
        fields["max_wait"],
        fields["min_bytes"],
        fields["max_bytes"],
        fields["isolation_level"],
        fields.get("session_id", 0),
        fields.get("session_epoch", -1),
        topics,
        forgotten,
        fields.get("rack_id", ""),
        fields["replica_state"]["replica_id"] if version >= 15 else fields["replica_id"],
    )


@CASES
@given(version=fetch_versions, fields=fetch_requests, extra=st.binary(max_size=3))
def test_fetch_requests_decode_as_by_the_codec(version, fields, extra):
    body = body_of(ApiKey.FETCH, version, fields) + extra
    expected = expected_fetch(version, codec.decode_request(ApiKey.FETCH, version, body))
    assert hot.decode_fetch(version, memoryview(body)) == expected


def outcome(decode, *arguments):
    try:
        return decode(*arguments)
    except ProtocolError:
        return ProtocolError


@CASES
@given(version=fetch_versions, data=st.data())
def test_malformed_fetch_requests_fail_in_both_or_decode_alike(version, data):
    body = data.draw(mutations(fetch_requests.map(lambda f: body_of(ApiKey.FETCH, version, f))))
    by_hand = outcome(hot.decode_fetch, version, memoryview(body))
    by_codec = outcome(lambda: expected_fetch(version, codec.decode_request(ApiKey.FETCH, version, body)))
    # The codec also looks into tags which hot.py skips; there alone it may refuse more.
    assert by_hand == by_codec or (version >= 12 and by_codec is ProtocolError)


def keyed(version: int, first_with_ids: int, name_field: str, name: str, topic_id: bytes) -> dict:
    return {"topic_id": topic_id} if version >= first_with_ids else {name_field: name}


lengths = st.sampled_from([0, 1, 126, 127, 128, 16_383, 16_384, 70_000])
file_ranges = st.builds(FileRange, st.just(b"/log"), st.just(1), st.integers(0, 2**40), lengths)
fetch_results = st.builds(
    hot.FetchPartitionResult,
    int32,
    st.one_of(st.just(0), int16),
    int64,
    int64,
    int64,
    st.one_of(st.none(), st.none(), st.lists(st.tuples(int64, int64), max_size=3)),
    st.one_of(
        file_ranges.map(lambda piece: (piece,)),
        st.lists(st.one_of(file_ranges, st.binary(max_size=20)), max_size=3),
    ),
)
one_result = st.builds(lambda n, i, r: [(n, i, [r])], names, ids, fetch_results)
many_results = st.lists(st.tuples(names, ids, st.lists(fetch_results, max_size=3)), max_size=3)


def contents(piece: FileRange | bytes) -> bytes:
    return b"f" * piece.length if isinstance(piece, FileRange) else piece


@CASES
@given(
    version=fetch_versions,
    topics=st.one_of(one_result, many_results),
    ids_and_codes=st.one_of(
        st.tuples(int32, st.just(0), st.just(0), int32), st.tuples(int32, int32, int16, int32)
    ),
)
def test_hot_fetch_response_equals_codec_bytes(version, topics, ids_and_codes):
    correlation_id, throttle_ms, error_code, session_id = ids_and_codes
    fields = {
        "throttle_time": throttle_ms,
        "error_code": error_code,
        "session_id": session_id,
        "responses": [
            keyed(version, 13, "topic", name, topic_id)
            | {
                "partitions": [
                    {
                        "partition_index": result.index,
                        "error_code": result.error_code,
                        "high_watermark": result.high_watermark,
                        "last_stable_offset": result.last_stable_offset,
                        "log_start_offset": result.log_start_offset,
                        "aborted_transactions": None
                        if result.aborted is None
                        else [{"producer_id": pid, "first_offset": at} for pid, at in result.aborted],
                        "records": b"".join(map(contents, result.records)),
                    }
                    for result in partitions
                ]
            }
            for name, topic_id, partitions in topics
        ],
    }
    parts = hot.encode_fetch_response(version, *ids_and_codes, topics)
    assert isinstance(parts[0], bytes)
    assert b"".join(map(contents, parts)) == codec.encode_response(
        ApiKey.FETCH, version, correlation_id, fields
    )
    # Nothing that a sender would have to skip, and no two pieces that could have been one.
    assert all(piece.length if isinstance(piece, FileRange) else piece for piece in parts)
    assert not any(isinstance(a, bytes) and isinstance(b, bytes) for a, b in pairwise(parts))
