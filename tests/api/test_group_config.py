"""Configs of groups: stored, described, listed and validated."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.altered_configs import alter
from tests.support.configs import describe_configs
from tests.support.raw import RawClient
from tests.support.topics import fresh_name
from tests.support.wait import pause, wait_until

GROUP = 32


def test_group_configs_alter_describe_and_list(client: RawClient) -> None:
    name, key = fresh_name("group"), "consumer.session.timeout.ms"
    code, rows = describe_configs(client, GROUP, name)
    assert (code, len(rows)) == (0, 21)
    assert (rows[key]["value"], rows[key]["config_source"], rows[key]["config_type"]) == ("45000", 5, 3)
    assert [one["name"] for one in rows[key]["synonyms"]] == [f"group.{key}"]
    assert rows[key]["documentation"]
    assert alter(client, GROUP, name, (key, 0, "50000")) == (0, None)
    row = describe_configs(client, GROUP, name)[1][key]
    assert (row["value"], row["config_source"]) == ("50000", 8)
    listed = client.call(ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [GROUP]})["config_resources"]
    assert {"resource_name": name, "resource_type": GROUP} in listed
    assert alter(client, GROUP, name, (key, 1, None)) == (0, None)
    assert describe_configs(client, GROUP, name)[1][key]["value"] == "45000"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "consumer.session.timeout.ms",
            "5",
            "consumer.session.timeout.ms must be in the range 45000 to 60000 inclusive.",
        ),
        ("streams.num.standby.replicas", "99", "must be less than or equal to 2"),
        ("consumer.heartbeat.interval.ms", "abc", "Not a number of type INT"),
        ("share.auto.offset.reset", "bogus", "must be either 'earliest', 'latest'"),
        ("errors.deadletterqueue.topic.name", "__x", "DLQ topic name must not start with '__'"),
        ("share.isolation.level", "bogus", "String must be one of: read_committed, read_uncommitted"),
        ("no.such", "1", "Unknown group config name: no.such"),
    ],
)
def test_invalid_group_config_is_rejected(client: RawClient, key: str, value: str, words: str) -> None:
    code, message = alter(client, GROUP, fresh_name("group"), (key, 0, value))
    assert (code, words in (message or "")) == (ErrorCode.INVALID_CONFIG, True), message


def test_altered_group_config_holds_from_the_next_heartbeat(client: RawClient) -> None:
    group = fresh_name("group")
    for _ in range(100):  # The first look-up creates the topic of the coordinators.
        found = client.call(ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [group]})
        if not found["coordinators"][0]["error_code"]:
            break
    member = {
        "group_id": group, "member_id": "m", "rebalance_timeout": 60_000, "subscribed_topic_names": [],
        "topic_partitions": [],
    }  # fmt: skip

    def heartbeat(epoch: int) -> dict[str, Any]:
        request = {**member, "member_epoch": epoch}
        for _ in range(200):
            answer = client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
            if answer["error_code"] not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
                return answer
            pause(0.05)
        return answer

    joined = heartbeat(0)
    assert (joined["error_code"], joined["heartbeat_interval"]) == (0, 5_000), joined
    assert alter(client, GROUP, group, ("consumer.heartbeat.interval.ms", 0, "6000")) == (0, None)
    wait_until(lambda: heartbeat(joined["member_epoch"])["heartbeat_interval"] == 6_000)
    # Stored values outside of the bounds count as the bound (tests/unit/broker/cluster/test_group_config.py).
    assert alter(client, GROUP, group, ("consumer.heartbeat.interval.ms", 1, None)) == (0, None)
    wait_until(lambda: heartbeat(joined["member_epoch"])["heartbeat_interval"] == 5_000)
