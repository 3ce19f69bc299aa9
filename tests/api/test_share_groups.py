"""Share groups through a broker: members, descriptions, start offsets, deletion (KIP-932)."""

from __future__ import annotations

from typing import Any

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.configs import set_config
from tests.support.groups import delete_groups, find_coordinator
from tests.support.raw import RawClient, batch
from tests.support.share_requests import (
    ACCEPT,
    MEMBER,
    RELEASE,
    offsets_of,
    rows_of,
    share_acknowledge,
    share_fetch,
)
from tests.support.topics import fresh_name
from tests.support.wait import wait_until

Fields = dict[str, Any]
GROUP_RESOURCE = 32


def heartbeat(client: RawClient, group: str, epoch: int, topic: str | None = None) -> Fields:
    fields = {
        "group_id": group,
        "member_id": MEMBER,
        "member_epoch": epoch,
        "rack_id": None,
        "subscribed_topic_names": None if topic is None else [topic],
    }
    return client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, fields)


def join(client: RawClient, group: str, topic: str) -> Fields:
    """Join, and send heartbeats until the member has partitions."""
    find_coordinator(client, group)
    last = heartbeat(client, group, 0, topic)

    def assigned() -> Fields | None:
        nonlocal last
        last = heartbeat(client, group, last["member_epoch"], topic)
        assert not last["error_code"], last
        return last if last["assignment"]["topic_partitions"] else None

    return wait_until(assigned, seconds=20, what="an assignment")


def describe_offsets(client: RawClient, group: str, topics: list[Fields] | None = None) -> Fields:
    fields = {"groups": [{"group_id": group, "topics": topics}]}
    (row,) = client.call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, fields)["groups"]
    return row


def alter(client: RawClient, group: str, topic: str, offset: int) -> Fields:
    partitions = [{"partition_index": 0, "start_offset": offset}, {"partition_index": 7, "start_offset": 0}]
    fields = {"group_id": group, "topics": [{"topic_name": topic, "partitions": partitions}]}
    return client.call(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, fields)


def test_member_is_assigned_described_and_deleted(client: RawClient, log: tuple[str, bytes]) -> None:
    name, topic_id = log
    group = fresh_name("share")
    joined = join(client, group, name)
    assert joined["assignment"]["topic_partitions"] == [{"topic_id": topic_id, "partitions": [0]}]
    find_coordinator(client, "missing")
    fields = {"group_ids": [group, "missing"], "include_authorized_operations": False}
    described, missing = client.call(ApiKey.SHARE_GROUP_DESCRIBE, 1, fields)["groups"]
    assert (described["group_state"], described["assignor_name"]) == ("Stable", "simple")
    (member,) = described["members"]
    assert member["assignment"]["topic_partitions"][0]["topic_name"] == name
    assert (missing["error_code"], missing["error_message"]) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group missing not found.",
    )
    listed = client.call(ApiKey.LIST_GROUPS, 5, {"states_filter": ["stable"], "types_filter": ["share"]})
    assert {
        "group_id": group,
        "protocol_type": "share",
        "group_state": "Stable",
        "group_type": "share",
    } in listed["groups"]
    assert delete_groups(client, group) == {group: ErrorCode.NON_EMPTY_GROUP}
    assert alter(client, group, name, 0)["error_code"] == ErrorCode.NON_EMPTY_GROUP
    assert heartbeat(client, group, -1)["member_epoch"] == -1
    assert delete_groups(client, group) == {group: 0}
    assert (gone := describe_offsets(client, group))["error_code"] == ErrorCode.NONE
    assert gone["topics"] == []


def test_share_group_of_deleted_topic_can_be_deleted(client: RawClient) -> None:
    name = fresh_name("deleted")
    client.create_topic(name)
    group = fresh_name("share")
    join(client, group, name)
    assert heartbeat(client, group, -1)["member_epoch"] == -1
    client.delete_topic(name)
    assert delete_groups(client, group) == {group: 0}


def test_start_offsets_are_altered_described_and_deleted(client: RawClient, log: tuple[str, bytes]) -> None:
    name, topic_id = log
    client.produce(name, batch(*[b"x"] * 5))
    group = fresh_name("share")
    find_coordinator(client, group)
    altered = alter(client, group, name, 2)
    assert not altered["error_code"], altered
    (topic,) = altered["responses"]
    assert [(each["partition_index"], each["error_code"]) for each in topic["partitions"]] == [
        (0, 0),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    (shown,) = describe_offsets(client, group)["topics"]
    assert (shown["topic_name"], shown["topic_id"]) == (name, topic_id)
    (row,) = shown["partitions"]
    # The lag is known when the owner of the partition has counted the completed deliveries.
    assert (row["start_offset"], row["error_code"]) == (2, 0)
    assert row["lag"] in (-1, 3)
    unknown = describe_offsets(client, group, [{"topic_name": "missing", "partitions": [3]}])
    assert unknown["topics"][0]["partitions"][0]["start_offset"] == -1
    fields = {"group_id": group, "topics": [{"topic_name": name}, {"topic_name": "missing"}]}
    deleted = client.call(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, fields)
    assert [each["error_code"] for each in deleted["responses"]] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert describe_offsets(client, group)["topics"] == []


def test_records_are_acknowledged_by_thousands_of_batches(client: RawClient, log: tuple[str, bytes]) -> None:
    """librdkafka sends a batch for each change of the type, and a producer's batch can have 10,000 records."""
    name, topic_id = log
    count = 6_000
    client.produce(name, batch(*[b"x"] * count))
    group = fresh_name("share")
    assert set_config(client, "share.auto.offset.reset", "earliest", kind=GROUP_RESOURCE, resource=group)[0] == 0
    join(client, group, name)
    epoch = -1

    def fetch(**more: Any) -> Fields | None:
        nonlocal epoch
        epoch += 1
        answer = client.call(
            ApiKey.SHARE_FETCH, 2, share_fetch(topic_id, [0], epoch=epoch, group_id=group, max_wait=500, **more)
        )
        assert answer["error_code"] == 0, answer
        row = rows_of(answer).get(0)
        return row if row is not None and row["acquired_records"] else None

    first = wait_until(fetch, seconds=20, what="records")
    assert offsets_of(first) == list(range(count))
    batches = {0: [(at, at, [RELEASE if at % 2 else ACCEPT]) for at in range(count)]}
    epoch += 1
    fields = share_acknowledge(topic_id, batches, epoch=epoch, group_id=group)
    assert rows_of(client.call(ApiKey.SHARE_ACKNOWLEDGE, 2, fields))[0]["error_code"] == 0
    again = wait_until(lambda: fetch(max_records=count), seconds=20, what="released records")
    assert offsets_of(again) == list(range(1, count, 2))
