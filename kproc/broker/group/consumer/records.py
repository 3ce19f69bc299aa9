"""The records of consumer groups in `__consumer_offsets` (KIP-848), byte for byte as Kafka 4.4 writes them.

The keys of types 5, 7 and 8 have a member's id, and those of type 16 an expression (coordinator/record_codec.py).

| type | record | value |
|---:|---|---|
| 3 | ConsumerGroupMetadata | group epoch, hash of the subscribed topics' metadata |
| 4 | ConsumerGroupPartitionMetadata | not written any more; read and ignored (KIP-1101) |
| 5 | ConsumerGroupMemberMetadata | subscription, time limits and client of a member |
| 6 | ConsumerGroupTargetAssignmentMetadata | epoch and time of the target assignment |
| 7 | ConsumerGroupTargetAssignmentMember | target assignment of a member |
| 8 | ConsumerGroupCurrentMemberAssignment | epochs, state and partitions of a member |
| 16 | ConsumerGroupRegularExpression | topics that match an expression |
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

import msgspec

from kproc.broker.coordinator.member_memory import SubscriptionContent, member_bytes
from kproc.broker.coordinator.member_phase import NO_EPOCH, MemberPhase, ReconciledState
from kproc.broker.coordinator.record_codec import (
    RecordCodec,
    RecordKey,
    partitions_by_topic,
    partitions_of_topics,
    partitions_schema,
    struct_array,
    value_schema,
)
from kproc.broker.group.consumer.assignors import Assignment
from kproc.common.errors import ProtocolError
from kproc.wire.schema import Field, Schema

NO_TIME: Final = -1
# Topic id -> partition -> the epoch at which the partition was assigned to the member (KIP-1251), or NO_EPOCH.
OwnedPartitions = Mapping[bytes, Mapping[int, int]]


class ConsumerRecordType(IntEnum):
    """The types of the records' keys."""

    GROUP = 3
    PARTITION_METADATA = 4
    MEMBER = 5
    TARGET = 6
    MEMBER_TARGET = 7
    MEMBER_STATE = 8
    EXPRESSION = 16


class GroupEpoch(msgspec.Struct, frozen=True):
    """The value of record type 3: the group's epoch.

    It rises when members, subscriptions or subscribed topics change.
    """

    epoch: int
    metadata_hash: int = 0


class ClassicProtocols(msgspec.Struct, frozen=True):
    """Field of MemberMetadata for a member that speaks the classic protocol: its session timeout and protocols."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # Name and metadata, in the member's order of preference.


class MemberMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The value of record type 5: a member's subscription and its client."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str
    client_host: str
    topic_names: tuple[str, ...] = ()
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicProtocols | None = None

    @property
    def content(self) -> SubscriptionContent:
        """The topic names and the classic protocols, which can be long, so that equal ones are shared."""
        return SubscriptionContent(self.topic_names, () if self.classic is None else self.classic.protocols)

    def size_without_content(self, group_id: str, member_id: str) -> int:
        """Return the memory of a group's member with this metadata, without its `content`."""
        texts = (self.instance_id, self.rack_id, self.client_id, self.client_host, self.topic_regex)
        return member_bytes(group_id, member_id, *texts)

    def with_content(self, content: SubscriptionContent) -> MemberMetadata:
        """Return a copy that refers to an equal content, which other members share."""
        classic = self.classic
        if classic is not None:
            classic = ClassicProtocols(classic.session_timeout_ms, content.protocols)
        return msgspec.structs.replace(self, topic_names=content.topic_names, classic=classic)


class TargetEpoch(msgspec.Struct, frozen=True):
    """The value of record type 6: the group epoch for which the target was computed, and when, as wall time in ms."""

    epoch: int
    timestamp_ms: int = NO_TIME


class MemberTarget(msgspec.Struct, frozen=True):
    """The value of record type 7: the partitions that a member shall get."""

    partitions: Assignment


class MemberState(ReconciledState, frozen=True):
    """The value of record type 8: a member's epochs, and the partitions that it owns or must give up."""

    owned: OwnedPartitions = msgspec.field(default_factory=dict)
    pending_revocation: OwnedPartitions = msgspec.field(default_factory=dict)


def plain(owned: OwnedPartitions) -> Assignment:
    """Return partitions without the epochs at which they were assigned."""
    return {topic_id: frozenset(epochs) for topic_id, epochs in owned.items()}


class ExpressionTopics(msgspec.Struct, frozen=True):
    """The value of record type 16: the topics that matched an expression, when it was resolved last."""

    topic_names: frozenset[str]
    version: int  # The version of the metadata in which it was resolved.
    timestamp_ms: int  # The wall time at which it was resolved.


ConsumerRecordValue = (
    GroupEpoch | MemberMetadata | TargetEpoch | MemberTarget | MemberState | ExpressionTopics
)
# The value is None for a tombstone, and for records of type 4, which have no effect.
ConsumerRecord = tuple[RecordKey, ConsumerRecordValue | None]


# ---- schemas, in the order and with the names of Kafka's message definitions -------------------------------


_OWNED: Final = partitions_schema(
    "MemberState.partitions", Field("epochs", "int32", is_array=True, is_nullable=True, tag=0)
)
_CLASSIC_PROTOCOL: Final = value_schema(
    "MemberMetadata.classic.protocols", Field("name", "string"), Field("metadata", "bytes")
)
_CLASSIC: Final = value_schema(
    "MemberMetadata.classic",
    Field("session_timeout_ms", "int32", default=0),
    Field("protocols", "struct", is_array=True, default=[], struct=_CLASSIC_PROTOCOL),
)
_NO_CLASSIC: Final[dict[str, Any]] = {"session_timeout_ms": 0, "protocols": []}
_SCHEMAS: Final[dict[ConsumerRecordType, Schema]] = {
    ConsumerRecordType.GROUP: value_schema(
        "GroupEpoch", Field("epoch", "int32"), Field("metadata_hash", "int64", tag=0, default=0)
    ),
    ConsumerRecordType.MEMBER: value_schema(
        "MemberMetadata",
        Field("instance_id", "string", is_nullable=True),
        Field("rack_id", "string", is_nullable=True),
        Field("client_id", "string"),
        Field("client_host", "string"),
        Field("topic_names", "string", is_array=True),
        Field("topic_regex", "string", is_nullable=True),
        Field("rebalance_timeout_ms", "int32"),
        Field("assignor", "string", is_nullable=True),
        # Kafka's default is not null but a struct of defaults, so null is written.
        Field("classic", "struct", is_nullable=True, tag=0, default=_NO_CLASSIC, struct=_CLASSIC),
    ),
    ConsumerRecordType.TARGET: value_schema(
        "TargetEpoch", Field("epoch", "int32"), Field("timestamp_ms", "int64", tag=0, default=-1)
    ),
    ConsumerRecordType.MEMBER_TARGET: value_schema(
        "MemberTarget", struct_array("topics", partitions_schema("MemberTarget.topics"))
    ),
    ConsumerRecordType.MEMBER_STATE: value_schema(
        "MemberState",
        Field("epoch", "int32"),
        Field("previous_epoch", "int32"),
        Field("phase", "int8"),
        struct_array("owned", _OWNED),
        struct_array("pending_revocation", _OWNED),
    ),
    ConsumerRecordType.EXPRESSION: value_schema(
        "ExpressionTopics",
        Field("topic_names", "string", is_array=True),
        Field("version", "int64"),
        Field("timestamp_ms", "int64"),
    ),
}


def _fields_of(value: ConsumerRecordValue) -> Mapping[str, Any]:
    match value:
        case MemberTarget():
            return {"topics": partitions_by_topic(value.partitions)}
        case MemberState():
            return {
                "epoch": value.epoch,
                "previous_epoch": value.previous_epoch,
                "phase": int(value.phase),
                "owned": _owned_topics(value.owned),
                "pending_revocation": _owned_topics(value.pending_revocation),
            }
        case MemberMetadata(classic=ClassicProtocols() as classic):
            protocols = [{"name": name, "metadata": metadata} for name, metadata in classic.protocols]
            fields = {"session_timeout_ms": classic.session_timeout_ms, "protocols": protocols}
            return {**msgspec.structs.asdict(value), "classic": fields}
        case ExpressionTopics():
            # Sort the names, so that the bytes do not depend on the order of a set.
            return {**msgspec.structs.asdict(value), "topic_names": sorted(value.topic_names)}
        case _:
            return msgspec.structs.asdict(value)


def _owned_topics(owned: OwnedPartitions) -> list[dict[str, Any]]:
    topics = []
    for topic_id, epochs in sorted(owned.items()):
        partitions = sorted(epochs)
        listed = [epochs[partition] for partition in partitions]
        # Kafka before 4.3 wrote no epochs of partitions. The epochs of a member are all known or all unknown, because
        # its state is written as a whole.
        topics.append(
            {"topic_id": topic_id, "partitions": partitions, "epochs": None if NO_EPOCH in listed else listed}
        )
    return topics


def _value_of(record_type: ConsumerRecordType, fields: dict[str, Any]) -> ConsumerRecordValue:
    match record_type:
        case ConsumerRecordType.GROUP:
            return GroupEpoch(**fields)
        case ConsumerRecordType.TARGET:
            return TargetEpoch(**fields)
        case ConsumerRecordType.MEMBER_TARGET:
            return MemberTarget(partitions_of_topics(fields["topics"]))
        case ConsumerRecordType.EXPRESSION:
            return ExpressionTopics(**{**fields, "topic_names": frozenset(fields["topic_names"])})
        case ConsumerRecordType.MEMBER_STATE:
            return MemberState(
                fields["epoch"],
                fields["previous_epoch"],
                MemberPhase(fields["phase"]),
                _owned(fields["owned"]),
                _owned(fields["pending_revocation"]),
            )
        case _:
            return _member_metadata(fields)


def _member_metadata(fields: dict[str, Any]) -> MemberMetadata:
    classic = fields["classic"]
    # A record without this field gets Kafka's default, which stands for a member of the consumer protocol.
    if classic == _NO_CLASSIC:
        classic = None
    if classic is not None:
        protocols = tuple((each["name"], each["metadata"]) for each in classic["protocols"])
        classic = ClassicProtocols(classic["session_timeout_ms"], protocols)
    return MemberMetadata(**{**fields, "topic_names": tuple(fields["topic_names"]), "classic": classic})


def _owned(topics: list[dict[str, Any]]) -> OwnedPartitions:
    owned: dict[bytes, dict[int, int]] = {}
    for each in topics:
        partitions, epochs = each["partitions"], each["epochs"]
        # Kafka before 4.3 wrote no epochs of partitions (KIP-1251), so those of its records are unknown.
        if epochs is None:
            epochs = [NO_EPOCH] * len(partitions)
        # With different lengths neither list can be trusted. A wrong epoch would fence the member that owns the
        # partition.
        if len(epochs) != len(partitions):
            raise ProtocolError(
                f"a member owns {len(partitions)} partitions of a topic, but its record has {len(epochs)} epochs"
            )
        owned[each["topic_id"]] = dict(zip(partitions, epochs, strict=True))
    return owned


CONSUMER_RECORDS: Final = RecordCodec[ConsumerRecordType, ConsumerRecordValue](
    ConsumerRecordType,
    (
        ConsumerRecordType.MEMBER,
        ConsumerRecordType.MEMBER_TARGET,
        ConsumerRecordType.MEMBER_STATE,
        ConsumerRecordType.EXPRESSION,
    ),
    _SCHEMAS,
    _fields_of,
    _value_of,
)
