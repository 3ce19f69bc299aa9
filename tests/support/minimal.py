"""A minimal valid request of each API: for the walk over ApiVersions, and as seeds of malformed frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kproc.wire.header import ApiKey
from tests.support.acls import ANY_ACL
from tests.support.groups import commit_fields, join_fields, streams_join
from tests.support.raw import (
    NO_TOPIC_ID,
    RawClient,
    batch,
    create_topics_fields,
    fetch_fields,
    list_offsets_fields,
    produce_fields,
)
from tests.support.share_requests import share_acknowledge, share_fetch
from tests.support.topics import fresh_name

Fields = dict[str, Any]
# Advertised and refused, as Kafka does (KAFKA-18659).
REFUSED = {(ApiKey.PRODUCE, version) for version in (0, 1, 2)}
# (topic name, topic id) -> the fields; written for all versions at once, the codec drops what one lacks.
MINIMAL: dict[ApiKey, Callable[[str, bytes], Fields]] = {
    ApiKey.PRODUCE: lambda name, topic_id: produce_fields([(name, topic_id, [(0, batch(b"x"))])]),
    ApiKey.FETCH: lambda name, topic_id: fetch_fields([(name, topic_id, [(0, 0)])]),
    ApiKey.LIST_OFFSETS: lambda name, topic_id: list_offsets_fields(name, [(0, -1)]),
    ApiKey.METADATA: lambda name, topic_id: {"topics": [{"name": name, "topic_id": NO_TOPIC_ID}]},
    ApiKey.API_VERSIONS: lambda name, topic_id: {"client_software_name": "t", "client_software_version": "1"},
    ApiKey.CREATE_TOPICS: lambda name, topic_id: create_topics_fields(fresh_name("every")),
    ApiKey.DELETE_TOPICS: lambda name, topic_id: {
        "topics": [{"name": fresh_name("absent"), "topic_id": NO_TOPIC_ID}],
        "topic_names": [fresh_name("absent")],
        "timeout": 1_000,
    },
    ApiKey.CREATE_PARTITIONS: lambda name, topic_id: {
        "topics": [{"name": name, "count": 5, "assignments": None}],
        "timeout": 1_000,
        "validate_only": True,
    },
    ApiKey.DESCRIBE_CONFIGS: lambda name, topic_id: {
        "resources": [{"resource_type": 2, "resource_name": name, "configuration_keys": None}]
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda name, topic_id: {
        "resources": [{"resource_type": 2, "resource_name": name, "configs": []}],
        "validate_only": True,
    },
    ApiKey.ALTER_CONFIGS: lambda name, topic_id: {
        "resources": [{"resource_type": 2, "resource_name": name, "configs": []}],
        "validate_only": True,
    },
    ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda name, topic_id: {"components": [], "strict": False},
    ApiKey.ALTER_CLIENT_QUOTAS: lambda name, topic_id: {
        "entries": [
            {
                "entity": [{"entity_type": "client-id", "entity_name": name}],
                "ops": [{"key": "request_percentage", "value": 50.0, "remove": False}],
            }
        ],
        "validate_only": True,
    },
    ApiKey.DESCRIBE_CLUSTER: lambda name, topic_id: {"endpoint_type": 1},
    ApiKey.INIT_PRODUCER_ID: lambda name, topic_id: {
        "transactional_id": None,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: lambda name, topic_id: {
        "v3_and_below_transactional_id": "t",
        "v3_and_below_producer_id": 1,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": [{"name": name, "partitions": [0]}],
        "transactions": [
            {
                "transactional_id": "t",
                "producer_id": 1,
                "producer_epoch": 0,
                "verify_only": True,
                "topics": [{"name": name, "partitions": [0]}],
            }
        ],
    },
    ApiKey.ADD_OFFSETS_TO_TXN: lambda name, topic_id: {
        "transactional_id": "t",
        "producer_id": 1,
        "producer_epoch": 0,
        "group_id": "g",
    },
    ApiKey.END_TXN: lambda name, topic_id: {
        "transactional_id": "t",
        "producer_id": 1,
        "producer_epoch": 0,
        "committed": True,
    },
    ApiKey.TXN_OFFSET_COMMIT: lambda name, topic_id: {
        "transactional_id": "t",
        "group_id": fresh_name("g"),
        "producer_id": 1,
        "producer_epoch": 0,
        "topics": [
            {
                "name": name,
                "topic_id": topic_id,
                "partitions": [{"partition_index": 0, "committed_offset": 0, "committed_metadata": None}],
            }
        ],
    },
    ApiKey.FIND_COORDINATOR: lambda name, topic_id: {"key": "g", "key_type": 0, "coordinator_keys": ["g"]},
    ApiKey.JOIN_GROUP: lambda name, topic_id: join_fields(fresh_name("g")),
    ApiKey.SYNC_GROUP: lambda name, topic_id: {
        "group_id": fresh_name("g"),
        "generation_id": 1,
        "member_id": "m",
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [],
    },
    ApiKey.HEARTBEAT: lambda name, topic_id: {
        "group_id": fresh_name("g"),
        "generation_id": 1,
        "member_id": "m",
    },
    ApiKey.CONSUMER_GROUP_HEARTBEAT: lambda name, topic_id: {
        "group_id": fresh_name("g"),
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": [name],
        "topic_partitions": [],
    },
    ApiKey.CONSUMER_GROUP_DESCRIBE: lambda name, topic_id: {"group_ids": [fresh_name("g")]},
    ApiKey.STREAMS_GROUP_HEARTBEAT: lambda name, topic_id: streams_join(fresh_name("g"), [name]),
    ApiKey.STREAMS_GROUP_DESCRIBE: lambda name, topic_id: {"group_ids": [fresh_name("g")]},
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: lambda name, topic_id: {
        "group_id": fresh_name("g"),
        "member_id": "m",
        "topology_epoch": 0,
        "topology_description": {"subtopologies": [], "global_stores": []},
    },
    ApiKey.SHARE_FETCH: lambda name, topic_id: share_fetch(topic_id, [0], group_id=fresh_name("g")),
    ApiKey.SHARE_ACKNOWLEDGE: lambda name, topic_id: share_acknowledge(
        topic_id, {0: [(0, 0, [1])]}, epoch=1, group_id=fresh_name("g")
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: lambda name, topic_id: {
        "group_id": fresh_name("g"),
        "member_id": "m",
        "member_epoch": 0,
        "subscribed_topic_names": [name],
    },
    ApiKey.SHARE_GROUP_DESCRIBE: lambda name, topic_id: {"group_ids": [fresh_name("g")]},
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: lambda name, topic_id: {
        "groups": [{"group_id": fresh_name("g"), "topics": [{"topic_name": name, "partitions": [0]}]}]
    },
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: lambda name, topic_id: {
        "group_id": fresh_name("g"),
        "topics": [{"topic_name": name, "partitions": [{"partition_index": 0, "start_offset": 0}]}],
    },
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: lambda name, topic_id: {
        "group_id": fresh_name("g"),
        "topics": [{"topic_name": name}],
    },
    ApiKey.LEAVE_GROUP: lambda name, topic_id: {
        "group_id": fresh_name("g"),
        "member_id": "m",
        "members": [{"member_id": "m", "group_instance_id": None}],
    },
    ApiKey.OFFSET_COMMIT: lambda name, topic_id: {
        **commit_fields("g", name, {0: 0}),
        "topics": [
            {
                "name": name,
                "topic_id": topic_id,
                "partitions": [{"partition_index": 0, "committed_offset": 0, "committed_metadata": None}],
            }
        ],
    },
    ApiKey.OFFSET_FETCH: lambda name, topic_id: {
        "group_id": "g",
        "topics": [{"name": name, "partition_indexes": [0]}],
        "groups": [
            {"group_id": "g", "topics": [{"name": name, "topic_id": topic_id, "partition_indexes": [0]}]}
        ],
    },
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: lambda name, topic_id: {
        "group_id": fresh_name("g"),
        "topics": [
            {"topic_id": topic_id, "partitions": [{"partition": 0, "state_epoch": 0, "start_offset": 0}]}
        ],
    },
    ApiKey.READ_SHARE_GROUP_STATE: lambda name, topic_id: {
        "group_id": fresh_name("g"),
        "topics": [{"topic_id": topic_id, "partitions": [{"partition": 0, "leader_epoch": 0}]}],
    },
    ApiKey.WRITE_SHARE_GROUP_STATE: lambda name, topic_id: {
        "group_id": fresh_name("g"),
        "topics": [
            {
                "topic_id": topic_id,
                "partitions": [
                    {
                        "partition": 0,
                        "state_epoch": 0,
                        "leader_epoch": 0,
                        "start_offset": 0,
                        "state_batches": [
                            {"first_offset": 0, "last_offset": 1, "delivery_state": 2, "delivery_count": 1}
                        ],
                    }
                ],
            }
        ],
    },
    ApiKey.DELETE_SHARE_GROUP_STATE: lambda name, topic_id: {
        "group_id": fresh_name("g"),
        "topics": [{"topic_id": topic_id, "partitions": [{"partition": 0}]}],
    },
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: lambda name, topic_id: {
        "group_id": fresh_name("g"),
        "topics": [{"topic_id": topic_id, "partitions": [{"partition": 0, "leader_epoch": 0}]}],
    },
    ApiKey.OFFSET_DELETE: lambda name, topic_id: {
        "group_id": fresh_name("g"),
        "topics": [{"name": name, "partitions": [{"partition_index": 0}]}],
    },
    ApiKey.DESCRIBE_GROUPS: lambda name, topic_id: {"groups": [fresh_name("g")]},
    ApiKey.LIST_GROUPS: lambda name, topic_id: {},
    ApiKey.DELETE_GROUPS: lambda name, topic_id: {"groups_names": [fresh_name("g")]},
    ApiKey.OFFSET_FOR_LEADER_EPOCH: lambda name, topic_id: {
        "replica_id": -1,
        "topics": [
            {"topic": name, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}
        ],
    },
    ApiKey.DELETE_RECORDS: lambda name, topic_id: {
        "topics": [{"name": name, "partitions": [{"partition_index": 0, "offset": 0}]}],
        "timeout": 1_000,
    },
    ApiKey.DESCRIBE_LOG_DIRS: lambda name, topic_id: {"topics": None},
    ApiKey.DESCRIBE_PRODUCERS: lambda name, topic_id: {"topics": [{"name": name, "partition_indexes": [0]}]},
    ApiKey.WRITE_TXN_MARKERS: lambda name, topic_id: {
        "markers": [
            {
                "producer_id": 1_000_000,
                "producer_epoch": 0,
                "transaction_result": False,
                "topics": [{"name": fresh_name("gone"), "partition_indexes": [0]}],
                "coordinator_epoch": 0,
                "transaction_version": 0,
            }
        ]
    },
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: lambda name, topic_id: {
        "topics": [{"name": name}],
        "response_partition_limit": 10,
        "cursor": None,
    },
    ApiKey.LIST_CONFIG_RESOURCES: lambda name, topic_id: {},
    ApiKey.DESCRIBE_ACLS: lambda name, topic_id: ANY_ACL,
    ApiKey.CREATE_ACLS: lambda name, topic_id: {"creations": []},
    ApiKey.DELETE_ACLS: lambda name, topic_id: {"filters": []},
    ApiKey.ALTER_REPLICA_LOG_DIRS: lambda name, topic_id: {"dirs": []},
    ApiKey.ELECT_LEADERS: lambda name, topic_id: {
        "election_type": 0,
        "topic_partitions": None,
        "timeout": 1_000,
    },
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda name, topic_id: {"timeout": 1_000, "topics": []},
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda name, topic_id: {"timeout": 1_000, "topics": None},
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda name, topic_id: {"users": None},
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: lambda name, topic_id: {"deletions": [], "upsertions": []},
    ApiKey.SASL_HANDSHAKE: lambda name, topic_id: {"mechanism": "PLAIN"},
    ApiKey.SASL_AUTHENTICATE: lambda name, topic_id: {"auth_bytes": b""},
    ApiKey.DESCRIBE_QUORUM: lambda name, topic_id: {
        "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    },
    ApiKey.UPDATE_FEATURES: lambda name, topic_id: {"timeout": 1_000, "feature_updates": []},
    ApiKey.CREATE_DELEGATION_TOKEN: lambda name, topic_id: {"renewers": [], "max_lifetime": -1},
    ApiKey.RENEW_DELEGATION_TOKEN: lambda name, topic_id: {"hmac": b"no token's", "renew_period": -1},
    ApiKey.EXPIRE_DELEGATION_TOKEN: lambda name, topic_id: {"hmac": b"no token's", "expiry_time_period": -1},
    ApiKey.DESCRIBE_DELEGATION_TOKEN: lambda name, topic_id: {"owners": None},
    ApiKey.UNREGISTER_BROKER: lambda name, topic_id: {"broker_id": 12_321},
    ApiKey.DESCRIBE_TRANSACTIONS: lambda name, topic_id: {"transactional_ids": []},
    ApiKey.LIST_TRANSACTIONS: lambda name, topic_id: {"state_filters": [], "producer_id_filters": []},
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: lambda name, topic_id: {"client_instance_id": bytes(16)},
    ApiKey.PUSH_TELEMETRY: lambda name, topic_id: {
        "client_instance_id": b"i" * 16,
        "subscription_id": 0,
        "terminating": True,
        "compression_type": 0,
        "metrics": b"",
    },
}


def advertised(client: RawClient) -> dict[int, range]:
    fields = MINIMAL[ApiKey.API_VERSIONS]("", b"")
    rows = client.call(ApiKey.API_VERSIONS, 3, fields)["api_keys"]
    return {row["api_key"]: range(row["min_version"], row["max_version"] + 1) for row in rows}


def error_codes(value: Any) -> set[int]:
    """Every error code anywhere in an answer."""
    if isinstance(value, list):
        return set().union(*map(error_codes, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    own = {int(value["error_code"])} if isinstance(value.get("error_code"), int) else set()
    return own.union(*map(error_codes, value.values()))
