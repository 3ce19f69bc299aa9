"""The records of streams groups in `__consumer_offsets` (KIP-1071), byte for byte as Kafka 4.4 writes them.

The keys of types 19, 21 and 22 have a member's id (coordinator/record_codec.py).

| type | record | value |
|---:|---|---|
| 17 | StreamsGroupMetadata | group epoch, hash of the topics' metadata, epoch of the topology that fits them |
| 19 | StreamsGroupMemberMetadata | process, endpoint, tags, time limits and client of a member |
| 20 | StreamsGroupTargetAssignmentMetadata | epoch and time of the target assignment |
| 21 | StreamsGroupTargetAssignmentMember | target tasks of a member |
| 22 | StreamsGroupCurrentMemberAssignment | epochs, state and tasks of a member |
| 23 | StreamsGroupTopology | the application's topology |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from sys import getsizeof
from typing import Any, Final

import msgspec

from kproc.broker.coordinator.member_phase import MemberPhase
from kproc.broker.coordinator.record_codec import RecordCodec, RecordKey, struct_array, value_schema
from kproc.broker.streams.reconciliation import StreamsMemberState
from kproc.broker.streams.tasks import MemberTasks, OwnedTasks, Task, TaskSet, partitions_by_subtopology
from kproc.broker.streams.topology import KeyValue, Topology, memory_of_pairs
from kproc.common.bounded import shared_text
from kproc.common.conversion import converter
from kproc.wire.schema import Field, Schema

NO_TOPOLOGY: Final = -1


class StreamsRecordType(IntEnum):
    """The types of a streams group's records: the first number in a record's key."""

    GROUP = 17
    MEMBER = 19
    TARGET = 20
    MEMBER_TARGET = 21
    MEMBER_STATE = 22
    TOPOLOGY = 23


class StreamsGroupEpoch(msgspec.Struct, frozen=True):
    """Value of a record of type 17: the group epoch.

    It rises when members, the topology, its topics or the configs of the assignment change.
    """

    epoch: int
    metadata_hash: int = 0
    validated_topology_epoch: int = NO_TOPOLOGY  # Epoch of the topology that fits its topics; -1: none fits.
    assignment_configs: tuple[KeyValue, ...] | None = None  # The configs of the last assignment.
    # Epochs of Kafka's plug-in for descriptions of topologies. kproc has no such plug-in, and keeps the values that
    # Kafka wrote.
    stored_description_epoch: int = NO_TOPOLOGY
    failed_description_epoch: int = NO_TOPOLOGY


class Endpoint(msgspec.Struct, frozen=True):
    """The address at which a member answers interactive queries."""

    host: str
    port: int


class StreamsMember(msgspec.Struct, frozen=True, kw_only=True):
    """Value of a record of type 19: a member's process, and its client."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = NO_TOPOLOGY
    process_id: str = ""
    endpoint: Endpoint | None = None
    client_tags: tuple[KeyValue, ...] = ()  # Sorted by key.

    @property
    def memory_bytes(self) -> int:
        """The bytes of memory of the texts and tags."""
        host = None if self.endpoint is None else self.endpoint.host
        texts = (self.instance_id, self.rack_id, self.client_id, self.client_host, self.process_id, host)
        return sum(map(getsizeof, texts)) + memory_of_pairs(self.client_tags)


class StreamsTargetEpoch(msgspec.Struct, frozen=True):
    """Value of a record of type 20: the group epoch for which the target was computed, and when, as wall time in ms.

    With time 0 the next target may be computed at once.
    """

    epoch: int
    timestamp_ms: int = 0


StreamsRecordValue = (
    StreamsGroupEpoch | StreamsMember | StreamsTargetEpoch | MemberTasks | StreamsMemberState | Topology
)
# Key and value of a record. The value is None for a tombstone.
StreamsRecord = tuple[RecordKey, StreamsRecordValue | None]


# ---- schemas, in the order of Kafka's message definitions --------------------------------------------------


_PAIR: Final = value_schema("StreamsGroup.pair", Field("key", "string"), Field("value", "string"))
_ENDPOINT: Final = value_schema("StreamsMember.endpoint", Field("host", "string"), Field("port", "uint16"))
_TASKS: Final = (Field("subtopology_id", "string"), Field("partitions", "int32", is_array=True))
_TARGET_TASKS: Final = value_schema("MemberTasks", *_TASKS)
_OWNED_TASKS: Final = value_schema(
    "OwnedTasks", *_TASKS, Field("epochs", "int32", is_array=True, is_nullable=True, tag=0)
)
_TOPIC: Final = value_schema(
    "Topology.topic",
    Field("name", "string"),
    Field("partitions", "int32"),
    Field("replication_factor", "int16"),
    struct_array("topic_configs", _PAIR),
)
_COPARTITION_GROUP: Final = value_schema(
    "Topology.copartition_groups",
    Field("source_topics", "int16", is_array=True),
    Field("source_topic_regex", "int16", is_array=True),
    Field("repartition_source_topics", "int16", is_array=True),
)
_SUBTOPOLOGY: Final = value_schema(
    "Topology.subtopologies",
    Field("subtopology_id", "string"),
    Field("source_topics", "string", is_array=True),
    Field("source_topic_regex", "string", is_array=True),
    struct_array("state_changelog_topics", _TOPIC),
    Field("repartition_sink_topics", "string", is_array=True),
    struct_array("repartition_source_topics", _TOPIC),
    struct_array("copartition_groups", _COPARTITION_GROUP),
)
_SCHEMAS: Final[dict[StreamsRecordType, Schema]] = {
    StreamsRecordType.GROUP: value_schema(
        "StreamsGroupEpoch",
        Field("epoch", "int32"),
        Field("metadata_hash", "int64"),
        Field("validated_topology_epoch", "int32", tag=0, default=NO_TOPOLOGY),
        struct_array("assignment_configs", _PAIR, is_nullable=True, tag=1),
        Field("stored_description_epoch", "int32", tag=2, default=NO_TOPOLOGY),
        Field("failed_description_epoch", "int32", tag=3, default=NO_TOPOLOGY),
    ),
    StreamsRecordType.MEMBER: value_schema(
        "StreamsMember",
        Field("instance_id", "string", is_nullable=True),
        Field("rack_id", "string", is_nullable=True),
        Field("client_id", "string"),
        Field("client_host", "string"),
        Field("rebalance_timeout_ms", "int32"),
        Field("topology_epoch", "int32"),
        Field("process_id", "string"),
        Field("endpoint", "struct", is_nullable=True, struct=_ENDPOINT),
        struct_array("client_tags", _PAIR),
    ),
    StreamsRecordType.TARGET: value_schema(
        "StreamsTargetEpoch", Field("epoch", "int32"), Field("timestamp_ms", "int64", tag=0, default=0)
    ),
    StreamsRecordType.MEMBER_TARGET: value_schema(
        "MemberTasks",
        struct_array("active", _TARGET_TASKS),
        struct_array("standby", _TARGET_TASKS),
        struct_array("warmup", _TARGET_TASKS),
    ),
    StreamsRecordType.MEMBER_STATE: value_schema(
        "StreamsMemberState",
        Field("epoch", "int32"),
        Field("previous_epoch", "int32"),
        Field("phase", "int8"),
        struct_array("active", _OWNED_TASKS),
        struct_array("standby", _OWNED_TASKS),
        struct_array("warmup", _OWNED_TASKS),
        struct_array("active_pending_revocation", _OWNED_TASKS),
        struct_array("standby_pending_revocation", _OWNED_TASKS),
        struct_array("warmup_pending_revocation", _OWNED_TASKS),
    ),
    StreamsRecordType.TOPOLOGY: value_schema(
        "Topology", Field("epoch", "int32"), struct_array("subtopologies", _SUBTOPOLOGY)
    ),
}


# ---- writing -----------------------------------------------------------------------------------------------


def _fields_of(value: StreamsRecordValue) -> Mapping[str, Any]:
    match value:
        case MemberTasks():
            return {role: _tasks(getattr(value, role)) for role in ("active", "standby", "warmup")}
        case StreamsMemberState():
            revoked = value.pending_revocation
            return {
                "epoch": value.epoch,
                "previous_epoch": value.previous_epoch,
                "phase": int(value.phase),
                "active": _tasks_with_epochs(value.owned.active),
                "standby": _tasks(value.owned.standby),
                "warmup": _tasks(value.owned.warmup),
                "active_pending_revocation": _tasks_with_epochs(revoked.active),
                "standby_pending_revocation": _tasks(revoked.standby),
                "warmup_pending_revocation": _tasks(revoked.warmup),
            }
        case _:
            fields: dict[str, Any] = msgspec.to_builtins(value)
            return fields


def _tasks(tasks: TaskSet) -> list[dict[str, Any]]:
    return [
        {"subtopology_id": each_id, "partitions": partitions}
        for each_id, partitions in partitions_by_subtopology(tasks).items()
    ]


def _tasks_with_epochs(tasks: Mapping[Task, int]) -> list[dict[str, Any]]:
    return [
        {
            "subtopology_id": each_id,
            "partitions": partitions,
            "epochs": [tasks[each_id, partition] for partition in partitions],
        }
        for each_id, partitions in partitions_by_subtopology(tasks).items()
    ]


# ---- reading -----------------------------------------------------------------------------------------------


_CONVERTERS: Final[Mapping[StreamsRecordType, Callable[[Any], StreamsRecordValue]]] = {
    StreamsRecordType.GROUP: converter(StreamsGroupEpoch),
    StreamsRecordType.MEMBER: converter(StreamsMember),
    StreamsRecordType.TARGET: converter(StreamsTargetEpoch),
    StreamsRecordType.TOPOLOGY: converter(Topology),
}


def _value_of(record_type: StreamsRecordType, fields: dict[str, Any]) -> StreamsRecordValue:
    match record_type:
        case StreamsRecordType.MEMBER_TARGET:
            return MemberTasks(*(read_tasks(fields[role]) for role in ("active", "standby", "warmup")))
        case StreamsRecordType.MEMBER_STATE:
            return StreamsMemberState(
                fields["epoch"],
                fields["previous_epoch"],
                MemberPhase(fields["phase"]),
                _owned(fields, ""),
                _owned(fields, "_pending_revocation"),
            )
        case _:
            return _CONVERTERS[record_type](fields)


def read_tasks(rows: Iterable[dict[str, Any]]) -> TaskSet:
    """Return the tasks of rows with a subtopology and its partitions each, as records and requests have them."""
    # Share one string for equal subtopology ids. Otherwise each member of a loaded group has copies of them.
    return frozenset(
        (each_id, partition)
        for row in rows
        for each_id in (shared_text(row["subtopology_id"]),)
        for partition in row["partitions"]
    )


def _owned(fields: dict[str, Any], suffix: str) -> OwnedTasks:
    active: dict[Task, int] = {}
    for row in fields[f"active{suffix}"]:
        partitions, epochs = row["partitions"], row["epochs"]
        # Kafka before 4.2 wrote no epochs of tasks. As in Kafka, use the member's epoch for all of its tasks.
        if epochs is None or len(epochs) != len(partitions):
            epochs = [fields["epoch"]] * len(partitions)
        each_id = shared_text(row["subtopology_id"])
        active.update(
            ((each_id, partition), epoch) for partition, epoch in zip(partitions, epochs, strict=True)
        )
    return OwnedTasks(active, read_tasks(fields[f"standby{suffix}"]), read_tasks(fields[f"warmup{suffix}"]))


STREAMS_RECORDS: Final = RecordCodec[StreamsRecordType, StreamsRecordValue](
    StreamsRecordType,
    (StreamsRecordType.MEMBER, StreamsRecordType.MEMBER_TARGET, StreamsRecordType.MEMBER_STATE),
    _SCHEMAS,
    _fields_of,
    _value_of,
)
