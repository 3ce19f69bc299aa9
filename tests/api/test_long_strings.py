"""Names and values of up to 32,767 bytes, the longest on the wire: every answer can be encoded, and nothing is kept
that no answer could show."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.common.bounded import NAME_MAX
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey
from kproc.wire.primitives import STRING_BYTES_MAX
from tests.support.groups import find_coordinator, join_fields
from tests.support.minimal import error_codes
from tests.support.raw import RawClient
from tests.support.topics import fresh_name

LONG = "é" * (STRING_BYTES_MAX // 2) + "x"
TOPIC, BROKER = 2, 4


def new_topic(name: str, value: str | None = None) -> dict[str, Any]:
    configs = [] if value is None else [{"name": "retention.ms", "value": value}]
    topic = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": configs,
    }
    return {"topics": [topic], "timeout": 10_000, "validate_only": True}


def resource(kind: int, name: str, **more: object) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, **more}


def quota(name: str) -> dict[str, Any]:
    entry = {
        "entity": [{"entity_type": name, "entity_name": name}],
        "ops": [{"key": name, "value": 1.0, "remove": False}],
    }
    return {"entries": [entry], "validate_only": False}


ALTER = {"configs": [{"name": LONG, "value": LONG}]}
SET = {"configs": [{"name": LONG, "value": LONG, "config_operation": 0}]}
REQUESTS: list[tuple[ApiKey, int, dict[str, Any]]] = [
    (ApiKey.CREATE_TOPICS, 2, new_topic(LONG)),
    (ApiKey.CREATE_TOPICS, 7, new_topic(LONG)),
    (ApiKey.CREATE_TOPICS, 7, new_topic("short", LONG)),
    (ApiKey.ALTER_CONFIGS, 1, {"resources": [resource(TOPIC, LONG, **ALTER)], "validate_only": False}),
    (ApiKey.ALTER_CONFIGS, 2, {"resources": [resource(BROKER, "", **ALTER)], "validate_only": False}),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource(BROKER, LONG, **SET)], "validate_only": False}),
    (ApiKey.ALTER_CLIENT_QUOTAS, 0, quota(LONG)),
    (ApiKey.ALTER_CLIENT_QUOTAS, 1, quota(LONG)),
    (
        ApiKey.UPDATE_FEATURES,
        0,
        {"timeout": 1000, "feature_updates": [{"feature": LONG, "max_version_level": 1, "allow_downgrade": False}]},
    ),
    (ApiKey.DESCRIBE_GROUPS, 6, {"groups": [LONG], "include_authorized_operations": False}),
    (ApiKey.DESCRIBE_CONFIGS, 1, {"resources": [resource(TOPIC, LONG, configuration_keys=None)]}),
    (ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [resource(BROKER, LONG, configuration_keys=None)]}),
    (
        ApiKey.ELECT_LEADERS,
        2,
        {"election_type": 0, "topic_partitions": [{"topic": LONG, "partitions": [0]}], "timeout": 1000},
    ),
    (
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        0,
        {"timeout": 1000, "topics": [{"name": LONG, "partitions": [{"partition_index": 0, "replicas": [9]}]}]},
    ),
    (
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        1,
        {"components": [{"entity_type": LONG, "match_type": 0, "match": LONG}], "strict": False},
    ),
    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": [{"name": LONG}, {"name": LONG}]}),
    (ApiKey.METADATA, 12, {"topics": [{"name": LONG}], "allow_auto_topic_creation": True}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("api_key", "version", "fields"),
    REQUESTS,
    ids=[f"{key.name}-{at}" for at, (key, _, _) in enumerate(REQUESTS)],
)
def test_response_with_long_error_message_arrives(
    client: RawClient, api_key: ApiKey, version: int, fields: dict[str, Any]
) -> None:
    find_coordinator(client, LONG)
    codes = error_codes(client.call(api_key, version, fields))
    assert ErrorCode.UNKNOWN_SERVER_ERROR not in codes


@pytest.mark.parametrize("version", [2, 5, 9])
@pytest.mark.parametrize("client_id", [LONG.encode(), b"\xff" * STRING_BYTES_MAX], ids=["text", "no UTF-8"])
def test_member_with_long_client_id_joins_and_is_described(
    client: RawClient, version: int, client_id: bytes
) -> None:
    group = fresh_name("group")
    find_coordinator(client, group)
    fields = join_fields(group, group_instance_id=LONG if version >= 5 else None)
    placeholder = "i" * len(client_id)
    frame = codec.encode_request(ApiKey.JOIN_GROUP, version, 1, placeholder, fields)
    client.send_bytes(frame.replace(placeholder.encode(), client_id))
    _, joined = client.receive(ApiKey.JOIN_GROUP, version)
    assert joined["error_code"] == 0
    assert len(joined["member_id"].encode()) <= STRING_BYTES_MAX
    request = {"groups": [group], "include_authorized_operations": False}
    (described,) = client.call(ApiKey.DESCRIBE_GROUPS, 4, request)["groups"]
    (member,) = described["members"]
    assert member["member_id"] == joined["member_id"]
    # The beginning of the id and a digest.
    beginning, _, _ = member["client_id"].rpartition("~")
    assert beginning
    assert client_id.decode("utf-8", "replace").startswith(beginning)
    assert len(member["client_id"]) == NAME_MAX


def test_config_list_that_grows_too_long_is_rejected(client: RawClient) -> None:
    topic = fresh_name("topic")
    client.create_topic(topic)
    name = "follower.replication.throttled.replicas"

    def append(first: int) -> int:
        value = ",".join(f"{number}:1" for number in range(first, first + 4000))
        configs = [{"name": name, "value": value, "config_operation": 2}]
        request = {"resources": [resource(TOPIC, topic, configs=configs)], "validate_only": False}
        (answer,) = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)["responses"]
        return int(answer["error_code"])

    assert append(0) == 0
    assert append(10_000) == ErrorCode.INVALID_CONFIG
    wanted = {"resources": [resource(TOPIC, topic, configuration_keys=[name])]}
    (shown,) = client.call(ApiKey.DESCRIBE_CONFIGS, 4, wanted)["results"]
    assert shown["configs"][0]["value"].startswith("0:1,1:1")
