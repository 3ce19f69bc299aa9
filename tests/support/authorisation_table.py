"""Which rights each API needs, as Kafka 4.3 asks for them (KafkaApis, ControllerApis). Tests run through it.

A row is one way to use an API: the versions, a request for some names, and the rights; each of them may have
alternatives. Without them the answer holds `refusal` where those names stand; without a refusal (lists) `shows` tells
whether the answer tells of the name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from kproc.broker.security.acl import CLUSTER_NAME, Operation, ResourceType
from kproc.broker.share.state.messages import state_key
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import TRANSACTIONAL
from tests.support.acls import Acl
from tests.support.groups import commit_fields, join_fields, streams_join
from tests.support.minimal import ANY_ACL
from tests.support.raw import NO_TOPIC_ID, batch, create_topics_fields, fetch_fields, produce_fields
from tests.support.share_requests import share_acknowledge, share_fetch

Fields = dict[str, Any]
TOPIC, GROUP, TXN = "seen-topic", "seen-group", "seen-id"
OWNER = "User:owner"  # Of delegation tokens.
UNMADE = "unmade-topic"  # There is none of that name.
_NAMES: Final = {
    ResourceType.TOPIC: TOPIC,
    ResourceType.GROUP: GROUP,
    ResourceType.TRANSACTIONAL_ID: TXN,
    ResourceType.CLUSTER: CLUSTER_NAME,
    ResourceType.USER: OWNER,
}
Ids = dict[str, bytes]
# Names, and the ids of those topics that there are.
Request = Callable[[Sequence[str], Ids], Fields]


class Right(NamedTuple):
    """One right; an API's alternative to another one."""

    operation: Operation
    resource: ResourceType
    other_name: str = ""

    @property
    def name(self) -> str:
        """Of the resource that the requests of the table are about."""
        return self.other_name or _NAMES[self.resource]

    def acl(self, **changes: Any) -> Acl:
        """The entry that gives it, by default."""
        return Acl(self.operation, self.resource, self.name)._replace(**changes)


class Row(NamedTuple):
    """One way to use an API."""

    key: ApiKey
    request: Request
    needs: tuple[tuple[Right, ...], ...]
    refusal: ErrorCode | None
    version: int | None = None  # None: the newest.
    about: ResourceType | None = None  # Of many of which it can be asked, with an error for each.
    label: str = ""
    shows: Callable[[Fields], bool] | None = None

    def __str__(self) -> str:
        return " ".join(filter(None, (self.key.name, self.label)))


def _on(resource: ResourceType, *operations: Operation) -> tuple[Right, ...]:
    return tuple(Right(operation, resource) for operation in operations)


def _cluster(*operations: Operation) -> tuple[Right, ...]:
    return _on(ResourceType.CLUSTER, *operations)


def _topic(operation: Operation) -> tuple[Right, ...]:
    return _on(ResourceType.TOPIC, operation)


def _group(operation: Operation) -> tuple[Right, ...]:
    return _on(ResourceType.GROUP, operation)


def _txn(operation: Operation) -> tuple[Right, ...]:
    return _on(ResourceType.TRANSACTIONAL_ID, operation)


_TOPIC_REFUSED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_GROUP_REFUSED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
_TXN_REFUSED: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_CLUSTER_REFUSED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_T: Final = ResourceType.TOPIC


def _id_of(name: str, ids: Ids) -> bytes:
    return ids.get(name, b"\xee" * 16)


def _produce(names: Sequence[str], ids: Ids, *, by_id: bool = False) -> Fields:
    rows = [("" if by_id else name, _id_of(name, ids) if by_id else NO_TOPIC_ID) for name in names]
    return produce_fields([(*row, [(0, batch(b"x"))]) for row in rows])


def _produce_txn(names: Sequence[str], _ids: Ids) -> Fields:
    records = batch(b"x", producer_id=7, producer_epoch=0, base_sequence=0, flags=TRANSACTIONAL)
    fields = produce_fields([(name, NO_TOPIC_ID, [(0, records)]) for name in names])
    return {**fields, "transactional_id": TXN}


def _fetch(names: Sequence[str], ids: Ids, *, by_id: bool = False) -> Fields:
    rows = [("" if by_id else name, _id_of(name, ids) if by_id else NO_TOPIC_ID) for name in names]
    return fetch_fields([(*row, [(0, 0)]) for row in rows])


def _metadata(names: Sequence[str], _ids: Ids, **changes: Any) -> Fields:
    rows = [{"name": name, "topic_id": NO_TOPIC_ID} for name in names]
    return {"topics": rows, "allow_auto_topic_creation": False, **changes}


def _metadata_by_id(names: Sequence[str], ids: Ids) -> Fields:
    return {"topics": [{"name": None, "topic_id": _id_of(name, ids)} for name in names]}


def _commit(names: Sequence[str], ids: Ids) -> Fields:
    (row,) = commit_fields(GROUP, "", {0: 0})["topics"]
    rows = [{**row, "name": name, "topic_id": _id_of(name, ids)} for name in names]
    return {**commit_fields(GROUP, "", {}), "topics": rows}


def _txn_commit(names: Sequence[str], ids: Ids) -> Fields:
    part = {"partition_index": 0, "committed_offset": 0, "committed_metadata": None}
    topics = [{"name": name, "topic_id": _id_of(name, ids), "partitions": [part]} for name in names]
    return {**_PRODUCER, "group_id": GROUP, "topics": topics}


def _old_offset_fetch(names: Sequence[str], _ids: Ids) -> Fields:
    return {"group_id": GROUP, "topics": [{"name": name, "partition_indexes": [0]} for name in names]}


def _offset_fetch(names: Sequence[str] | None, ids: Ids) -> Fields:
    topics = None
    if names is not None:
        topics = [{"name": name, "topic_id": _id_of(name, ids), "partition_indexes": [0]} for name in names]
    return {"groups": [{"group_id": GROUP, "topics": topics}]}


def _parted(label: str, parts: str, **row: Any) -> Request:
    """Topics with one row each for their partition 0."""
    return lambda names, _ids: {"topics": [{label: name, parts: [row]} for name in names]}


def _init(transactional_id: str | None) -> Request:
    fields = {
        "transactional_id": transactional_id,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    return lambda _names, _ids: fields


def _add_partitions(names: Sequence[str], _ids: Ids) -> Fields:
    topics = [{"name": name, "partitions": [0]} for name in names]
    producer = {"transactional_id": TXN, "producer_id": 7, "producer_epoch": 0, "topics": topics}
    old = {f"v3_and_below_{key}": value for key, value in producer.items()}
    return {**old, "transactions": [{**producer, "verify_only": False}]}


_STATES: Final = [{"topic_id": NO_TOPIC_ID, "partitions": [{"partition": 0}]}]


def _markers(names: Sequence[str], _ids: Ids) -> Fields:
    marker = {
        "producer_id": 7,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": [{"name": name, "partition_indexes": [0]} for name in names],
        "coordinator_epoch": 0,
        "transaction_version": 0,
    }
    return {"markers": [marker]}


def _described(kind: int, name: str | None = None) -> Request:
    return _resources(kind, name, {"configuration_keys": None}, {})


def _altered(kind: int, name: str | None = None) -> Request:
    return _resources(kind, name, {"configs": []}, {"validate_only": True})


def _resources(kind: int, name: str | None, more: Fields, fields: Fields) -> Request:
    def request(names: Sequence[str], _ids: Ids) -> Fields:
        each = names if name is None else [name]
        return {
            "resources": [{"resource_type": kind, "resource_name": one, **more} for one in each],
            **fields,
        }

    return request


def _same(**fields: Any) -> Request:
    return lambda _names, _ids: fields


def _names_of(list_field: str, name_field: str, name: str) -> Callable[[Fields], bool]:
    return lambda answer: name in [row[name_field] for row in answer[list_field]]


def _offsets_shown(answer: Fields) -> bool:
    return bool(answer["groups"][0]["topics"])


def _cluster_bits(answer: Fields) -> bool:
    return answer["cluster_authorized_operations"] != 0


def _configs_shown(answer: Fields) -> bool:
    return answer["topics"][0]["num_partitions"] == 1




def _consumer_heartbeat(names: Sequence[str], _ids: Sequence[bytes]) -> Fields:
    return {
        "group_id": GROUP,
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": list(names),
        "topic_partitions": [],
    }


def _streams_heartbeat(names: Sequence[str], _ids: Sequence[bytes]) -> Fields:
    return streams_join(GROUP, names)


def _share_fetch(names: Sequence[str], ids: Ids) -> Fields:
    topics = [
        {"topic_id": ids[name], "partitions": [{"partition_index": 0, "acknowledgement_batches": []}]}
        for name in names
        if name in ids
    ]
    return share_fetch(NO_TOPIC_ID, group_id=GROUP, topics=topics)


def _share_acknowledge(_names: Sequence[str], _ids: Ids) -> Fields:
    return share_acknowledge(NO_TOPIC_ID, {}, epoch=1, group_id=GROUP)


def _share_heartbeat(names: Sequence[str], _ids: Ids) -> Fields:
    return {"group_id": GROUP, "member_id": "m", "member_epoch": 0, "subscribed_topic_names": list(names)}


def _alter_share_offsets(names: Sequence[str], _ids: Ids, group_id: str = GROUP) -> Fields:
    partitions = [{"partition_index": 0, "start_offset": 0}]
    return {
        "group_id": group_id,
        "topics": [{"topic_name": name, "partitions": partitions} for name in names],
    }


_MEMBER: Final[Fields] = {"group_id": GROUP, "generation_id": 1, "member_id": "m"}
_NEW_ACL: Final[Fields] = {
    "resource_type": 2,
    "resource_name": "x",
    "resource_pattern_type": 3,
    "principal": "User:x",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
_PRODUCER: Final[Fields] = {"transactional_id": TXN, "producer_id": 7, "producer_epoch": 0}


ROWS: Final[tuple[Row, ...]] = (
    Row(ApiKey.PRODUCE, _produce, (_topic(Operation.WRITE),), _TOPIC_REFUSED, 12, _T),
    Row(
        ApiKey.PRODUCE,
        lambda names, ids: _produce(names, ids, by_id=True),
        (_topic(Operation.WRITE),),
        _TOPIC_REFUSED,
        label="by id",
    ),
    Row(ApiKey.PRODUCE, _produce_txn, (_txn(Operation.WRITE),), _TXN_REFUSED, 11, label="in a transaction"),
    Row(
        ApiKey.PRODUCE,
        _produce_txn,
        (_topic(Operation.WRITE), _txn(Operation.WRITE)),
        None,
        11,
        label="in a transaction, topic and id",
        shows=lambda answer: (
            answer["responses"][0]["partition_responses"][0]["error_code"]
            not in (_TOPIC_REFUSED, _TXN_REFUSED)
        ),
    ),
    Row(ApiKey.FETCH, _fetch, (_topic(Operation.READ),), _TOPIC_REFUSED, 12, _T),
    Row(
        ApiKey.FETCH,
        lambda names, ids: _fetch(names, ids, by_id=True),
        (_topic(Operation.READ),),
        _TOPIC_REFUSED,
        label="by id",
    ),
    Row(
        ApiKey.LIST_OFFSETS,
        _parted("name", "partitions", partition_index=0, current_leader_epoch=-1, timestamp=-1),
        (_topic(Operation.DESCRIBE),),
        _TOPIC_REFUSED,
        about=_T,
    ),
    Row(ApiKey.METADATA, _metadata, (_topic(Operation.DESCRIBE),), _TOPIC_REFUSED, about=_T),
    Row(ApiKey.METADATA, _metadata, (_topic(Operation.DESCRIBE),), _TOPIC_REFUSED, 1, _T, "old"),
    Row(ApiKey.METADATA, _metadata_by_id, (_topic(Operation.DESCRIBE),), _TOPIC_REFUSED, label="by id"),
    Row(
        ApiKey.METADATA,
        _same(topics=None),
        (_topic(Operation.DESCRIBE),),
        None,
        label="of all",
        shows=_names_of("topics", "name", TOPIC),
    ),
    Row(
        ApiKey.METADATA,
        lambda _names, _ids: {
            "topics": [{"name": UNMADE, "topic_id": NO_TOPIC_ID}],
            "allow_auto_topic_creation": True,
        },
        (
            (
                Right(Operation.CREATE, ResourceType.CLUSTER),
                Right(Operation.CREATE, ResourceType.TOPIC, UNMADE),
            ),
            (Right(Operation.DESCRIBE, ResourceType.TOPIC, UNMADE),),
        ),
        _TOPIC_REFUSED,
        label="that creates",
    ),
    Row(
        ApiKey.METADATA,
        lambda names, ids: _metadata(names, ids, include_cluster_authorized_operations=True),
        (_cluster(Operation.DESCRIBE),),
        None,
        10,
        label="with the cluster's operations",
        shows=_cluster_bits,
    ),
    Row(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        lambda names, _ids: {
            "topics": [{"name": name} for name in names],
            "response_partition_limit": 100,
            "cursor": None,
        },
        (_topic(Operation.DESCRIBE),),
        _TOPIC_REFUSED,
        about=_T,
    ),
    Row(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        _same(topics=[], response_partition_limit=100, cursor=None),
        (_topic(Operation.DESCRIBE),),
        None,
        label="of all",
        shows=_names_of("topics", "name", TOPIC),
    ),
    Row(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        _parted("topic", "partitions", partition=0, current_leader_epoch=-1, leader_epoch=0),
        (
            (
                Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
                Right(Operation.DESCRIBE, ResourceType.TOPIC),
            ),
        ),
        _TOPIC_REFUSED,
        about=_T,
    ),
    Row(
        ApiKey.DELETE_RECORDS,
        _parted("name", "partitions", partition_index=0, offset=0),
        (_topic(Operation.DELETE),),
        _TOPIC_REFUSED,
        about=_T,
    ),
    Row(
        ApiKey.DESCRIBE_PRODUCERS,
        lambda names, _ids: {"topics": [{"name": name, "partition_indexes": [0]} for name in names]},
        (_topic(Operation.READ),),
        _TOPIC_REFUSED,
        about=_T,
    ),
    Row(
        ApiKey.CREATE_TOPICS,
        lambda names, _ids: {
            **create_topics_fields("x"),
            "topics": [create_topics_fields(name)["topics"][0] for name in names],
            "validate_only": True,
        },
        ((Right(Operation.CREATE, ResourceType.CLUSTER), Right(Operation.CREATE, ResourceType.TOPIC)),),
        _TOPIC_REFUSED,
        about=_T,
    ),
    Row(
        ApiKey.DELETE_TOPICS,
        lambda names, _ids: {
            "topics": [{"name": name, "topic_id": NO_TOPIC_ID} for name in names],
            "topic_names": list(names),
            "timeout": 1000,
        },
        ((Right(Operation.DELETE, ResourceType.CLUSTER), Right(Operation.DELETE, ResourceType.TOPIC)),),
        _TOPIC_REFUSED,
        about=_T,
    ),
    Row(
        ApiKey.DELETE_TOPICS,
        lambda names, ids: {
            "topics": [{"name": None, "topic_id": _id_of(name, ids)} for name in names],
            "timeout": 1000,
        },
        ((Right(Operation.DELETE, ResourceType.CLUSTER), Right(Operation.DELETE, ResourceType.TOPIC)),),
        _TOPIC_REFUSED,
        label="by id",
    ),
    Row(
        ApiKey.CREATE_PARTITIONS,
        lambda names, _ids: {
            "topics": [{"name": name, "count": 5, "assignments": None} for name in names],
            "timeout": 1000,
            "validate_only": True,
        },
        (_topic(Operation.ALTER),),
        _TOPIC_REFUSED,
        about=_T,
    ),
    # -- groups
    Row(
        ApiKey.FIND_COORDINATOR,
        lambda names, _ids: {"key_type": 0, "coordinator_keys": list(names)},
        (_group(Operation.DESCRIBE),),
        _GROUP_REFUSED,
        about=ResourceType.GROUP,
    ),
    Row(
        ApiKey.FIND_COORDINATOR,
        _same(key_type=0, key=GROUP),
        (_group(Operation.DESCRIBE),),
        _GROUP_REFUSED,
        3,
        label="of one",
    ),
    Row(
        ApiKey.FIND_COORDINATOR,
        lambda names, _ids: {"key_type": 1, "coordinator_keys": list(names)},
        (_txn(Operation.DESCRIBE),),
        _TXN_REFUSED,
        about=ResourceType.TRANSACTIONAL_ID,
        label="of transactions",
    ),
    Row(
        ApiKey.FIND_COORDINATOR,
        _same(key_type=2, coordinator_keys=[state_key(GROUP, NO_TOPIC_ID, 0)]),
        (_cluster(Operation.CLUSTER_ACTION),),
        _CLUSTER_REFUSED,
        label="of share partitions",
    ),
    *(
        Row(key, _same(group_id=GROUP, topics=_STATES), (_cluster(Operation.CLUSTER_ACTION),), _CLUSTER_REFUSED)
        for key in (
            ApiKey.INITIALIZE_SHARE_GROUP_STATE,
            ApiKey.READ_SHARE_GROUP_STATE,
            ApiKey.WRITE_SHARE_GROUP_STATE,
            ApiKey.DELETE_SHARE_GROUP_STATE,
            ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
        )
    ),
    Row(
        ApiKey.JOIN_GROUP,
        lambda _names, _ids: join_fields(GROUP, member_id="unknown"),
        (_group(Operation.READ),),
        _GROUP_REFUSED,
    ),
    Row(
        ApiKey.SYNC_GROUP,
        _same(**_MEMBER, protocol_type="consumer", protocol_name="range", assignments=[]),
        (_group(Operation.READ),),
        _GROUP_REFUSED,
    ),
    Row(ApiKey.HEARTBEAT, _same(**_MEMBER), (_group(Operation.READ),), _GROUP_REFUSED),
    Row(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        _consumer_heartbeat,
        (_group(Operation.READ),),
        _GROUP_REFUSED,
        label="group",
    ),
    Row(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        _consumer_heartbeat,
        (_topic(Operation.DESCRIBE),),
        _TOPIC_REFUSED,
        label="topics",
    ),
    Row(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        lambda names, _ids: {"group_ids": list(names), "include_authorized_operations": True},
        (_group(Operation.DESCRIBE),),
        _GROUP_REFUSED,
        about=ResourceType.GROUP,
    ),
    Row(
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        _streams_heartbeat,
        (_group(Operation.READ),),
        _GROUP_REFUSED,
        label="group",
    ),
    Row(
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        _streams_heartbeat,
        (_topic(Operation.DESCRIBE),),
        _TOPIC_REFUSED,
        label="topics",
    ),
    Row(
        ApiKey.STREAMS_GROUP_DESCRIBE,
        lambda names, _ids: {"group_ids": list(names), "include_authorized_operations": True},
        (_group(Operation.DESCRIBE),),
        _GROUP_REFUSED,
        about=ResourceType.GROUP,
    ),
    Row(
        ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
        _same(group_id=GROUP, member_id="m", topology_epoch=0, topology_description={}),
        (_group(Operation.READ),),
        _GROUP_REFUSED,
    ),
    Row(ApiKey.SHARE_FETCH, _share_fetch, (_group(Operation.READ),), _GROUP_REFUSED, label="group"),
    Row(ApiKey.SHARE_FETCH, _share_fetch, (_topic(Operation.READ),), _TOPIC_REFUSED, label="topics"),
    Row(ApiKey.SHARE_ACKNOWLEDGE, _share_acknowledge, (_group(Operation.READ),), _GROUP_REFUSED),
    Row(
        ApiKey.SHARE_GROUP_HEARTBEAT,
        _share_heartbeat,
        (_group(Operation.READ),),
        _GROUP_REFUSED,
        label="group",
    ),
    Row(
        ApiKey.SHARE_GROUP_HEARTBEAT,
        _share_heartbeat,
        (_topic(Operation.DESCRIBE),),
        _TOPIC_REFUSED,
        label="topics",
    ),
    Row(
        ApiKey.SHARE_GROUP_DESCRIBE,
        lambda names, _ids: {"group_ids": list(names), "include_authorized_operations": True},
        (_group(Operation.DESCRIBE),),
        _GROUP_REFUSED,
        about=ResourceType.GROUP,
    ),
    Row(
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        lambda names, _ids: {"groups": [{"group_id": name, "topics": []} for name in names]},
        (_group(Operation.DESCRIBE),),
        _GROUP_REFUSED,
        about=ResourceType.GROUP,
        label="groups",
    ),
    Row(
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        lambda names, _ids: {
            "groups": [
                {"group_id": GROUP, "topics": [{"topic_name": name, "partitions": [0]} for name in names]}
            ]
        },
        (_topic(Operation.DESCRIBE),),
        _TOPIC_REFUSED,
        about=_T,
        label="topics",
    ),
    Row(
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        _alter_share_offsets,
        (_group(Operation.READ),),
        _GROUP_REFUSED,
        label="group",
    ),
    Row(
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        # A group of another kind is rejected as a whole, whatever the topics.
        partial(_alter_share_offsets, group_id="new-share-group"),
        (_topic(Operation.READ),),
        _TOPIC_REFUSED,
        about=_T,
        label="topics",
    ),
    Row(
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        lambda names, _ids: {"group_id": GROUP, "topics": [{"topic_name": name} for name in names]},
        (_group(Operation.DELETE),),
        _GROUP_REFUSED,
        label="group",
    ),
    Row(ApiKey.LEAVE_GROUP, _same(group_id=GROUP, members=[]), (_group(Operation.READ),), _GROUP_REFUSED),
    Row(ApiKey.OFFSET_COMMIT, _commit, (_group(Operation.READ),), _GROUP_REFUSED, label="group"),
    Row(ApiKey.OFFSET_COMMIT, _commit, (_topic(Operation.READ),), _TOPIC_REFUSED, 9, _T, "topics"),
    Row(ApiKey.OFFSET_COMMIT, _commit, (_topic(Operation.READ),), _TOPIC_REFUSED, label="topics by id"),
    Row(ApiKey.OFFSET_FETCH, _offset_fetch, (_group(Operation.DESCRIBE),), _GROUP_REFUSED, label="group"),
    Row(
        ApiKey.OFFSET_FETCH,
        _old_offset_fetch,
        (_group(Operation.DESCRIBE),),
        _GROUP_REFUSED,
        1,
        label="old group",
    ),
    Row(ApiKey.OFFSET_FETCH, _offset_fetch, (_topic(Operation.DESCRIBE),), _TOPIC_REFUSED, 9, _T, "topics"),
    Row(
        ApiKey.OFFSET_FETCH,
        _offset_fetch,
        (_topic(Operation.DESCRIBE),),
        _TOPIC_REFUSED,
        label="topics by id",
    ),
    Row(
        ApiKey.OFFSET_FETCH,
        lambda _names, ids: _offset_fetch(None, ids),
        (_topic(Operation.DESCRIBE),),
        None,
        9,
        label="of all",
        shows=_offsets_shown,
    ),
    Row(
        ApiKey.OFFSET_DELETE,
        lambda names, _ids: {"group_id": GROUP, "topics": [_deleted(name) for name in names]},
        (_group(Operation.DELETE),),
        _GROUP_REFUSED,
        label="group",
    ),
    Row(
        ApiKey.OFFSET_DELETE,
        lambda names, _ids: {"group_id": GROUP, "topics": [_deleted(name) for name in names]},
        (_topic(Operation.READ),),
        _TOPIC_REFUSED,
        about=_T,
        label="topics",
    ),
    Row(
        ApiKey.DESCRIBE_GROUPS,
        lambda names, _ids: {"groups": list(names), "include_authorized_operations": True},
        (_group(Operation.DESCRIBE),),
        _GROUP_REFUSED,
        about=ResourceType.GROUP,
    ),
    Row(
        ApiKey.LIST_GROUPS,
        _same(states_filter=[], types_filter=[]),
        ((Right(Operation.DESCRIBE, ResourceType.CLUSTER), Right(Operation.DESCRIBE, ResourceType.GROUP)),),
        None,
        shows=_names_of("groups", "group_id", GROUP),
    ),
    Row(
        ApiKey.DELETE_GROUPS,
        _same(groups_names=[GROUP]),
        (_group(Operation.DELETE),),
        _GROUP_REFUSED,
        label="",
    ),
    # -- transactions
    Row(ApiKey.INIT_PRODUCER_ID, _init(TXN), (_txn(Operation.WRITE),), _TXN_REFUSED),
    Row(
        ApiKey.INIT_PRODUCER_ID,
        _init(None),
        (
            (
                Right(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER),
                Right(Operation.WRITE, ResourceType.TOPIC),
            ),
        ),
        _CLUSTER_REFUSED,
        label="without transactions",
    ),
    Row(ApiKey.ADD_PARTITIONS_TO_TXN, _add_partitions, (_txn(Operation.WRITE),), _TXN_REFUSED, 3, label="id"),
    Row(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        _add_partitions,
        (_topic(Operation.WRITE),),
        _TOPIC_REFUSED,
        3,
        _T,
        "topics",
    ),
    Row(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        _add_partitions,
        (_cluster(Operation.CLUSTER_ACTION),),
        _CLUSTER_REFUSED,
        label="of brokers",
    ),
    Row(
        ApiKey.ADD_OFFSETS_TO_TXN,
        _same(**_PRODUCER, group_id=GROUP),
        (_txn(Operation.WRITE),),
        _TXN_REFUSED,
        label="id",
    ),
    Row(
        ApiKey.ADD_OFFSETS_TO_TXN,
        _same(**_PRODUCER, group_id=GROUP),
        (_group(Operation.READ),),
        _GROUP_REFUSED,
        label="group",
    ),
    Row(ApiKey.END_TXN, _same(**_PRODUCER, committed=True), (_txn(Operation.WRITE),), _TXN_REFUSED),
    Row(ApiKey.TXN_OFFSET_COMMIT, _txn_commit, (_txn(Operation.WRITE),), _TXN_REFUSED, label="id"),
    Row(ApiKey.TXN_OFFSET_COMMIT, _txn_commit, (_group(Operation.READ),), _GROUP_REFUSED, label="group"),
    Row(ApiKey.TXN_OFFSET_COMMIT, _txn_commit, (_topic(Operation.READ),), _TOPIC_REFUSED, 5, _T, "topics"),
    Row(ApiKey.TXN_OFFSET_COMMIT, _txn_commit, (_topic(Operation.READ),), _TOPIC_REFUSED, label="topics by id"),
    Row(
        ApiKey.WRITE_TXN_MARKERS,
        _markers,
        (_cluster(Operation.ALTER, Operation.CLUSTER_ACTION),),
        _CLUSTER_REFUSED,
    ),
    Row(
        ApiKey.DESCRIBE_TRANSACTIONS,
        lambda names, _ids: {"transactional_ids": list(names)},
        (_txn(Operation.DESCRIBE),),
        _TXN_REFUSED,
        about=ResourceType.TRANSACTIONAL_ID,
    ),
    Row(
        ApiKey.LIST_TRANSACTIONS,
        _same(state_filters=[], producer_id_filters=[]),
        (_txn(Operation.DESCRIBE),),
        None,
        shows=_names_of("transaction_states", "transactional_id", TXN),
    ),
    # -- configs
    Row(
        ApiKey.DESCRIBE_CONFIGS,
        _described(2),
        (_topic(Operation.DESCRIBE_CONFIGS),),
        _TOPIC_REFUSED,
        about=_T,
    ),
    Row(
        ApiKey.DESCRIBE_CONFIGS,
        _described(32, GROUP),
        (_group(Operation.DESCRIBE_CONFIGS),),
        _GROUP_REFUSED,
        label="of groups",
    ),
    *(
        Row(
            ApiKey.DESCRIBE_CONFIGS,
            _described(kind, name),
            (_cluster(Operation.DESCRIBE_CONFIGS),),
            _CLUSTER_REFUSED,
            label=label,
        )
        for kind, name, label in ((4, "0", "of brokers"), (8, "0", "of loggers"), (16, "m", "of metrics"))
    ),
    *(
        Row(key, _altered(kind, name), (right,), code, about=about, label=label)
        for key in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)
        for kind, name, right, code, about, label in (
            (2, None, _topic(Operation.ALTER_CONFIGS), _TOPIC_REFUSED, _T, ""),
            (32, GROUP, _group(Operation.ALTER_CONFIGS), _GROUP_REFUSED, None, "of groups"),
            (4, "0", _cluster(Operation.ALTER_CONFIGS), _CLUSTER_REFUSED, None, "of brokers"),
            (8, "0", _cluster(Operation.ALTER_CONFIGS), _CLUSTER_REFUSED, None, "of loggers"),
            (16, "m", _cluster(Operation.ALTER_CONFIGS), _CLUSTER_REFUSED, None, "of metrics"),
        )
    ),
    Row(
        ApiKey.CREATE_TOPICS,
        lambda _names, _ids: {**create_topics_fields(UNMADE), "validate_only": True},
        ((Right(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, UNMADE),),),
        None,
        label="with configs in the answer",
        shows=_configs_shown,
    ),
    # -- tokens
    Row(
        ApiKey.CREATE_DELEGATION_TOKEN,
        _same(owner_principal_type="User", owner_principal_name="owner", renewers=[], max_lifetime=-1),
        (_on(ResourceType.USER, Operation.CREATE_TOKENS),),
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        label="for another",
    ),
    Row(
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        _same(owners=None),
        (_on(ResourceType.USER, Operation.DESCRIBE_TOKENS),),
        None,
        shows=_names_of("tokens", "principal_name", "owner"),
    ),
    # -- the cluster
    Row(
        ApiKey.DESCRIBE_CLUSTER,
        _same(include_cluster_authorized_operations=True, endpoint_type=1),
        (_cluster(Operation.DESCRIBE),),
        None,
        label="with operations",
        shows=_cluster_bits,
    ),
    *(
        Row(key, _same(**fields), (_cluster(operation),), _CLUSTER_REFUSED)
        for key, operation, fields in (
            (ApiKey.DESCRIBE_LOG_DIRS, Operation.DESCRIBE, {"topics": None}),
            (ApiKey.DESCRIBE_QUORUM, Operation.DESCRIBE, {"topics": []}),
            (ApiKey.LIST_PARTITION_REASSIGNMENTS, Operation.DESCRIBE, {"timeout": 1000, "topics": None}),
            (
                ApiKey.ALTER_PARTITION_REASSIGNMENTS,
                Operation.ALTER,
                {"timeout": 1000, "topics": []},
            ),
            (
                ApiKey.ELECT_LEADERS,
                Operation.ALTER,
                {
                    "election_type": 0,
                    "topic_partitions": [{"topic": TOPIC, "partitions": [0]}],
                    "timeout": 1000,
                },
            ),
            (
                ApiKey.ALTER_REPLICA_LOG_DIRS,
                Operation.ALTER,
                {"dirs": [{"path": "/x", "topics": [{"name": TOPIC, "partitions": [0]}]}]},
            ),
            (
                ApiKey.UPDATE_FEATURES,
                Operation.ALTER,
                {"timeout": 1000, "feature_updates": [], "validate_only": True},
            ),
            (ApiKey.UNREGISTER_BROKER, Operation.ALTER, {"broker_id": 12_321}),
            (ApiKey.DESCRIBE_CLIENT_QUOTAS, Operation.DESCRIBE_CONFIGS, {"components": [], "strict": False}),
            (
                ApiKey.ALTER_CLIENT_QUOTAS,
                Operation.ALTER_CONFIGS,
                {
                    "entries": [{"entity": [{"entity_type": "user", "entity_name": "u"}], "ops": []}],
                    "validate_only": True,
                },
            ),
            (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, Operation.DESCRIBE, {"users": [{"name": "u"}]}),
            (
                ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
                Operation.ALTER,
                {"deletions": [{"name": "u", "mechanism": 1}], "upsertions": []},
            ),
            (ApiKey.LIST_CONFIG_RESOURCES, Operation.DESCRIBE_CONFIGS, {}),
            (ApiKey.DESCRIBE_ACLS, Operation.DESCRIBE, ANY_ACL),
            (ApiKey.CREATE_ACLS, Operation.ALTER, {"creations": [_NEW_ACL]}),
            (ApiKey.DELETE_ACLS, Operation.ALTER, {"filters": [ANY_ACL]}),
        )
    ),
)
# APIs that everybody may use, as far as this table goes, and why.
FOR_EVERYBODY: Final = {
    ApiKey.API_VERSIONS: "comes before anything is known of the client",
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "tells nothing of the cluster, as in Kafka",
    ApiKey.SASL_HANDSHAKE: "is how a client proves who it is",
    ApiKey.SASL_AUTHENTICATE: "the same",
    ApiKey.RENEW_DELEGATION_TOKEN: "a token's owner and renewers may, and nobody else",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "a token's owner and renewers may, and nobody else",
    ApiKey.PUSH_TELEMETRY: "is dropped, as nobody asks for it",
}


def _deleted(name: str) -> Fields:
    return {"name": name, "partitions": [{"partition_index": 0}]}
