"""Committed offsets over raw frames: commit, fetch and delete in every version, and who may."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.groups import (
    Member,
    commit,
    commit_fields,
    describe,
    fetch_group,
    find_coordinator,
    list_groups,
    offsets_of,
    settle,
)
from tests.support.raw import Fields, RawClient
from tests.support.topics import fresh_name
from tests.support.wait import wait_until

NO_OFFSET = -1


@pytest.fixture
def group(client: RawClient) -> str:
    """The id of a group that nobody has used, with its coordinator found."""
    name = fresh_name("offsets")
    find_coordinator(client, name)
    return name


@pytest.fixture
def one(broker: BrokerUnderTest, group: str, log: tuple[str, bytes]) -> Iterator[Member]:
    """The only member of the group, subscribed to the topic, settled."""
    with Member(broker.bootstrap, group, topics=[log[0]]) as member:
        settle([member])
        yield member


def fetch_fields(version: int, group: str, name: str, topic_id: bytes) -> Fields:
    topic = {"name": name, "partition_indexes": [0, 1]}
    return {
        "group_id": group,
        "topics": [topic],
        "groups": [{"group_id": group, "topics": [{**topic, "topic_id": topic_id}]}],
        "require_stable": version >= 7,
    }


@pytest.mark.parametrize("version", range(2, 11))
def test_offset_commit_in_every_version(client: RawClient, group: str, log: tuple[str, bytes], version: int) -> None:
    name, topic_id = log
    fields = commit_fields(group, name, {0: 42}, metadata="väl")
    fields["topics"][0]["topic_id"] = topic_id
    answer = client.call(ApiKey.OFFSET_COMMIT, version, fields)
    (topic,) = answer["topics"]
    assert topic["partitions"] == [{"partition_index": 0, "error_code": 0}]
    assert topic["topic_id"] == topic_id if version >= 10 else topic["name"] == name
    row = fetch_group(client, group, {name: [0]})["topics"][0]["partitions"][0]
    assert (row["committed_offset"], row["metadata"]) == (42, "väl")


@pytest.mark.parametrize("version", range(1, 11))
def test_offset_fetch_in_every_version(client: RawClient, group: str, log: tuple[str, bytes], version: int) -> None:
    name, topic_id = log
    fields = commit_fields(group, name, {0: 5}, metadata="m")
    fields["topics"][0]["partitions"][0]["committed_leader_epoch"] = 3
    client.call(ApiKey.OFFSET_COMMIT, 9, fields)
    answer = client.call(ApiKey.OFFSET_FETCH, version, fetch_fields(version, group, name, topic_id))
    row = answer["groups"][0] if version >= 8 else answer
    assert row.get("error_code", 0) == 0
    (topic,) = row["topics"]
    assert topic["topic_id"] == topic_id if version >= 10 else topic["name"] == name
    found = [(each["committed_offset"], each["metadata"], each["error_code"]) for each in topic["partitions"]]
    assert found == [(5, "m", 0), (NO_OFFSET, "", 0)]
    if version >= 5:
        assert [each["committed_leader_epoch"] for each in topic["partitions"]] == [3, -1]


@pytest.mark.parametrize("version", range(1, 11))
def test_offset_fetch_of_unknown_group_is_empty(
    client: RawClient, group: str, log: tuple[str, bytes], version: int
) -> None:
    answer = client.call(ApiKey.OFFSET_FETCH, version, fetch_fields(version, group, *log))
    row = answer["groups"][0] if version >= 8 else answer
    assert row.get("error_code", 0) == 0
    rows = row["topics"][0]["partitions"]
    assert [(each["committed_offset"], each["error_code"]) for each in rows] == [(NO_OFFSET, 0)] * 2
    assert fetch_group(client, group, None)["topics"] == []


@pytest.mark.parametrize("version", range(2, 11))
def test_offset_fetch_with_null_topics_returns_all(
    client: RawClient, group: str, log: tuple[str, bytes], version: int
) -> None:
    other = fresh_name("other")
    other_id = client.create_topic(other, partitions=2)
    commit(client, group, log[0], {0: 1})
    commit(client, group, other, {1: 2})
    fields = {
        "group_id": group,
        "topics": None,
        "groups": [{"group_id": group, "topics": None}],
        "require_stable": False,
    }
    answer = client.call(ApiKey.OFFSET_FETCH, version, fields)
    topics = answer["groups"][0]["topics"] if version >= 8 else answer["topics"]
    label = "topic_id" if version >= 10 else "name"
    found = {
        (topic[label], each["partition_index"], each["committed_offset"])
        for topic in topics
        for each in topic["partitions"]
    }
    first, second = (log[1], other_id) if version >= 10 else (log[0], other)
    assert found == {(first, 0, 1), (second, 1, 2)}


def test_offset_fetch_of_several_groups(client: RawClient, log: tuple[str, bytes]) -> None:
    groups = [fresh_name("many") for _ in range(4)]
    find_coordinator(client, groups[0])
    for number, group in enumerate(groups[:-1]):
        commit(client, group, log[0], {0: number})
    wanted = [{"name": log[0], "partition_indexes": [0]}]
    fields = {
        "groups": [{"group_id": group, "topics": wanted} for group in groups],
        "require_stable": True,
    }
    answer = client.call(ApiKey.OFFSET_FETCH, 8, fields)
    found = {
        row["group_id"]: row["topics"][0]["partitions"][0]["committed_offset"] for row in answer["groups"]
    }
    assert found == {groups[0]: 0, groups[1]: 1, groups[2]: 2, groups[3]: NO_OFFSET}


def test_offset_commit_of_unknown_partitions_fails_by_partition(
    client: RawClient, group: str, log: tuple[str, bytes]
) -> None:
    assert commit(client, group, log[0], {0: 1, 1: 2}) == {0: 0, 1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    absent = fresh_name("absent")
    assert commit(client, group, absent, {0: 1}) == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    fields = commit_fields(group, "", {0: 1})
    fields["topics"][0]["topic_id"] = bytes(range(16))
    (topic,) = client.call(ApiKey.OFFSET_COMMIT, 10, fields)["topics"]
    assert topic["partitions"][0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
    answer = client.call(ApiKey.OFFSET_FETCH, 10, fetch_fields(10, group, "", bytes(range(16))))
    (topic,) = answer["groups"][0]["topics"]
    assert {each["error_code"] for each in topic["partitions"]} == {ErrorCode.UNKNOWN_TOPIC_ID}
    assert offsets_of(client, group) == {(log[0], 0): 1}


def test_offset_commit_with_long_metadata_is_rejected(client: RawClient, group: str, log: tuple[str, bytes]) -> None:
    # Characters count, whatever the setting's name says.
    assert commit(client, group, log[0], {0: 1}, metadata="ä" * 4096) == {0: 0}
    assert commit(client, group, log[0], {0: 2}, metadata="x" * 4097) == {
        0: ErrorCode.OFFSET_METADATA_TOO_LARGE
    }
    assert offsets_of(client, group) == {(log[0], 0): 1}


def test_offset_commit_null_metadata_becomes_empty(client: RawClient, group: str, log: tuple[str, bytes]) -> None:
    commit(client, group, log[0], {0: 1}, metadata=None)
    assert fetch_group(client, group, {log[0]: [0]})["topics"][0]["partitions"][0]["metadata"] == ""


def test_offset_commit_of_non_member_in_active_group_is_rejected(
    client: RawClient, group: str, one: Member, log: tuple[str, bytes]
) -> None:
    assert commit(client, group, log[0], {0: 1}) == {0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert one.commit(log[0], {0: 1}, member_id="nobody") == {0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert one.commit(log[0], {0: 9}) == {0: 0}
    one.leave()
    assert commit(client, group, log[0], {0: 4}) == {0: 0}
    assert offsets_of(client, group) == {(log[0], 0): 4}


def test_offset_commit_checks_member_before_metadata_size(
    client: RawClient, group: str, one: Member, log: tuple[str, bytes]
) -> None:
    assert commit(client, group, log[0], {0: 1}, metadata="x" * 5000) == {0: ErrorCode.UNKNOWN_MEMBER_ID}


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_offset_commit_with_generation_of_no_group_is_rejected(
    client: RawClient, group: str, log: tuple[str, bytes], version: int, code: ErrorCode
) -> None:
    changes = {"generation_id_or_member_epoch": 3, "member_id": "m"}
    assert commit(client, group, log[0], {0: 1}, version=version, **changes) == {0: code}
    assert group not in list_groups(client)


def test_offset_commit_without_member_creates_simple_group(
    client: RawClient, group: str, log: tuple[str, bytes]
) -> None:
    commit(client, group, log[0], {0: 1})
    row = list_groups(client)[group]
    assert (row["protocol_type"], row["group_state"], row["group_type"]) == ("", "Empty", "classic")
    assert describe(client, group)["group_state"] == "Empty"


def test_offset_commit_during_rebalance(
    broker: BrokerUnderTest, one: Member, log: tuple[str, bytes]
) -> None:
    with Member(broker.bootstrap, one.group_id) as two:
        two.send_join()
        two.member_id = two.client.receive(ApiKey.JOIN_GROUP, 9)[1]["member_id"]
        two.send_join()
        wait_until(lambda: one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, what="the rebalance")
        # Members may still commit what they did before they join again.
        assert one.commit(log[0], {0: 3}) == {0: 0}
        one.join()
        assert one.commit(log[0], {0: 4}) == {0: ErrorCode.REBALANCE_IN_PROGRESS}


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


def test_offset_delete_of_unknown_group_fails(
    client: RawClient, group: str, log: tuple[str, bytes]
) -> None:
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


def test_topic_deletion_deletes_its_committed_offsets(
    client: RawClient, group: str, log: tuple[str, bytes]
) -> None:
    doomed = fresh_name("doomed")
    client.create_topic(doomed)
    commit(client, group, doomed, {0: 8})
    commit(client, group, log[0], {0: 1})
    client.delete_topic(doomed)
    wait_until(lambda: offsets_of(client, group) == {(log[0], 0): 1}, what="the offsets are gone")
