"""Small requests with large answers, and what makes them large: for tests and for tests/starvation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.acls import ANY_ACL
from tests.support.large_requests import COMMITTED, MEMBER, QUOTA, Fields, K, acl, partitions
from tests.support.raw import batch

# Sends a request and returns the fields of its answer.
Call = Callable[[ApiKey, int, Fields], Fields]


@dataclass(frozen=True)
class LargeAnswer:
    """A small request with an answer of as many rows as `fill` makes the broker have."""

    name: str
    key: ApiKey
    version: int
    fields: Fields
    fill: Callable[[Call, int], None]
    count: Callable[[Fields], int]  # The rows in an answer, those of the broker itself included.
    rows_max: int = sys.maxsize  # The rows of a page, if the API answers in pages.


def _in_parts(count: int, size: int) -> list[range]:
    return [range(at, min(at + size, count)) for at in range(0, count, size)]


def _fill_topics(call: Call, count: int) -> None:
    row = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    for part in _in_parts(count, 200):
        topics = [{"name": f"made{at}", **row} for at in part]
        call(K.CREATE_TOPICS, 5, {"topics": topics, "timeout": 60_000, "validate_only": False})


def _create_topic(call: Call, name: str, partition_count: int) -> None:
    row = {
        "name": name,
        "num_partitions": partition_count,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    made = call(K.CREATE_TOPICS, 5, {"topics": [row], "timeout": 60_000, "validate_only": False})
    # Another one may have made it for its own answer.
    assert made["topics"][0]["error_code"] in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS), made


def _fill_wide_topics(call: Call, count: int) -> None:
    for at, part in enumerate(_in_parts(count, 500)):
        _create_topic(call, f"broad{at}", len(part))


def _commit(call: Call, group: str, topics: list[Fields]) -> None:
    call(K.OFFSET_COMMIT, 7, {**MEMBER, "group_id": group, "topics": topics})


def _fill_groups(call: Call, count: int) -> None:
    rows = partitions("partition_index", **COMMITTED)(1)
    for at in range(count):
        _commit(call, f"made{at}", [{"name": "t", "partitions": rows}])


def _fill_offsets(call: Call, count: int) -> None:
    for at, part in enumerate(_in_parts(count, 500)):
        _create_topic(call, f"wide{at}", 500)
        rows = partitions("partition_index", **COMMITTED)(len(part))
        _commit(call, "g", [{"name": f"wide{at}", "partitions": rows}])


def _fill_transactions(call: Call, count: int) -> None:
    wanted = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    for at in range(count):
        call(K.INIT_PRODUCER_ID, 3, {"transactional_id": f"made{at}", **wanted})


def _fill_rules(call: Call, count: int) -> None:
    """Half of the rules are of one resource."""
    for part in _in_parts(count, 1_000):
        rules = [{**acl(at), "host": f"h{at}"} for at in part]
        rules = [{**rule, "resource_name": "t"} if at % 2 else rule for at, rule in enumerate(rules)]
        call(K.CREATE_ACLS, 2, {"creations": rules})


def _fill_quotas(call: Call, count: int) -> None:
    for part in _in_parts(count, 200):
        entries = [
            {"entity": [{"entity_type": "user", "entity_name": f"u{at}"}], "ops": QUOTA} for at in part
        ]
        call(K.ALTER_CLIENT_QUOTAS, 0, {"entries": entries, "validate_only": False})


def _fill_users(call: Call, count: int) -> None:
    secret = {"mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": bytes(32)}
    for part in _in_parts(count, 1_000):
        users = [{"name": f"u{at}", **secret} for at in part]
        call(K.ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": [], "upsertions": users})


def _fill_producers(call: Call, count: int) -> None:
    for at in range(count):
        records = batch(b"v", producer_id=10_000 + at, producer_epoch=0, base_sequence=0)
        rows = [{"index": 0, "records": records}]
        topics = [{"name": "t", "partition_data": rows}]
        call(K.PRODUCE, 8, {"transactional_id": None, "acks": 1, "timeout": 1_000, "topic_data": topics})


def _fill_transaction(call: Call, count: int) -> None:
    topics = {f"joined{at}": len(part) for at, part in enumerate(_in_parts(count, 5_000))}
    for name, partition_count in topics.items():
        _create_topic(call, name, partition_count)
    wanted = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    made = call(K.INIT_PRODUCER_ID, 3, {"transactional_id": "x", **wanted})
    fields = {
        "transactional_id": "x",
        "producer_id": made["producer_id"],
        "producer_epoch": made["producer_epoch"],
        "topics": [
            {"name": name, "partitions": list(range(partition_count))}
            for name, partition_count in topics.items()
        ],
    }
    call(K.ADD_PARTITIONS_TO_TXN, 1, {f"v3_and_below_{name}": value for name, value in fields.items()})


def _rows_at(name: str) -> Callable[[Fields], int]:
    return lambda answer: len(answer[name])


def _partitions_in(answer: Fields) -> int:
    return sum(len(topic["partitions"]) for topic in answer["topics"])


LARGE_ANSWERS: list[LargeAnswer] = [
    LargeAnswer("ListGroups", K.LIST_GROUPS, 4, {"states_filter": []}, _fill_groups, _rows_at("groups")),
    LargeAnswer(
        "ListTransactions",
        K.LIST_TRANSACTIONS,
        0,
        {"state_filters": [], "producer_id_filters": []},
        _fill_transactions,
        _rows_at("transaction_states"),
    ),
    LargeAnswer(
        "OffsetFetch of all topics",
        K.OFFSET_FETCH,
        5,
        {"group_id": "g", "topics": None},
        _fill_offsets,
        _partitions_in,
    ),
    LargeAnswer(
        "OffsetFetch of all topics, groups",
        K.OFFSET_FETCH,
        8,
        {
            "groups": [{"group_id": name, "topics": None} for name in ("g", "other", "g")],
            "require_stable": True,
        },
        _fill_offsets,
        lambda answer: min(_partitions_in(group) for group in answer["groups"][::2]),
    ),
    LargeAnswer(
        "DescribeAcls",
        K.DESCRIBE_ACLS,
        2,
        ANY_ACL,
        _fill_rules,
        lambda answer: sum(len(resource["acls"]) for resource in answer["resources"]),
    ),
    LargeAnswer(
        "DescribeClientQuotas",
        K.DESCRIBE_CLIENT_QUOTAS,
        0,
        {"components": [], "strict": False},
        _fill_quotas,
        _rows_at("entries"),
    ),
    LargeAnswer(
        "DescribeUserScramCredentials",
        K.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        {"users": None},
        _fill_users,
        _rows_at("results"),
    ),
    LargeAnswer(
        "Metadata of all topics",
        K.METADATA,
        9,
        {"topics": None, "allow_auto_topic_creation": True},
        _fill_topics,
        _rows_at("topics"),
    ),
    LargeAnswer(
        "Metadata of wide topics",
        K.METADATA,
        9,
        {"topics": None, "allow_auto_topic_creation": True},
        _fill_wide_topics,
        _partitions_in,
    ),
    LargeAnswer(
        "ElectLeaders of all topics",
        K.ELECT_LEADERS,
        1,
        {"election_type": 0, "topic_partitions": None, "timeout": 30_000},
        _fill_topics,
        _rows_at("replica_election_results"),
    ),
    LargeAnswer(
        "ListConfigResources, topics",
        K.LIST_CONFIG_RESOURCES,
        1,
        {"resource_types": [2]},
        _fill_topics,
        _rows_at("config_resources"),
    ),
    LargeAnswer(
        "DescribeProducers",
        K.DESCRIBE_PRODUCERS,
        0,
        {"topics": [{"name": "t", "partition_indexes": [*range(8), 0]}]},
        _fill_producers,
        lambda answer: len(answer["topics"][0]["partitions"][8]["active_producers"]),
        rows_max=9_000,  # A partition keeps about 10,000 producers.
    ),
    LargeAnswer(
        "DescribeTransactions",
        K.DESCRIBE_TRANSACTIONS,
        0,
        {"transactional_ids": ["x", *"abcdefg", "x"]},
        _fill_transaction,
        lambda answer: _partitions_in(answer["transaction_states"][8]),
    ),
    LargeAnswer(
        "DescribeTopicPartitions of all topics",
        K.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {"topics": [], "response_partition_limit": 2_000, "cursor": None},
        _fill_topics,
        _partitions_in,
        rows_max=2_000,
    ),
]
