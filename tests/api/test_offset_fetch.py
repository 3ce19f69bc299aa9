"""OffsetFetch: all topics, several groups, unknown groups and deleted topics."""

from __future__ import annotations

import pytest

from kproc.wire.header import ApiKey
from tests.support.groups import commit, commit_fields, fetch_group, find_coordinator, offsets_of
from tests.support.offset_fetches import fetch_fields
from tests.support.raw import RawClient
from tests.support.topics import fresh_name
from tests.support.wait import wait_until

NO_OFFSET = -1


@pytest.mark.parametrize("version", range(1, 11))
def test_offset_fetch_in_every_version(
    client: RawClient, group: str, log: tuple[str, bytes], version: int
) -> None:
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


def test_topic_deletion_deletes_its_committed_offsets(
    client: RawClient, group: str, log: tuple[str, bytes]
) -> None:
    doomed = fresh_name("doomed")
    client.create_topic(doomed)
    commit(client, group, doomed, {0: 8})
    commit(client, group, log[0], {0: 1})
    client.delete_topic(doomed)
    wait_until(lambda: offsets_of(client, group) == {(log[0], 0): 1}, what="the offsets are gone")
