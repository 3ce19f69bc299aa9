"""A streams group through a broker: internal topics, tasks, descriptions, commits, other protocols, deletion."""

from __future__ import annotations

from typing import Any

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.altered_configs import alter
from tests.support.groups import COMMIT_VERSION, commit_fields, join_fields, list_groups, streams_join
from tests.support.raw import Fields, RawClient
from tests.support.wait import wait_until

STAY: Fields = {"member_epoch": 2, "topology": None, "process_id": None, "client_tags": None}
STAY |= {"active_tasks": None, "standby_tasks": None, "warmup_tasks": None}


def heartbeat(client: RawClient, group_id: str, **changes: Any) -> Fields:
    fields = streams_join(group_id, [], **changes)
    return client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, 1, fields)


def topology(source: str, changelog: str) -> Fields:
    (subtopology,) = streams_join("", [source])["topology"]["subtopologies"]
    configs = [{"key": "cleanup.policy", "value": "compact"}]
    topic = {"name": changelog, "partitions": 0, "replication_factor": 0, "topic_configs": configs}
    return {"epoch": 0, "subtopologies": [{**subtopology, "state_changelog_topics": [topic]}]}


def test_broker_creates_internal_topics_and_assigns_tasks(client: RawClient, group: str) -> None:
    source, changelog = f"{group}-in", f"{group}-store-changelog"
    client.create_topic(source, partitions=3)
    joined = heartbeat(client, group, topology=topology(source, changelog))
    assert (joined["error_code"], joined["member_epoch"], joined["active_tasks"]) == (0, 2, [])
    assert joined["status"] == [
        {"status_code": 3, "status_detail": f"Internal topics are missing: {changelog}"}
    ]
    assert joined["heartbeat_interval"] == 500
    assert len(client.describe_topic(changelog)["partitions"]) == 3
    # The first assignment, without tasks, was a moment ago.
    tasks = wait_until(lambda: heartbeat(client, group, **STAY)["active_tasks"])
    assert tasks == [{"subtopology_id": "0", "partitions": [0, 1, 2]}]
    (row,) = client.call(
        ApiKey.STREAMS_GROUP_DESCRIBE,
        1,
        {"group_ids": [group], "include_authorized_operations": True, "include_topology_description": True},
    )["groups"]
    assert (row["group_state"], row["group_epoch"], row["assignor_name"]) == ("Stable", 3, "sticky")
    assert row["topology_description_status"] == 1
    (subtopology,) = row["topology"]["subtopologies"]
    assert subtopology["source_topics"] == [source]
    assert subtopology["state_changelog_topics"][0]["partitions"] == 3
    (member,) = row["members"]
    assert member["assignment"] == member["target_assignment"]
    listed = list_groups(client, types=["Streams"])[group]
    assert (listed["protocol_type"], listed["group_state"]) == ("streams", "Stable")


def test_member_stays_during_the_initial_rebalance_delay(client: RawClient, group: str) -> None:
    """A new group gives epoch 1: a heartbeat of epoch 0 without a topology would be an invalid request to join."""
    source = f"{group}-in"
    client.create_topic(source, partitions=1)
    assert alter(client, 32, group, ("streams.initial.rebalance.delay.ms", 0, "1000")) == (0, None)
    joined = heartbeat(client, group, topology=streams_join("", [source])["topology"])
    assert (joined["member_epoch"], [row["status_code"] for row in joined["status"]]) == (1, [5])
    stayed = heartbeat(client, group, **STAY | {"member_epoch": 1})
    assert (stayed["error_code"], stayed["member_epoch"]) == (0, 1), stayed
    tasks = wait_until(lambda: heartbeat(client, group, **STAY | {"member_epoch": 1})["active_tasks"])
    assert tasks == [{"subtopology_id": "0", "partitions": [0]}]


def test_group_id_belongs_to_one_protocol(client: RawClient, group: str) -> None:
    source = f"{group}-in"
    client.create_topic(source, partitions=1)
    assert heartbeat(client, group, topology=streams_join("", [source])["topology"])["member_epoch"] == 2
    joined = client.call(ApiKey.JOIN_GROUP, 9, join_fields(group))
    assert joined["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    consumer = {
        "group_id": group,
        "member_id": "c",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": [source],
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [],
    }
    refused = client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, consumer)
    assert refused["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    assert refused["error_message"] == f"Group {group} is not a consumer group."
    (row,) = client.call(
        ApiKey.STREAMS_GROUP_DESCRIBE,
        0,
        {"group_ids": ["nobody"], "include_authorized_operations": False},
    )["groups"]
    assert (row["error_code"], row["error_message"]) == (69, "Group nobody not found.")
    assert heartbeat(client, group, **STAY | {"member_epoch": -1})["member_epoch"] == -1
    # The first member of an empty group decides.
    joined = client.call(ApiKey.JOIN_GROUP, 9, join_fields(group))
    assert joined["error_code"] == ErrorCode.MEMBER_ID_REQUIRED


def test_commits_need_the_member_epoch(client: RawClient, group: str) -> None:
    source = f"{group}-in"
    client.create_topic(source, partitions=1)
    heartbeat(client, group, topology=streams_join("", [source])["topology"])

    def commit(epoch: int, member_id: str = "m") -> int:
        fields = commit_fields(group, source, {0: 7})
        fields |= {"generation_id_or_member_epoch": epoch, "member_id": member_id}
        answer = client.call(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, fields)
        return int(answer["topics"][0]["partitions"][0]["error_code"])

    assert commit(2) == ErrorCode.NONE
    assert commit(1) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(2, "other") == ErrorCode.UNKNOWN_MEMBER_ID
    deleted = client.call(ApiKey.DELETE_GROUPS, 3, {"groups_names": [group]})
    assert deleted["results"][0]["error_code"] == ErrorCode.NON_EMPTY_GROUP
    heartbeat(client, group, **STAY | {"member_epoch": -1})
    deleted = client.call(ApiKey.DELETE_GROUPS, 3, {"groups_names": [group]})
    assert deleted["results"][0]["error_code"] == ErrorCode.NONE
    assert group not in list_groups(client)
