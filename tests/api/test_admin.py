"""The admin APIs as a one-broker cluster answers them. Held against Apache Kafka 4.3 with --bootstrap."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.acls import ANY_ACL
from tests.support.broker import BrokerUnderTest
from tests.support.raw import NO_TOPIC_ID, Fields, RawClient, batch
from tests.support.topics import fresh_name

GROUP, CLIENT_METRICS, BROKER, LOGGER, TOPIC = 32, 16, 4, 8, 2


def node_id(client: RawClient) -> int:
    return int(client.call(ApiKey.METADATA, 9, {"topics": []})["brokers"][0]["node_id"])


@pytest.fixture
def three(client: RawClient) -> str:
    """A topic of three partitions, with five records in the first."""
    name = fresh_name("admin")
    client.create_topic(name, partitions=3)
    for number in range(5):
        assert client.produce(name, batch(b"%d" % number))["error_code"] == 0
    return name


# -- DeleteRecords -----------------------------------------------------------------------------------------


def delete_records(
    client: RawClient, name: str, *wanted: tuple[int, int], version: int = 2
) -> dict[int, Any]:
    rows = [{"partition_index": index, "offset": offset} for index, offset in wanted]
    fields = {"topics": [{"name": name, "partitions": rows}], "timeout": 5_000}
    (topic,) = client.call(ApiKey.DELETE_RECORDS, version, fields)["topics"]
    return {row["partition_index"]: (row["error_code"], row["low_watermark"]) for row in topic["partitions"]}


@pytest.mark.parametrize("version", range(3))
def test_delete_records_moves_the_log_start_offset(
    client: RawClient, three: str, version: int
) -> None:
    assert delete_records(client, three, (0, 3), (1, -1), (2, 1), (9, 0), version=version) == {
        0: (ErrorCode.NONE, 3),
        1: (ErrorCode.NONE, 0),
        2: (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        9: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    }
    assert client.list_offset(three, -2)["offset"] == 3
    assert client.fetch(three, 0)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert client.fetch(three, 3)["log_start_offset"] == 3
    assert delete_records(client, three, (0, 1)) == {0: (ErrorCode.NONE, 3)}, "it never goes back"
    assert delete_records(client, three, (0, -1)) == {0: (ErrorCode.NONE, 5)}
    assert client.produce(three, batch(b"after"))["base_offset"] == 5


def test_delete_records_of_compacted_topic_is_rejected(client: RawClient) -> None:
    for policy, code in (("compact", ErrorCode.POLICY_VIOLATION), ("compact,delete", ErrorCode.NONE)):
        name = fresh_name("compacted")
        client.create_topic(name, configs={"cleanup.policy": policy})
        client.produce(name, batch(b"v"))
        assert delete_records(client, name, (0, 1))[0][0] == code


# -- OffsetForLeaderEpoch ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 5))
def test_offset_for_leader_epoch_returns_end_of_epoch(client: RawClient, three: str, version: int) -> None:
    epoch = client.describe_topic(three)["partitions"][0]["leader_epoch"]
    wanted = [(0, -1, epoch), (1, -1, epoch + 5), (0, epoch + 9, epoch), (77, -1, 0)]
    rows = [
        {"partition": index, "current_leader_epoch": current, "leader_epoch": asked}
        for index, current, asked in wanted
    ]
    fields = {"replica_id": -1, "topics": [{"topic": three, "partitions": rows}]}
    (topic,) = client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, fields)["topics"]
    found = [(row["partition"], row["error_code"], row["end_offset"]) for row in topic["partitions"]]
    assert found == [
        (0, ErrorCode.NONE, 5),
        (1, ErrorCode.NONE, -1),
        (0, ErrorCode.UNKNOWN_LEADER_EPOCH, -1),
        (77, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]


# -- DescribeProducers -------------------------------------------------------------------------------------


def test_describe_topic_partitions_error_codes(client: RawClient, three: str) -> None:
    wanted = [{"name": name, "partition_indexes": [9]} for name in (three, "..")]
    known, bad = client.call(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": wanted})["topics"]
    (row,) = known["partitions"]
    assert row["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert row["error_message"] == "This server does not host this topic-partition."
    (row,) = bad["partitions"]
    assert row["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert row["error_message"] == "Topic name is invalid: '..' is not allowed"


def test_describe_producers_lists_idempotent_producers(client: RawClient, three: str) -> None:
    records = encode_batch([Record(b"k", b"v", 7)], producer_id=91, producer_epoch=2, base_sequence=0)
    assert client.produce(three, bytes(records), partition=2)["error_code"] == 0
    fields = {"topics": [{"name": three, "partition_indexes": [2, 0, 9]}]}
    (topic,) = client.call(ApiKey.DESCRIBE_PRODUCERS, 0, fields)["topics"]
    rows = {row["partition_index"]: row for row in topic["partitions"]}
    (producer,) = rows[2]["active_producers"]
    assert producer == {
        "producer_id": 91,
        "producer_epoch": 2,
        "last_sequence": 0,
        "last_timestamp": 7,
        "coordinator_epoch": -1,
        "current_txn_start_offset": -1,
    }
    assert (rows[0]["error_code"], rows[0]["active_producers"]) == (0, [])
    assert rows[9]["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


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


# -- DescribeLogDirs, AlterReplicaLogDirs ------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 6))
def test_describe_log_dirs_returns_log_sizes(client: RawClient, three: str, version: int) -> None:
    record_bytes = len(client.fetch(three, 0)["records"])
    fields = {"topics": [{"topic": three, "partitions": [0, 1, 9]}, {"topic": "absent", "partitions": [0]}]}
    answer = client.call(ApiKey.DESCRIBE_LOG_DIRS, version, fields)
    (directory,) = answer["results"]
    assert directory["error_code"] == 0
    assert directory["log_dir"].startswith("/")
    (topic,) = directory["topics"]
    assert topic["name"] == three
    rows = {row["partition_index"]: row["partition_size"] for row in topic["partitions"]}
    assert rows == {0: record_bytes, 1: 0}
    if version >= 4:
        assert 0 < directory["usable_bytes"] < directory["total_bytes"]
    everything = client.call(ApiKey.DESCRIBE_LOG_DIRS, version, {"topics": None})["results"][0]["topics"]
    assert three in [row["name"] for row in everything]


@pytest.mark.parametrize("version", [1, 2])
def test_alter_replica_log_dirs_to_current_directory_succeeds(client: RawClient, three: str, version: int) -> None:
    path = client.call(ApiKey.DESCRIBE_LOG_DIRS, 2, {"topics": []})["results"][0]["log_dir"]

    def move(to: str) -> dict[tuple[str, int], int]:
        topics = [{"name": three, "partitions": [0, 9]}, {"name": "absent", "partitions": [0]}]
        answer = client.call(
            ApiKey.ALTER_REPLICA_LOG_DIRS, version, {"dirs": [{"path": to, "topics": topics}]}
        )
        return {
            (row["topic_name"], part["partition_index"]): part["error_code"]
            for row in answer["results"]
            for part in row["partitions"]
        }

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    directories = {"path": "/elsewhere", "topics": [{"name": "x" * 213, "partitions": [0, 10]}]}
    answer = client.call(ApiKey.ALTER_REPLICA_LOG_DIRS, version, {"dirs": [directories]})
    codes = [part["error_code"] for part in answer["results"][0]["partitions"]]
    assert codes == [ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.INVALID_TOPIC_EXCEPTION], (
        "too long while it moves"
    )
    assert move(path) == {(three, 0): 0, (three, 9): unknown, ("absent", 0): unknown}
    assert set(move("/elsewhere").values()) == {ErrorCode.LOG_DIR_NOT_FOUND}


# -- elections and reassignments ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_elect_leaders_answers_election_not_needed(client: RawClient, three: str, version: int) -> None:
    def elect(topics: list[Fields] | None, kind: int = 0) -> Fields:
        fields = {"election_type": kind, "topic_partitions": topics, "timeout": 1_000}
        return client.call(ApiKey.ELECT_LEADERS, version, fields)

    wanted = [{"topic": three, "partitions": [0, 9]}, {"topic": "absent", "partitions": [0]}]
    rows = elect(wanted)["replica_election_results"]
    assert [[part["error_code"] for part in row["partition_result"]] for row in rows] == [
        [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    ]
    assert all(not row["partition_result"] for row in elect(None)["replica_election_results"])
    if version:
        assert elect(wanted, 1)["error_code"] == 0
        assert elect(wanted, 7)["error_code"] == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [0, 1])
def test_alter_partition_reassignments_only_to_this_broker(
    client: RawClient, three: str, version: int
) -> None:
    here = node_id(client)

    def reassign(name: str, index: int, replicas: list[int] | None) -> tuple[int, str | None]:
        topics = [{"name": name, "partitions": [{"partition_index": index, "replicas": replicas}]}]
        answer = client.call(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, {"timeout": 1_000, "topics": topics}
        )
        assert answer["error_code"] == 0
        (row,) = answer["responses"][0]["partitions"]
        return row["error_code"], row["error_message"]

    refused = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(three, 0, [here]) == (0, None)
    assert reassign(three, 0, None) == (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
    assert reassign(three, 0, [here, here + 1]) == (
        refused,
        f"The manual partition assignment includes broker {here + 1}, but no such broker is registered.",
    )
    assert reassign(three, 0, [here, here])[0] == reassign(three, 0, [])[0] == refused
    assert reassign(three, 9, [here]) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        f"Unable to find partition {three}:9.",
    )
    assert reassign("absent", 0, None) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "Unable to find a topic named absent.",
    )
    listed = client.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"timeout": 1_000, "topics": None})
    assert (listed["error_code"], listed["topics"]) == (0, [])


# -- security, as there is none ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 4))
def test_acl_apis_without_authorizer_answer_security_disabled(client: RawClient, version: int) -> None:
    acl = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    described = client.call(ApiKey.DESCRIBE_ACLS, version, ANY_ACL)
    assert (described["error_code"], described["error_message"], described["resources"]) == (
        ErrorCode.SECURITY_DISABLED,
        "No Authorizer is configured on the broker",
        [],
    )
    created = client.call(ApiKey.CREATE_ACLS, version, {"creations": [acl, acl]})["results"]
    deleted = client.call(ApiKey.DELETE_ACLS, version, {"filters": [ANY_ACL]})["filter_results"]
    assert [(row["error_code"], row["error_message"]) for row in created + deleted] == [
        (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    ] * 3


def test_describe_scram_credentials_without_users(client: RawClient) -> None:
    def describe(users: list[str] | None) -> list[tuple[str, int]]:
        wanted = None if users is None else [{"name": name} for name in users]
        answer = client.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": wanted})
        assert answer["error_code"] == 0
        return sorted((row["user"], row["error_code"]) for row in answer["results"])

    assert describe(None) == []
    assert describe(["a", "b", "b"]) == [
        ("a", ErrorCode.RESOURCE_NOT_FOUND),
        ("b", ErrorCode.DUPLICATE_RESOURCE),
    ]


# -- quorum, features, transactions, client telemetry ----------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_describe_quorum_names_this_node(client: RawClient, version: int) -> None:
    def describe(topic: str) -> Fields:
        topics = [{"topic_name": topic, "partitions": [{"partition_index": 0}]}]
        return client.call(ApiKey.DESCRIBE_QUORUM, version, {"topics": topics})

    answer = describe("__cluster_metadata")
    (quorum,) = answer["topics"][0]["partitions"]
    here = node_id(client)
    assert (answer["error_code"], quorum["error_code"], quorum["leader_id"]) == (0, 0, here)
    (voter,) = quorum["current_voters"]
    assert (voter["replica_id"], quorum["observers"]) == (here, [])
    assert 0 < voter["log_end_offset"] <= quorum["high_watermark"]
    if version == 2:
        assert [(node["node_id"], len(node["listeners"])) for node in answer["nodes"]] == [(here, 1)]
    (other,) = describe(fresh_name("absent"))["topics"][0]["partitions"]
    assert other["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_api_versions_lists_features(client: RawClient) -> None:
    who = {"client_software_name": "t", "client_software_version": "1"}
    older, newer = (client.call(ApiKey.API_VERSIONS, version, who) for version in (3, 4))
    finalized = {row["name"]: row["max_version_level"] for row in newer["finalized_features"]}
    assert finalized["metadata.version"] == 30
    assert newer["finalized_features_epoch"] >= 0
    assert [row["name"] for row in older["supported_features"]] == ["metadata.version"]
    supported = {row["name"]: (row["min_version"], row["max_version"]) for row in newer["supported_features"]}
    assert supported["metadata.version"] == (7, 30)
    assert {"group.version", "transaction.version", "kraft.version"} <= set(supported)
    assert all(low <= finalized.get(name, 0) <= high for name, (low, high) in supported.items())


def test_update_features_validates_levels(client: RawClient) -> None:
    def update(name: str, level: int, kind: int, *, version: int = 2) -> tuple[int, str]:
        row = {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": False}
        fields = {"timeout": 1_000, "feature_updates": [row], "validate_only": True}
        answer = client.call(ApiKey.UPDATE_FEATURES, version, fields)
        return answer["error_code"], answer["error_message"] or ""

    invalid = ErrorCode.INVALID_UPDATE_VERSION
    assert [update("metadata.version", 30, 1, version=version)[0] for version in range(3)] == [0, 0, 0]
    for name, level, kind, words in (
        ("metadata.version", 20, 1, "Can't downgrade the version of this feature without setting"),
        ("metadata.version", 20, 2, "Refusing to perform the requested downgrade"),
        ("metadata.version", 20, 3, "Unsafe metadata downgrade is not supported in this version."),
        ("metadata.version", 99, 1, "only supports versions 7-30"),
        ("no.such", 1, 1, "does not support this feature."),
        ("group.version", -1, 1, "A feature version cannot be less than 0."),
        ("group.version", 0, 9, "The controller does not support the given upgrade type."),
    ):
        code, message = update(name, level, kind)
        assert (code, words in message) == (invalid, True), message


def test_list_transactions_is_empty(client: RawClient) -> None:
    fields = {"state_filters": ["Ongoing", "Bogus"], "producer_id_filters": [], "duration_filter": -1}
    for version in range(3):
        answer = client.call(ApiKey.LIST_TRANSACTIONS, version, fields)
        assert (answer["error_code"], answer["transaction_states"]) == (0, [])
        assert answer["unknown_state_filters"] == ["Bogus"]
    answer = client.call(ApiKey.LIST_TRANSACTIONS, 2, {**fields, "transactional_id_pattern": "(("})
    assert answer["error_code"] == ErrorCode.INVALID_REGULAR_EXPRESSION
    states = client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["a", ""]})
    first, second = (row["error_code"] for row in states["transaction_states"])
    # A Kafka that has had no transaction yet knows no coordinator, either.
    assert first in (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.NOT_COORDINATOR)
    assert second == ErrorCode.INVALID_REQUEST


def test_unregister_broker_is_rejected(client: RawClient) -> None:
    answer = client.call(ApiKey.UNREGISTER_BROKER, 0, {"broker_id": 12_321})
    assert (answer["error_code"], answer["error_message"]) == (
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        "Broker ID 12321 is not currently registered",
    )


def test_telemetry_subscription_is_empty(client: RawClient, broker: BrokerUnderTest) -> None:
    answer = client.call(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, {"client_instance_id": NO_TOPIC_ID})
    instance_id = answer["client_instance_id"]
    assert answer["error_code"] == 0
    if broker.pid is None:
        return  # Kafka asks for what a subscription names, though it has nobody who takes it.
    again = client.call(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, {"client_instance_id": instance_id})
    assert again["client_instance_id"] == instance_id

    def push(**changed: Any) -> int:
        fields = {
            "client_instance_id": instance_id,
            "subscription_id": answer["subscription_id"],
            "terminating": True,
            "compression_type": 0,
            "metrics": b"",
        }
        return int(client.call(ApiKey.PUSH_TELEMETRY, 0, {**fields, **changed})["error_code"])

    assert answer["requested_metrics"] == []
    assert push() == ErrorCode.NONE
    assert push(client_instance_id=NO_TOPIC_ID) == ErrorCode.INVALID_REQUEST
    assert push(subscription_id=77) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert push(compression_type=9) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


# -- configs of groups and client metrics ------------------------------------------------------------------


def alter(
    client: RawClient, kind: int, name: str, *operations: tuple[str, int, str | None]
) -> tuple[int, str | None]:
    configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in operations]
    fields = {"resources": [{"resource_type": kind, "resource_name": name, "configs": configs}]}
    (row,) = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {**fields, "validate_only": False})["responses"]
    return row["error_code"], row["error_message"]


def describe(client: RawClient, kind: int, name: str) -> tuple[int, dict[str, Fields]]:
    wanted = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    fields = {"resources": [wanted], "include_synonyms": True, "include_documentation": True}
    (result,) = client.call(ApiKey.DESCRIBE_CONFIGS, 4, fields)["results"]
    return result["error_code"], {row["name"]: row for row in result["configs"]}


def test_group_configs_alter_describe_and_list(client: RawClient) -> None:
    name, key = fresh_name("group"), "consumer.session.timeout.ms"
    code, rows = describe(client, GROUP, name)
    assert (code, len(rows)) == (0, 17)
    assert (rows[key]["value"], rows[key]["config_source"], rows[key]["config_type"]) == ("45000", 5, 3)
    assert [one["name"] for one in rows[key]["synonyms"]] == [f"group.{key}"]
    assert rows[key]["documentation"]
    assert alter(client, GROUP, name, (key, 0, "50000")) == (0, None)
    row = describe(client, GROUP, name)[1][key]
    assert (row["value"], row["config_source"]) == ("50000", 8)
    listed = client.call(ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [GROUP]})["config_resources"]
    assert {"resource_name": name, "resource_type": GROUP} in listed
    assert alter(client, GROUP, name, (key, 1, None)) == (0, None)
    assert describe(client, GROUP, name)[1][key]["value"] == "45000"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "consumer.session.timeout.ms",
            "5",
            "greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        ("streams.num.standby.replicas", "99", "less than or equal to group.streams.max.standby.replicas"),
        ("consumer.heartbeat.interval.ms", "abc", "Not a number of type INT"),
        ("share.auto.offset.reset", "bogus", "must be either 'earliest', 'latest'"),
        ("share.isolation.level", "bogus", "String must be one of: read_committed, read_uncommitted"),
        ("no.such", "1", "Unknown group config name: no.such"),
    ],
)
def test_invalid_group_config_is_rejected(client: RawClient, key: str, value: str, words: str) -> None:
    code, message = alter(client, GROUP, fresh_name("group"), (key, 0, value))
    assert (code, words in (message or "")) == (ErrorCode.INVALID_CONFIG, True), message


def test_client_metrics_subscriptions_alter_describe_and_list(client: RawClient) -> None:
    name = fresh_name("subscription")
    assert set(describe(client, CLIENT_METRICS, name)[1]) == {"interval.ms", "match", "metrics"}
    wanted = (("metrics", 0, "org.apache.kafka."), ("interval.ms", 0, "60000"), ("match", 0, "client_id=a.*"))
    assert alter(client, CLIENT_METRICS, name, *wanted) == (0, None)
    rows = describe(client, CLIENT_METRICS, name)[1]
    assert {key: (row["value"], row["config_source"]) for key, row in rows.items()} == {
        key: (value, 7) for key, _, value in wanted
    }
    for fields, version in (({}, 0), ({"resource_types": [CLIENT_METRICS]}, 1)):
        listed = client.call(ApiKey.LIST_CONFIG_RESOURCES, version, fields)["config_resources"]
        assert name in [row["resource_name"] for row in listed]
    for key, value, code in (
        ("interval.ms", "1", ErrorCode.INVALID_REQUEST),
        ("no.such", "1", ErrorCode.INVALID_REQUEST),
        ("match", "bogus=1", ErrorCode.INVALID_CONFIG),
        ("match", "client_id=((", ErrorCode.INVALID_CONFIG),
    ):
        assert alter(client, CLIENT_METRICS, name, (key, 0, value))[0] == code
    both = (("match", 0, "bogus=1"), ("interval.ms", 0, "1"))
    code, _ = alter(client, CLIENT_METRICS, fresh_name("subscription"), *both)
    assert code == ErrorCode.INVALID_REQUEST, "the interval comes first"


def test_alter_configs_of_empty_name_and_unknown_type(client: RawClient) -> None:
    for kind in (GROUP, CLIENT_METRICS, LOGGER, 1, 64):
        assert describe(client, kind, "")[0] == ErrorCode.INVALID_REQUEST
    assert alter(client, GROUP, "", ("consumer.session.timeout.ms", 0, "50000"))[1] == (
        "Default group resources are not allowed."
    )
    assert alter(client, CLIENT_METRICS, "", ("metrics", 0, "*"))[1] == "Subscription name can't be empty"
    here = str(node_id(client))
    listed = client.call(ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [BROKER, LOGGER]})
    assert {(row["resource_type"], row["resource_name"]) for row in listed["config_resources"]} == {
        (BROKER, here),
        (LOGGER, here),
    }
    unknown = client.call(ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [99]})
    assert unknown["error_code"] == ErrorCode.UNSUPPORTED_VERSION
