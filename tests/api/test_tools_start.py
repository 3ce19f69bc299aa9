"""The first calls of the tools that people point at a broker, in their order: each is answered, and says what the
tool takes for "fine".

Which APIs a tool calls is taken from public reports of what it could not do without them (kafka-ui, AKHQ, Kafdrop and
Kpow use Kafka's Java client, Redpanda Console franz-go, kafka_exporter sarama with older versions); no tool runs here.
A UI shows the whole cluster as offline for one UNKNOWN_SERVER_ERROR or one closed connection.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.minimal import ANY_ACL, advertised, error_codes
from tests.support.raw import NO_TOPIC_ID, Fields, RawClient, batch, list_offsets_fields
from tests.support.topics import fresh_name
from tests.support.wait import wait_until

NEWEST = 99
TOPIC, BROKER = 2, 4
FINE = {ErrorCode.NONE}
NO_SECURITY = {ErrorCode.SECURITY_DISABLED}
NO_GROUP = {ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND}


class Call(NamedTuple):
    """One request: the newest version that the tool's client knows, its fields, the codes that the tool can take."""

    key: ApiKey
    version: int
    fields: Fields
    codes: set[ErrorCode] = FINE


def api_versions(software: str) -> Call:
    who = {"client_software_name": software, "client_software_version": "1.0"}
    return Call(ApiKey.API_VERSIONS, 4, who)


def metadata(names: list[str] | None, version: int = NEWEST) -> Call:
    topics = None if names is None else [{"name": name, "topic_id": NO_TOPIC_ID} for name in names]
    fields = {
        "topics": topics,
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }
    return Call(ApiKey.METADATA, version, fields)


def describe_configs(kind: int, names: list[str], version: int = NEWEST) -> Call:
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": None} for name in names]
    fields = {"resources": resources, "include_synonyms": True, "include_documentation": True}
    return Call(ApiKey.DESCRIBE_CONFIGS, version, fields)


def offset_fetch(group: str, version: int, name: str | None = None) -> Call:
    """What a group has committed for a topic; everything by null topics, which v1 does not have."""
    topics = None if name is None else [{"name": name, "partition_indexes": [0, 1]}]
    group_row = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}
    fields = {"group_id": group, "topics": topics, "groups": [group_row], "require_stable": False}
    return Call(ApiKey.OFFSET_FETCH, version, fields)


def find_coordinator(group: str, version: int = NEWEST) -> Call:
    return Call(ApiKey.FIND_COORDINATOR, version, {"key": group, "key_type": 0, "coordinator_keys": [group]})


def offsets(name: str, version: int = NEWEST) -> list[Call]:
    return [
        Call(ApiKey.LIST_OFFSETS, version, list_offsets_fields(name, [(0, at), (1, at)])) for at in (-1, -2)
    ]


LOG_DIRS = Call(ApiKey.DESCRIBE_LOG_DIRS, NEWEST, {"topics": None})
CLUSTER = Call(
    ApiKey.DESCRIBE_CLUSTER, NEWEST, {"include_cluster_authorized_operations": True, "endpoint_type": 1}
)
LIST_GROUPS = Call(ApiKey.LIST_GROUPS, NEWEST, {"states_filter": [], "types_filter": []})
ACLS = Call(ApiKey.DESCRIBE_ACLS, NEWEST, ANY_ACL, NO_SECURITY)
QUOTAS = Call(ApiKey.DESCRIBE_CLIENT_QUOTAS, NEWEST, {"components": [], "strict": False})
REASSIGNMENTS = Call(ApiKey.LIST_PARTITION_REASSIGNMENTS, NEWEST, {"timeout": 30_000, "topics": None})
SCRAM = Call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, NEWEST, {"users": None})


def describe_groups(group: str, version: int = NEWEST) -> Call:
    fields = {"groups": [group], "include_authorized_operations": True}
    return Call(ApiKey.DESCRIBE_GROUPS, version, fields, NO_GROUP)


def producers(name: str) -> Call:
    return Call(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": name, "partition_indexes": [0, 1]}]})


def calls_of(tool: str, name: str, group: str, node: str) -> list[Call]:
    """What the tool sends until its first page is shown, for a topic, a group that nobody is in, and the broker."""
    java = [api_versions("apache-kafka-java"), metadata(None)]
    return {
        "kafka-ui": [
            *(*java, CLUSTER, describe_configs(BROKER, [node]), ACLS, LOG_DIRS, QUOTAS),
            *(metadata([name]), describe_configs(TOPIC, [name]), *offsets(name), producers(name)),
            *(LIST_GROUPS, find_coordinator(group), describe_groups(group), offset_fetch(group, NEWEST)),
            Call(ApiKey.DESCRIBE_QUORUM, NEWEST, QUORUM),
        ],
        "redpanda-console": [
            *(api_versions("kgo"), metadata(None), CLUSTER, describe_configs(BROKER, [node])),
            *(LOG_DIRS, describe_configs(TOPIC, [name]), *offsets(name), LIST_GROUPS),
            *(find_coordinator(group), describe_groups(group), offset_fetch(group, NEWEST)),
            *(REASSIGNMENTS, QUOTAS, SCRAM, ACLS),
        ],
        "akhq": [
            *(*java, CLUSTER, describe_configs(BROKER, [node]), LOG_DIRS, describe_configs(TOPIC, [name])),
            *(*offsets(name), LIST_GROUPS, find_coordinator(group), describe_groups(group), ACLS),
        ],
        "kafdrop": [*java, describe_configs(TOPIC, [name]), *offsets(name), LIST_GROUPS, ACLS],
        "kpow": [*java, CLUSTER, LOG_DIRS, describe_configs(BROKER, [node]), QUOTAS, ACLS, REASSIGNMENTS],
        "kafka_exporter": [
            *(metadata(None, 5), *offsets(name, 1), Call(ApiKey.LIST_GROUPS, 0, {})),
            *(find_coordinator(group, 0), describe_groups(group, 0)),
            offset_fetch(group, 1, name),
        ],
        "kafka-lag-exporter": [
            *(*java, LIST_GROUPS, find_coordinator(group, 3), describe_groups(group, 5)),
            *(offset_fetch(group, 2), offset_fetch(group, 7), *offsets(name, 6)),
        ],
    }[tool]


QUORUM = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
TOOLS = ("kafka-ui", "redpanda-console", "akhq", "kafdrop", "kpow", "kafka_exporter", "kafka-lag-exporter")


@pytest.fixture
def name(client: RawClient) -> str:
    made = fresh_name("shown")
    client.create_topic(made, partitions=2)
    assert client.produce(made, batch(b"v"))["error_code"] == 0
    return made


@pytest.fixture
def group(client: RawClient) -> str:
    """A group that nobody is in. Its coordinator is there: the first one of a cluster makes __consumer_offsets."""
    made = fresh_name("nobody")

    def is_known() -> bool:
        calls = (find_coordinator(made, 4), describe_groups(made, 5))
        return all(error_codes(client.call(one.key, one.version, one.fields)) <= one.codes for one in calls)

    wait_until(is_known, what=f"the coordinator of {made}")
    return made


@pytest.mark.parametrize("tool", TOOLS)
def test_first_requests_of_common_tools_are_answered(
    broker: BrokerUnderTest, client: RawClient, name: str, group: str, tool: str
) -> None:
    served = advertised(client)
    node = str(client.call(ApiKey.METADATA, 9, {"topics": []})["brokers"][0]["node_id"])
    problems = []
    with RawClient(broker.bootstrap) as connection:
        for call in calls_of(tool, name, group, node):
            versions = served.get(call.key)
            if versions is None:
                problems.append(f"{call.key.name} is not advertised")
                continue
            version = max(versions[0], min(call.version, versions[-1]))
            answer = connection.call(call.key, version, call.fields)
            if not error_codes(answer) <= call.codes:
                problems.append(f"{call.key.name} v{version}: {error_codes(answer)}")
    assert not problems, "\n".join(problems)


def test_kafka_ui_requests_are_answered(client: RawClient, name: str) -> None:
    node = str(client.call(ApiKey.METADATA, 9, {"topics": []})["brokers"][0]["node_id"])
    rows: dict[str, Any] = {}
    for call in (describe_configs(BROKER, [node], 4), describe_configs(TOPIC, [name], 4)):
        (result,) = client.call(call.key, 4, call.fields)["results"]
        rows |= {row["name"]: row for row in result["configs"]}
    # "May topics be deleted?", and the columns of its settings page.
    assert rows["delete.topic.enable"]["value"] == "true"
    for row in rows.values():
        assert row["config_source"] in range(1, 9)
        assert row["config_type"] in range(1, 10), row
        assert row["documentation"] is not None
        assert isinstance(row["read_only"], bool)
