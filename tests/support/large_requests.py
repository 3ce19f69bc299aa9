"""Requests with as many rows as asked for, of every API that has arrays: for tests and for tests/starvation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kproc.wire.header import ApiKey
from tests.support.groups import streams_join
from tests.support.raw import NO_TOPIC_ID
from tests.support.share_requests import share_acknowledge, share_fetch

Fields = dict[str, Any]


@dataclass(frozen=True)
class LargeRequest:
    """One API and version, and how its rows are made."""

    name: str
    key: ApiKey
    version: int
    make: Callable[[int], Fields]


def partitions(label: str, **others: Any) -> Callable[[int], list[Fields]]:
    """Partitions of topic "t": those that exist come first."""
    return lambda count: [{label: index, **others} for index in range(count)]


def _topics(label: str, rows: Callable[[int], list[Any]]) -> Callable[[int], Fields]:
    return lambda count: {"topics": [{"name": "t", label: rows(count)}]}


def _spread(label: str, rows: Callable[[int], list[Any]]) -> Callable[[int], Fields]:
    """One partition of each of many topics, which do not exist."""
    return lambda count: {"topics": [{"name": f"t{at}", label: rows(1)} for at in range(count // 2)]}


def _numbers(count: int) -> list[int]:
    return list(range(count))


def _names(count: int) -> list[str]:
    return [f"n{at}" for at in range(count)]


def _creations(count: int) -> list[Fields]:
    row = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    return [{"name": f"new{at}", **row} for at in range(count)]


def acl(at: int) -> Fields:
    return {
        "resource_type": 2,
        "resource_name": f"t{at}",
        "resource_pattern_type": 3,
        "principal": "User:x",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }


def _acl_filter(at: int) -> Fields:
    return {
        "resource_type_filter": 2,
        "resource_name_filter": f"t{at}",
        "pattern_type_filter": 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }


def _resources(kind: int, name: Callable[[int], str], **others: Any) -> Callable[[int], Fields]:
    return lambda count: {
        "resources": [{"resource_type": kind, "resource_name": name(at), **others} for at in range(count)]
    }


COMMITTED = {"committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
_SET = {"configs": [{"name": "retention.ms", "value": "1"}]}
QUOTA = [{"key": "producer_byte_rate", "value": 1e9, "remove": False}]
MEMBER = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
_TRANSACTION = {"transactional_id": "x", "producer_id": 0, "producer_epoch": 0}
_ADDED = {f"v3_and_below_{name}": value for name, value in _TRANSACTION.items()}
_MARKER = {"producer_id": 1, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0}
_FETCH: Fields = {
    "max_wait": 0,
    "min_bytes": 1,
    "max_bytes": 1 << 20,
    "isolation_level": 0,
    "session_id": 0,
    "session_epoch": -1,
    "forgotten_topics_data": [],
    "rack_id": "",
}
_FROM_START = {"fetch_offset": 0, "partition_max_bytes": 1 << 20}
_NOTHING: Fields = {"records": None}
K = ApiKey


def _share_heartbeat(count: int) -> Fields:
    """A member of a share group that joins and subscribes to many topics, which do not exist."""
    return {
        "group_id": "share",
        "member_id": "m",
        "member_epoch": 0,
        "rack_id": None,
        "subscribed_topic_names": _names(count),
    }


def _streams_heartbeat(count: int) -> Fields:
    """A member that joins with a topic and reports how far it has restored many tasks."""
    offsets = [{"subtopology_id": "0", "partition": at, "offset": at} for at in range(count)]
    return {**streams_join("k", ["t0"]), "task_offsets": offsets, "task_end_offsets": None}


def _consumer_heartbeat(count: int) -> Fields:
    """A member that joins and subscribes to many topics, which do not exist."""
    return {
        "group_id": "k",
        "member_id": "m",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": _names(count),
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [],
    }


def _consumer_report(count: int) -> Fields:
    """A member that reports one topic in many rows. The first one has half of all partitions, the others have none."""
    rows = [{"topic_id": bytes(16), "partitions": []} for _ in range(count // 2)]
    rows[0]["partitions"] = list(range(count - len(rows)))
    return {**_consumer_heartbeat(0), "member_epoch": 1, "topic_partitions": rows}


LARGE: list[LargeRequest] = [
    LargeRequest(
        "ListOffsets", K.LIST_OFFSETS, 5, _topics("partitions", partitions("partition_index", timestamp=-1))
    ),
    LargeRequest(
        "ListOffsets, topics",
        K.LIST_OFFSETS,
        6,
        _spread("partitions", partitions("partition_index", timestamp=-1)),
    ),
    LargeRequest(
        "Metadata",
        K.METADATA,
        9,
        lambda count: {
            "topics": [{"name": name} for name in _names(count)],
            "allow_auto_topic_creation": False,
        },
    ),
    LargeRequest(
        "OffsetCommit",
        K.OFFSET_COMMIT,
        7,
        lambda count: {
            **MEMBER,
            **_topics("partitions", partitions("partition_index", **COMMITTED))(count),
        },
    ),
    LargeRequest(
        "OffsetFetch",
        K.OFFSET_FETCH,
        5,
        lambda count: {"group_id": "g", **_topics("partition_indexes", _numbers)(count)},
    ),
    LargeRequest(
        "OffsetFetch, groups",
        K.OFFSET_FETCH,
        8,
        lambda count: {"groups": [{"group_id": "g", **_topics("partition_indexes", _numbers)(count)}]},
    ),
    LargeRequest(
        "FindCoordinator",
        K.FIND_COORDINATOR,
        4,
        lambda count: {"key_type": 0, "coordinator_keys": _names(count)},
    ),
    LargeRequest(
        "LeaveGroup",
        K.LEAVE_GROUP,
        4,
        lambda count: {
            "group_id": "g",
            "members": [{"member_id": name, "group_instance_id": None} for name in _names(count)],
        },
    ),
    LargeRequest("DescribeGroups", K.DESCRIBE_GROUPS, 4, lambda count: {"groups": _names(count)}),
    LargeRequest(
        "ConsumerGroupDescribe",
        K.CONSUMER_GROUP_DESCRIBE,
        1,
        lambda count: {"group_ids": _names(count), "include_authorized_operations": False},
    ),
    LargeRequest(
        "ShareFetch", K.SHARE_FETCH, 2, lambda count: share_fetch(NO_TOPIC_ID, range(count), group_id="g")
    ),
    LargeRequest(
        "ShareAcknowledge",
        K.SHARE_ACKNOWLEDGE,
        2,
        lambda count: share_acknowledge(NO_TOPIC_ID, {0: [(0, count - 1, [1] * count)]}, epoch=1),
    ),
    LargeRequest(
        "ShareGroupDescribe",
        K.SHARE_GROUP_DESCRIBE,
        1,
        lambda count: {"group_ids": _names(count), "include_authorized_operations": False},
    ),
    LargeRequest(
        "DescribeShareGroupOffsets",
        K.DESCRIBE_SHARE_GROUP_OFFSETS,
        1,
        lambda count: {
            "groups": [
                {"group_id": "share", "topics": [{"topic_name": "t", "partitions": _numbers(count)}]}
            ]
        },
    ),
    LargeRequest(
        "AlterShareGroupOffsets",
        K.ALTER_SHARE_GROUP_OFFSETS,
        0,
        lambda count: {
            "group_id": "g",
            "topics": [
                {"topic_name": "t", "partitions": partitions("partition_index", start_offset=0)(count)}
            ],
        },
    ),
    LargeRequest(
        "DeleteShareGroupOffsets",
        K.DELETE_SHARE_GROUP_OFFSETS,
        0,
        lambda count: {"group_id": "g", "topics": [{"topic_name": name} for name in _names(count)]},
    ),
    LargeRequest("ShareGroupHeartbeat", K.SHARE_GROUP_HEARTBEAT, 1, _share_heartbeat),
    LargeRequest(
        "StreamsGroupDescribe",
        K.STREAMS_GROUP_DESCRIBE,
        1,
        lambda count: {"group_ids": _names(count), "include_authorized_operations": False},
    ),
    LargeRequest("StreamsGroupHeartbeat", K.STREAMS_GROUP_HEARTBEAT, 1, _streams_heartbeat),
    LargeRequest("ConsumerGroupHeartbeat", K.CONSUMER_GROUP_HEARTBEAT, 1, _consumer_heartbeat),
    LargeRequest("ConsumerGroupHeartbeat, rows", K.CONSUMER_GROUP_HEARTBEAT, 1, _consumer_report),
    LargeRequest(
        "CreateTopics",
        K.CREATE_TOPICS,
        5,
        lambda count: {"topics": _creations(count), "timeout": 30_000, "validate_only": True},
    ),
    LargeRequest(
        "DeleteTopics", K.DELETE_TOPICS, 5, lambda count: {"topic_names": _names(count), "timeout": 30_000}
    ),
    LargeRequest(
        "DeleteRecords",
        K.DELETE_RECORDS,
        1,
        lambda count: {
            **_topics("partitions", partitions("partition_index", offset=0))(count),
            "timeout": 30_000,
        },
    ),
    LargeRequest(
        "OffsetForLeaderEpoch",
        K.OFFSET_FOR_LEADER_EPOCH,
        3,
        lambda count: {
            "replica_id": -1,
            "topics": [
                {
                    "topic": "t",
                    "partitions": partitions("partition", leader_epoch=0, current_leader_epoch=-1)(count),
                }
            ],
        },
    ),
    LargeRequest(
        "AddPartitionsToTxn",
        K.ADD_PARTITIONS_TO_TXN,
        1,
        lambda count: {**_ADDED, "v3_and_below_topics": [{"name": "t", "partitions": _numbers(count)}]},
    ),
    LargeRequest(
        "AddPartitionsToTxn, one partition",
        K.ADD_PARTITIONS_TO_TXN,
        1,
        lambda count: {**_ADDED, "v3_and_below_topics": [{"name": "t", "partitions": [0] * count}]},
    ),
    LargeRequest(
        "AddPartitionsToTxn, transactions",
        K.ADD_PARTITIONS_TO_TXN,
        4,
        lambda count: {
            "transactions": [
                {
                    **_TRANSACTION,
                    "transactional_id": f"x{at}",
                    "verify_only": False,
                    "topics": [{"name": "t", "partitions": [0]}],
                }
                for at in range(count // 3)
            ]
        },
    ),
    LargeRequest(
        "WriteTxnMarkers",
        K.WRITE_TXN_MARKERS,
        1,
        lambda count: {
            "markers": [{**_MARKER, "topics": [{"name": "t", "partition_indexes": _numbers(count)}]}]
        },
    ),
    LargeRequest(
        "TxnOffsetCommit",
        K.TXN_OFFSET_COMMIT,
        2,
        lambda count: {
            "group_id": "g",
            **_TRANSACTION,
            **_topics("partitions", partitions("partition_index", **COMMITTED))(count),
        },
    ),
    LargeRequest(
        "CreateAcls", K.CREATE_ACLS, 2, lambda count: {"creations": [acl(at) for at in range(count)]}
    ),
    LargeRequest(
        "DeleteAcls", K.DELETE_ACLS, 2, lambda count: {"filters": [_acl_filter(at) for at in range(count)]}
    ),
    LargeRequest(
        "DescribeConfigs, a topic",
        K.DESCRIBE_CONFIGS,
        2,
        lambda count: {
            **_resources(2, lambda _: "t", configuration_keys=None)(count),
            "include_synonyms": True,
        },
    ),
    LargeRequest(
        "DescribeConfigs, the broker",
        K.DESCRIBE_CONFIGS,
        2,
        lambda count: {
            **_resources(4, lambda _: "1", configuration_keys=None)(count),
            "include_synonyms": True,
        },
    ),
    LargeRequest(
        "DescribeConfigs, keys",
        K.DESCRIBE_CONFIGS,
        2,
        lambda count: {
            **_resources(2, lambda _: "t", configuration_keys=_names(count))(1),
            "include_synonyms": True,
        },
    ),
    LargeRequest(
        "AlterConfigs",
        K.ALTER_CONFIGS,
        1,
        lambda count: {**_resources(2, lambda at: f"n{at}", **_SET)(count // 2), "validate_only": True},
    ),
    LargeRequest(
        "IncrementalAlterConfigs",
        K.INCREMENTAL_ALTER_CONFIGS,
        0,
        lambda count: {**_resources(2, lambda at: f"n{at}", **_SET)(count // 2), "validate_only": True},
    ),
    LargeRequest(
        "AlterReplicaLogDirs",
        K.ALTER_REPLICA_LOG_DIRS,
        1,
        lambda count: {
            "dirs": [{"path": "/nowhere", "topics": [{"name": "t", "partitions": _numbers(count)}]}]
        },
    ),
    LargeRequest(
        "DescribeLogDirs",
        K.DESCRIBE_LOG_DIRS,
        1,
        lambda count: {"topics": [{"topic": "t", "partitions": _numbers(count)}]},
    ),
    LargeRequest(
        "CreatePartitions",
        K.CREATE_PARTITIONS,
        1,
        lambda count: {
            "topics": [{"name": name, "count": 2, "assignments": None} for name in _names(count)],
            "timeout": 30_000,
            "validate_only": True,
        },
    ),
    LargeRequest(
        "DescribeDelegationToken",
        K.DESCRIBE_DELEGATION_TOKEN,
        1,
        lambda count: {
            "owners": [{"principal_type": "User", "principal_name": name} for name in _names(count)]
        },
    ),
    LargeRequest(
        "CreateDelegationToken",
        K.CREATE_DELEGATION_TOKEN,
        1,
        lambda count: {
            "renewers": [{"principal_type": "User", "principal_name": name} for name in _names(count)],
            "max_lifetime": -1,
        },
    ),
    LargeRequest("DeleteGroups", K.DELETE_GROUPS, 1, lambda count: {"groups_names": _names(count)}),
    LargeRequest(
        "ElectLeaders",
        K.ELECT_LEADERS,
        1,
        lambda count: {
            "election_type": 0,
            "topic_partitions": [{"topic": "t", "partitions": _numbers(count)}],
            "timeout": 30_000,
        },
    ),
    LargeRequest(
        "AlterPartitionReassignments",
        K.ALTER_PARTITION_REASSIGNMENTS,
        0,
        lambda count: {
            "timeout": 30_000,
            "topics": [{"name": "t", "partitions": partitions("partition_index", replicas=[1])(count // 2)}],
        },
    ),
    LargeRequest(
        "ListPartitionReassignments",
        K.LIST_PARTITION_REASSIGNMENTS,
        0,
        lambda count: {"timeout": 30_000, "topics": [{"name": "t", "partition_indexes": _numbers(count)}]},
    ),
    LargeRequest(
        "OffsetDelete",
        K.OFFSET_DELETE,
        0,
        lambda count: {"group_id": "g", **_topics("partitions", partitions("partition_index"))(count)},
    ),
    *(
        LargeRequest(
            name,
            key,
            0,
            lambda count: {
                "group_id": "g",
                "topics": [{"topic_id": bytes(16), "partitions": partitions("partition")(count)}],
            },
        )
        for name, key in (
            ("InitializeShareGroupState", K.INITIALIZE_SHARE_GROUP_STATE),
            ("ReadShareGroupState", K.READ_SHARE_GROUP_STATE),
            ("WriteShareGroupState", K.WRITE_SHARE_GROUP_STATE),
            ("DeleteShareGroupState", K.DELETE_SHARE_GROUP_STATE),
            ("ReadShareGroupStateSummary", K.READ_SHARE_GROUP_STATE_SUMMARY),
        )
    ),
    LargeRequest(
        "AlterClientQuotas",
        K.ALTER_CLIENT_QUOTAS,
        0,
        lambda count: {
            "entries": [
                {"entity": [{"entity_type": "user", "entity_name": name}], "ops": QUOTA}
                for name in _names(count // 3)
            ],
            "validate_only": True,
        },
    ),
    LargeRequest(
        "DescribeClientQuotas",
        K.DESCRIBE_CLIENT_QUOTAS,
        0,
        lambda count: {
            "components": [{"entity_type": "user", "match_type": 0, "match": name} for name in _names(count)],
            "strict": False,
        },
    ),
    LargeRequest(
        "DescribeUserScramCredentials",
        K.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        lambda count: {"users": [{"name": name} for name in _names(count)]},
    ),
    LargeRequest(
        "AlterUserScramCredentials",
        K.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        lambda count: {
            "deletions": [{"name": name, "mechanism": 1} for name in _names(count)],
            "upsertions": [],
        },
    ),
    LargeRequest(
        "DescribeQuorum",
        K.DESCRIBE_QUORUM,
        0,
        lambda count: {"topics": [{"topic_name": "t", "partitions": partitions("partition_index")(count)}]},
    ),
    LargeRequest(
        "UpdateFeatures",
        K.UPDATE_FEATURES,
        0,
        lambda count: {
            "timeout": 30_000,
            "feature_updates": [
                {"feature": name, "max_version_level": 1, "allow_downgrade": False} for name in _names(count)
            ],
        },
    ),
    LargeRequest(
        "DescribeProducers",
        K.DESCRIBE_PRODUCERS,
        0,
        lambda count: {"topics": [{"name": "t", "partition_indexes": _numbers(count)}]},
    ),
    LargeRequest(
        "DescribeTransactions", K.DESCRIBE_TRANSACTIONS, 0, lambda count: {"transactional_ids": _names(count)}
    ),
    LargeRequest(
        "ListTransactions",
        K.LIST_TRANSACTIONS,
        0,
        lambda count: {"state_filters": _names(count), "producer_id_filters": []},
    ),
    LargeRequest(
        "ListTransactions, ids",
        K.LIST_TRANSACTIONS,
        0,
        lambda count: {"state_filters": [], "producer_id_filters": _numbers(count)},
    ),
    LargeRequest("ListGroups", K.LIST_GROUPS, 4, lambda count: {"states_filter": _names(count)}),
    LargeRequest(
        "ListConfigResources", K.LIST_CONFIG_RESOURCES, 1, lambda count: {"resource_types": [2] * count}
    ),
    LargeRequest(
        "DescribeTopicPartitions",
        K.DESCRIBE_TOPIC_PARTITIONS,
        0,
        lambda count: {
            "topics": [{"name": name} for name in _names(count)],
            "response_partition_limit": 2_000,
            "cursor": None,
        },
    ),
    LargeRequest(
        "JoinGroup",
        K.JOIN_GROUP,
        3,
        lambda count: {
            "group_id": "j",
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": name, "metadata": b""} for name in _names(count)],
        },
    ),
    LargeRequest(
        "SyncGroup",
        K.SYNC_GROUP,
        2,
        lambda count: {
            "group_id": "g",
            "generation_id": 1,
            "member_id": "m",
            "assignments": [{"member_id": name, "assignment": b""} for name in _names(count)],
        },
    ),
    LargeRequest(
        "Produce",
        K.PRODUCE,
        8,
        lambda count: {
            "acks": 1,
            "timeout": 1000,
            "topic_data": [{"name": "t", "partition_data": partitions("index", **_NOTHING)(count)}],
        },
    ),
    LargeRequest(
        "Produce, topics",
        K.PRODUCE,
        8,
        lambda count: {
            "acks": 1,
            "timeout": 1000,
            "topic_data": [
                {"name": f"n{at}", "partition_data": [{"index": 0, "records": None}]}
                for at in range(count // 2)
            ],
        },
    ),
    LargeRequest(
        "Fetch",
        K.FETCH,
        11,
        lambda count: {
            **_FETCH,
            "topics": [{"topic": "t", "partitions": partitions("partition", **_FROM_START)(count)}],
        },
    ),
    LargeRequest(
        "Fetch, one partition",
        K.FETCH,
        11,
        lambda count: {
            **_FETCH,
            "topics": [{"topic": "t", "partitions": [{"partition": 0, **_FROM_START}] * count}],
        },
    ),
    LargeRequest(
        "Fetch, forgotten",
        K.FETCH,
        11,
        lambda count: {
            **_FETCH,
            "topics": [],
            "forgotten_topics_data": [{"topic": "t", "partitions": _numbers(count)}],
        },
    ),
    LargeRequest(
        "Fetch, session",
        K.FETCH,
        11,
        lambda count: {
            **_FETCH,
            "session_epoch": 0,
            "topics": [{"topic": "t", "partitions": partitions("partition", **_FROM_START)(count)}],
        },
    ),
]
