"""The hand-written decoder of Fetch requests decodes like the generated one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kproc.common.errors import ProtocolError
from kproc.wire import codec, hot
from kproc.wire.header import ApiKey
from tests.support.hot_values import CASES, body_of, ids, int32, int64, names, outcome
from tests.support.wire_mutations import mutations

fetch_versions = st.sampled_from(hot.FETCH_VERSIONS)

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
    """Return the hot request that the codec's fields must give."""

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


@CASES
@given(version=fetch_versions, data=st.data())
def test_malformed_fetch_requests_fail_in_both_or_decode_alike(version, data):
    body = data.draw(mutations(fetch_requests.map(lambda f: body_of(ApiKey.FETCH, version, f))))
    by_hand = outcome(hot.decode_fetch, version, memoryview(body))
    by_codec = outcome(lambda: expected_fetch(version, codec.decode_request(ApiKey.FETCH, version, body)))
    # The codec also looks into tags which hot.py skips; there alone it may refuse more.
    assert by_hand == by_codec or (version >= 12 and by_codec is ProtocolError)
