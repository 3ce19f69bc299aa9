"""The hand-written encoder of Fetch responses encodes like the generated one."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kproc.wire import codec, hot
from kproc.wire.file_range import FileRange
from kproc.wire.header import ApiKey
from tests.support.hot_values import CASES, ids, int16, int32, int64, keyed, names

fetch_versions = st.sampled_from(hot.FETCH_VERSIONS)

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
