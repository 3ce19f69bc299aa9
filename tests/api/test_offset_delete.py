"""OffsetDelete, and the order of its errors."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.groups import Member, commit, offsets_of
from tests.support.raw import RawClient
from tests.support.topics import fresh_name


def test_offset_delete_of_subscribed_topic_is_rejected(
    client: RawClient, group: str, one: Member, log: tuple[str, bytes]
) -> None:
    other = fresh_name("other")
    client.create_topic(other)
    one.commit(log[0], {0: 1})
    one.commit(other, {0: 2})
    absent = fresh_name("absent")
    topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in (log[0], other, absent)]
    answer = client.call(ApiKey.OFFSET_DELETE, 0, {"group_id": group, "topics": topics})
    assert answer["error_code"] == 0
    codes = {topic["name"]: topic["partitions"][0]["error_code"] for topic in answer["topics"]}
    assert codes == {
        log[0]: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        other: 0,
        absent: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert offsets_of(client, group) == {(log[0], 0): 1}


def test_offset_delete_of_unknown_group_fails(client: RawClient, group: str, log: tuple[str, bytes]) -> None:
    topics = [{"name": log[0], "partitions": [{"partition_index": 0}]}]
    answer = client.call(ApiKey.OFFSET_DELETE, 0, {"group_id": group, "topics": topics})
    assert answer["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND


def test_offset_delete_checks_group_before_topics(
    client: RawClient, group: str, log: tuple[str, bytes]
) -> None:
    def deleted(name: str) -> tuple[int, list[int]]:
        topics = [{"name": name, "partitions": [{"partition_index": 7}]}]
        answer = client.call(ApiKey.OFFSET_DELETE, 0, {"group_id": group, "topics": topics})
        rows = [topic["partitions"][0]["error_code"] for topic in answer["topics"]]
        return answer["error_code"], rows

    names = fresh_name("absent"), log[0]
    assert [deleted(name) for name in names] == [(ErrorCode.GROUP_ID_NOT_FOUND, [])] * 2
    commit(client, group, log[0], {0: 1})
    assert [deleted(name) for name in names] == [(0, [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])] * 2
