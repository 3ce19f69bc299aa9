"""DescribeTopicPartitions: topics in pages, and cursors."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import Fields, RawClient
from tests.support.topics import fresh_name

# -- DescribeTopicPartitions -------------------------------------------------------------------------------


def page(client: RawClient, names: list[str], limit: int, cursor: tuple[str, int] | None = None) -> Fields:
    fields = {
        "topics": [{"name": name} for name in names],
        "response_partition_limit": limit,
        "cursor": None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]},
    }
    return client.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, fields)


def shown(answer: Fields) -> list[tuple[str, list[int]]]:
    return [
        (row["name"], [part["partition_index"] for part in row["partitions"]]) for row in answer["topics"]
    ]


def test_describe_topic_partitions_pages_by_cursor(client: RawClient, three: str) -> None:
    other = three + "-b"
    client.create_topic(other, partitions=2)
    first = page(client, [other, three, three], 2)
    assert shown(first) == [(three, [0, 1])]
    assert first["next_cursor"] == {"topic_name": three, "partition_index": 2}
    second = page(client, [other, three], 1, (three, 2))
    assert shown(second) == [(three, [2])]
    assert second["next_cursor"] == {"topic_name": other, "partition_index": 0}
    third = page(client, [other, three], 9, (other, 0))
    assert shown(third) == [(other, [0, 1])]
    assert third["next_cursor"] is None
    row = third["topics"][0]["partitions"][0]
    assert row["replica_nodes"] == row["isr_nodes"] == [row["leader_id"]]
    assert row["eligible_leader_replicas"] == row["last_known_elr"] == row["offline_replicas"] == []
    assert third["topics"][0]["topic_id"] == client.topic_id(other)


def test_describe_topic_partitions_full_page_and_unknown_topic(client: RawClient, three: str) -> None:
    absent = three + "-absent"
    answer = page(client, [three, absent], 3)
    assert shown(answer) == [(three, [0, 1, 2])]
    assert answer["next_cursor"] == {"topic_name": absent, "partition_index": 0}


def test_describe_topic_partitions_invalid_topic_and_cursor(client: RawClient, three: str) -> None:
    absent = fresh_name("absent")
    answer = page(client, ["bad/name", absent], 9)
    assert [(row["name"], row["error_code"]) for row in answer["topics"]] == sorted(
        [
            ("bad/name", ErrorCode.INVALID_TOPIC_EXCEPTION),
            (absent, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
    )
    for cursor in ((three, -1), (absent, 0)):
        answer = page(client, [three], 9, cursor)
        assert [row["error_code"] for row in answer["topics"]] == [ErrorCode.INVALID_REQUEST]
    assert page(client, [], 9, ("~", 0)) == {"throttle_time": 0, "topics": [], "next_cursor": None}
    everything = page(client, [], 2_000)
    assert three in [row["name"] for row in everything["topics"]]
