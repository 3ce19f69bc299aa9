"""An error of a whole request is its answer, also where the request is divided: no slice is handled beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.api import load_all
from kproc.broker.cluster import acls
from kproc.broker.request import registry
from kproc.broker.security.authorizer import Access
from kproc.broker.security.principal import Principal
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey
from tests.support.bytecodes import count_bytecodes
from tests.support.handler_rig import HandlerRig
from tests.support.large_request_clients import STEP_BYTECODES_MAX, cluster
from tests.support.large_requests import LARGE, LargeRequest, acl

load_all()

Start = Callable[..., HandlerRig]
Fields = dict[str, Any]
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:root",
}
DIVIDED = [
    each
    for each in LARGE
    if registry.APIS[each.key].rows_in(each.make(6)) and each.key is not ApiKey.ELECT_LEADERS
]


def codes_of(fields: Any) -> list[int]:
    """All error codes in an answer."""
    if isinstance(fields, list):
        return [code for each in fields for code in codes_of(each)]
    if not isinstance(fields, dict):
        return []
    own = [value for name, value in fields.items() if name in ("error_code", "partition_error_code")]
    return [*own, *(code for each in fields.values() for code in codes_of(each))]


def resources(*kinds: int) -> Fields:
    rows = [{"resource_type": kind, "resource_name": "t", "configuration_keys": None} for kind in kinds]
    return {"resources": rows, "include_synonyms": False}


@pytest.mark.parametrize("large", DIVIDED, ids=lambda large: large.name)
def test_error_of_the_whole_request_is_the_whole_answer(
    start: Start, large: LargeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a call of the handler function, and with the check made once."""
    rig = cluster(start)
    api = registry.APIS[large.key]
    calls = []

    def handler(*_: Any) -> None:
        raise AssertionError("a slice is handled")

    handler.__module__ = api.handler.__module__

    def reject(_context: Any, request: Fields) -> None:
        calls.append(request)
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "why")

    monkeypatch.setattr(api, "prepare", reject)
    monkeypatch.setattr(api, "direct_bytes_max", 0)
    monkeypatch.setattr(api, "handler", handler)
    answer = rig.processors[0].ask(large.key, large.version, large.make(450))
    assert len(calls) == 1
    codes = set(codes_of(answer))
    assert not codes or codes == {int(ErrorCode.POLICY_VIOLATION)}


@pytest.mark.parametrize("at", [0, 150, 299])
def test_describe_configs_with_unknown_type_rejects_all(start: Start, at: int) -> None:
    rig = cluster(start)
    kinds = [2] * 300
    kinds[at] = 7
    answer = rig.processors[0].ask(ApiKey.DESCRIBE_CONFIGS, 2, resources(*kinds))
    assert codes_of(answer) == [int(ErrorCode.INVALID_REQUEST)] * 300
    few = rig.processors[0].ask(ApiKey.DESCRIBE_CONFIGS, 2, resources(2, 7))
    assert codes_of(few) == [int(ErrorCode.INVALID_REQUEST)] * 2


@pytest.mark.parametrize("version", [10, 11, 12])
def test_metadata_with_a_nameless_topic_rejects_all_topics(start: Start, version: int) -> None:
    rig = cluster(start)
    rows = [{"name": f"n{at}", "topic_id": bytes(16)} for at in range(450)]
    rows[440]["name"] = None
    fields = {"topics": rows, "allow_auto_topic_creation": False}
    answer = rig.processors[0].ask(ApiKey.METADATA, version, fields)
    assert codes_of(answer["topics"]) == [int(ErrorCode.INVALID_REQUEST)] * 450


def test_metadata_with_ids_does_not_look_at_names(start: Start) -> None:
    """As in Kafka, wherever in the request the ids are."""
    rig = cluster(start)
    rows: list[Fields] = [{"name": f"n{at}", "topic_id": bytes(16)} for at in range(300)]
    rows += [{"name": None, "topic_id": b"no topic" + at.to_bytes(8, "big")} for at in range(1_000, 1_300)]
    fields = {"topics": rows, "allow_auto_topic_creation": False}
    answer = rig.processors[0].ask(ApiKey.METADATA, 12, fields)
    assert codes_of(answer["topics"]) == [int(ErrorCode.UNKNOWN_TOPIC_ID)] * 300


def test_consumer_heartbeat_reports_all_partitions_of_a_group(start: Start) -> None:
    """A member that got 50,000 partitions must be able to confirm them. Without an answer it would join for ever."""
    rig = cluster(start)
    owned = [{"topic_id": bytes(15) + bytes([at]), "partitions": list(range(5_000))} for at in range(10)]
    fields = {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 2,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": -1,
        "subscribed_topic_names": None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": owned,
    }
    answer = rig.processors[0].ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, fields)
    assert answer["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("others", [199, 3])
def test_describe_quorum_of_many_partitions_has_no_quorum(start: Start, others: int) -> None:
    """The last slice of the first request names the one partition that has a quorum, and nothing else."""
    rig = cluster(start)
    rows = [{"topic_name": "t", "partitions": [{"partition_index": at} for at in range(others)]}]
    rows.append({"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]})
    answer = rig.processors[0].ask(ApiKey.DESCRIBE_QUORUM, 0, {"topics": rows})
    assert codes_of(answer["topics"]) == [int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)] * (others + 1)


def test_list_offsets_rejects_duplicates_in_different_slices(start: Start) -> None:
    rig = cluster(start)
    rows = [{"partition_index": at, "timestamp": -1} for at in [0, 1, *range(2_000, 2_400), 0]]
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": rows}]}
    (topic,) = rig.processors[0].ask(ApiKey.LIST_OFFSETS, 5, fields)["topics"]
    codes = [row["error_code"] for row in topic["partitions"]]
    unknown, invalid = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), int(ErrorCode.INVALID_REQUEST)
    assert codes == [invalid, 0, *[unknown] * 400, invalid]


def test_delete_groups_answers_a_repeated_group_once(start: Start) -> None:
    rig = cluster(start)
    names = [*(f"n{at}" for at in range(300)), "n0"]
    answer = rig.processors[0].ask(ApiKey.DELETE_GROUPS, 1, {"groups_names": names})
    assert [row["group_id"] for row in answer["results"]] == names[:-1]


def test_alter_client_quotas_rejects_a_repeated_entity(start: Start) -> None:
    rig = cluster(start)
    names = [*(f"n{at}" for at in range(300)), "n0"]
    entries = [
        {
            "entity": [{"entity_type": "user", "entity_name": name}],
            "ops": [{"key": "producer_byte_rate", "value": 1e6, "remove": False}],
        }
        for name in names
    ]
    fields = {"entries": entries, "validate_only": False}
    answer = rig.processors[0].ask(ApiKey.ALTER_CLIENT_QUOTAS, 0, fields)
    about = [(row["entity"][0]["entity_name"], row["error_code"]) for row in answer["entries"]]
    assert [row for row in about if row[0] == "n0"] == [("n0", 0), ("n0", int(ErrorCode.INVALID_REQUEST))]
    assert sum(code == 0 for _, code in about) == 300


def test_describe_scram_users_rejects_a_repeated_user_once(start: Start) -> None:
    rig = cluster(start)
    names = [*(f"n{at}" for at in range(300)), "n0"]
    answer = rig.processors[0].ask(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": [{"name": name} for name in names]}
    )
    assert [row["user"] for row in answer["results"]] == names[:-1]
    codes = [row["error_code"] for row in answer["results"]]
    assert codes == [int(ErrorCode.DUPLICATE_RESOURCE), *[int(ErrorCode.RESOURCE_NOT_FOUND)] * 299]


@pytest.mark.parametrize("partitions", [2, 450])
def test_add_partitions_to_txn_with_unknown_partition_adds_none(start: Start, partitions: int) -> None:
    rig = cluster(start)
    rig.create_topic("wide", partitions=partitions)
    processor = rig.processors[0]
    wanted = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    made = processor.ask(ApiKey.INIT_PRODUCER_ID, 3, {"transactional_id": "x", **wanted})
    assert made["error_code"] == 0

    def add(indexes: list[int]) -> list[int]:
        fields = {
            "transactional_id": "x",
            "producer_id": made["producer_id"],
            "producer_epoch": made["producer_epoch"],
            "topics": [{"name": "wide", "partitions": indexes}],
        }
        answer = processor.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN, 1, {f"v3_and_below_{name}": value for name, value in fields.items()}
        )
        return codes_of(answer)

    indexes = list(range(partitions))
    none = [int(ErrorCode.OPERATION_NOT_ATTEMPTED)] * partitions
    assert add([*indexes, 5_000]) == [*none, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    described = processor.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["x"]})
    (state,) = described["transaction_states"]
    assert (state["transaction_state"], state["topics"]) == ("Empty", [])
    assert add(indexes) == [0] * partitions
    (state,) = processor.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["x"]})[
        "transaction_states"
    ]
    assert [sorted(topic["partitions"]) for topic in state["topics"]] == [indexes]


@pytest.mark.parametrize("others", [1, 450])
def test_delete_topics_by_name_and_id_deletes_none(start: Start, others: int) -> None:
    """The controller rejects a topic that is named twice. The name and the id must not be in different slices."""
    rig = cluster(start)
    topic_id = rig.cluster.image.topics_by_name["t"].topic_id
    rows: list[Fields] = [{"name": f"n{at}", "topic_id": bytes(16)} for at in range(others)]
    rows = [{"name": "t", "topic_id": bytes(16)}, *rows, {"name": None, "topic_id": topic_id}]
    answer = rig.processors[0].ask(ApiKey.DELETE_TOPICS, 6, {"topics": rows, "timeout": 1_000})
    about_t = [row["error_code"] for row in answer["responses"] if row["topic_id"] == topic_id]
    assert set(about_t) == {int(ErrorCode.INVALID_REQUEST)}
    assert len(answer["responses"]) >= others
    assert "t" in rig.cluster.image.topics_by_name


@pytest.mark.long
def test_delete_acls_that_mean_too_many_rules_remove_none(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acls, "REMOVED_MAX", 400)
    rig = cluster(start, settings=SETTINGS)
    rig.cluster.do("create_acls", creations=[acl(at) for at in range(450)])
    rig.tell()
    processor = rig.processors[0]
    processor.introduce("10.0.0.1", principal=Principal("User", "root"))
    filters = [
        {
            "resource_type_filter": 2,
            "resource_name_filter": f"t{at}",
            "pattern_type_filter": 3,
            "principal_filter": None,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }
        for at in range(450)
    ]
    answer = processor.ask(ApiKey.DELETE_ACLS, 2, {"filters": filters})
    assert codes_of(answer) == [int(ErrorCode.INVALID_REQUEST)] * 450
    assert len(rig.cluster.image.acls) == 450
    answer = processor.ask(ApiKey.DELETE_ACLS, 2, {"filters": filters[:400]})
    assert set(codes_of(answer)) == {0}
    assert len(rig.cluster.image.acls) == 50


@pytest.mark.parametrize("count", [2, 450])
def test_right_on_the_whole_request_is_checked_once(
    start: Start, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check is a line of the audit log."""
    rig = cluster(start, settings=SETTINGS)
    processor = rig.processors[0]
    processor.introduce("10.0.0.1", principal=Principal("User", "alice"))
    authorizer = rig.handler()._services.authorizer
    assert authorizer is not None
    asked: list[str] = []
    original = type(authorizer).is_allowed

    def is_allowed(self: Any, access: Access, **others: Any) -> bool:
        asked.append(access[-1])
        return original(self, access, **others)

    monkeypatch.setattr(type(authorizer), "is_allowed", is_allowed)
    answer = processor.ask(ApiKey.CREATE_ACLS, 2, {"creations": [acl(at) for at in range(count)]})
    assert codes_of(answer) == [int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)] * count
    assert asked == ["kafka-cluster"]


def test_alter_replica_log_dirs_answers_each_partition_once(start: Start) -> None:
    """For its last directory, as Kafka does, also if the directories are in different slices."""
    rig = cluster(start)
    ours = str(Path(rig.cluster.config.log_dirs).absolute())
    topics = [{"name": "t", "partitions": list(range(4)) + list(range(100, 400))}]
    dirs = [{"path": path, "topics": topics} for path in ("/elsewhere", ours, "/elsewhere", ours)]
    answer = rig.processors[0].ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, {"dirs": dirs})
    rows = [
        (row["partition_index"], row["error_code"])
        for each in answer["results"]
        for row in each["partitions"]
    ]
    unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert sorted(rows) == [(at, 0) for at in range(4)] + [(at, unknown) for at in range(100, 400)]


def test_alter_client_quotas_of_large_entity_is_rejected(start: Start) -> None:
    """The parts of one entry are one step. Their echo in the error is bounded, too."""
    rig = cluster(start)
    entity = [{"entity_type": f"type{at}", "entity_name": "x"} for at in range(5_000)]
    ops = [{"key": "producer_byte_rate", "value": 1.0, "remove": False}]
    rows = [{"entity": each, "ops": ops} for each in (entity, entity[:1])]
    processor = rig.processors[0]
    processor.ask(ApiKey.ALTER_CLIENT_QUOTAS, 0, {"entries": rows[1:], "validate_only": True})
    processor.send(ApiKey.ALTER_CLIENT_QUOTAS, 0, {"entries": rows, "validate_only": True})
    costs, answers = [], []
    while not answers:
        assert len(costs) < 100, "no answer"
        costs.append(count_bytecodes(lambda: rig.handler().do_work(0), unless_in=__file__))
        answers = processor.answers(settles=False)
    entries = answers[0].fields(ApiKey.ALTER_CLIENT_QUOTAS, 0)["entries"]
    assert [each["error_code"] for each in entries] == [int(ErrorCode.INVALID_REQUEST)] * 2
    assert "5000 components" in entries[0]["error_message"]
    assert max(costs) < STEP_BYTECODES_MAX
