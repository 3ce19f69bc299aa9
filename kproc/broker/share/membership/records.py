"""The records of share groups in `__consumer_offsets` (KIP-932), byte for byte as Kafka 4.4 writes them.

The keys of types 10, 13 and 14 have a member's id (coordinator/record_codec.py).

| type | record | value |
|---:|---|---|
| 10 | ShareGroupMemberMetadata | subscription and client of a member |
| 11 | ShareGroupMetadata | group epoch, hash of the subscribed topics' metadata |
| 12 | ShareGroupTargetAssignmentMetadata | epoch and time of the target assignment |
| 13 | ShareGroupTargetAssignmentMember | target assignment of a member |
| 14 | ShareGroupCurrentMemberAssignment | epochs and partitions of a member |
| 15 | ShareGroupStatePartitionMetadata | topics whose share partitions have a state, get one, or lose it |
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

import msgspec

from kproc.broker.coordinator.member_memory import SubscriptionContent, member_bytes
from kproc.broker.coordinator.record_codec import (
    RecordCodec,
    RecordKey,
    partitions_by_topic,
    partitions_of_topics,
    partitions_schema,
    struct_array,
    value_schema,
)
from kproc.wire.schema import Field, Schema

ShareAssignment = Mapping[bytes, frozenset[int]]  # Topic id -> partitions.
# State of a member in record 14. A member never waits for others, so Kafka's other states do not occur.
_STABLE: Final = 0


class ShareRecordType(IntEnum):
    """The types of the records' keys."""

    MEMBER = 10
    GROUP = 11
    TARGET = 12
    MEMBER_TARGET = 13
    MEMBER_STATE = 14
    TOPICS = 15


class ShareSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """Value of a record of type 10: a member's subscription, and its client."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()

    @property
    def content(self) -> SubscriptionContent:
        """The part that can be long: the topic names."""
        return SubscriptionContent(self.topic_names)

    def size_without_content(self, group_id: str, member_id: str) -> int:
        """Return the memory of a group's member with this subscription, without its `content`."""
        return member_bytes(group_id, member_id, self.rack_id, self.client_id, self.client_host)


class ShareEpoch(msgspec.Struct, frozen=True):
    """Value of a record of type 11: the group epoch.

    It rises when members, subscriptions, topics or initialized partitions change.
    """

    epoch: int
    metadata_hash: int = 0


class ShareTargetEpoch(msgspec.Struct, frozen=True):
    """Value of a record of type 12: the group epoch for which the target was computed, and when, as wall time in ms."""

    epoch: int
    timestamp_ms: int = 0


class ShareTarget(msgspec.Struct, frozen=True):
    """Value of a record of type 13: the partitions that a member shall get."""

    partitions: ShareAssignment


class ShareMemberState(msgspec.Struct, frozen=True):
    """Value of a record of type 14: a member's epochs, and the partitions that it has."""

    epoch: int
    previous_epoch: int = -1
    assigned: ShareAssignment = {}


class NamedPartitions(msgspec.Struct, frozen=True):
    """The name of a topic, and some of its partitions."""

    name: str
    partitions: frozenset[int]


class ShareTopics(msgspec.Struct, frozen=True):
    """Value of a record of type 15: the topics whose share partitions have, get or lose a state.

    The keys are topic ids. `initializing`: partitions whose state a share coordinator was asked to create.
    `deleting`: topics whose states are being deleted, together with the group or with its offsets of the topic.
    """

    initializing: Mapping[bytes, NamedPartitions] = {}
    initialized: Mapping[bytes, NamedPartitions] = {}
    deleting: Mapping[bytes, str] = {}  # Topic id -> name.


ShareRecordValue = (
    ShareSubscription | ShareEpoch | ShareTargetEpoch | ShareTarget | ShareMemberState | ShareTopics
)
ShareRecord = tuple[RecordKey, ShareRecordValue | None]


# ---- schemas, in the order and with the names of Kafka's message definitions -------------------------------

_NAMED: Final = (Field("topic_id", "uuid"), Field("topic_name", "string"))
_NAMED_PARTITIONS: Final = value_schema(
    "ShareTopics.partitions", *_NAMED, Field("partitions", "int32", is_array=True)
)
_SCHEMAS: Final[dict[ShareRecordType, Schema]] = {
    ShareRecordType.MEMBER: value_schema(
        "ShareSubscription",
        Field("rack_id", "string", is_nullable=True),
        Field("client_id", "string"),
        Field("client_host", "string"),
        Field("topic_names", "string", is_array=True),
    ),
    ShareRecordType.GROUP: value_schema(
        "ShareEpoch", Field("epoch", "int32"), Field("metadata_hash", "int64")
    ),
    ShareRecordType.TARGET: value_schema(
        "ShareTargetEpoch", Field("epoch", "int32"), Field("timestamp_ms", "int64", tag=0, default=0)
    ),
    ShareRecordType.MEMBER_TARGET: value_schema(
        "ShareTarget", struct_array("topics", partitions_schema("ShareTarget.topics"))
    ),
    ShareRecordType.MEMBER_STATE: value_schema(
        "ShareMemberState",
        Field("epoch", "int32"),
        Field("previous_epoch", "int32"),
        Field("phase", "int8"),
        struct_array("assigned", partitions_schema("ShareMemberState.assigned")),
    ),
    ShareRecordType.TOPICS: value_schema(
        "ShareTopics",
        struct_array("initializing", _NAMED_PARTITIONS),
        struct_array("initialized", _NAMED_PARTITIONS),
        struct_array("deleting", value_schema("ShareTopics.deleting", *_NAMED)),
    ),
}


def _fields_of(value: ShareRecordValue) -> Mapping[str, Any]:
    match value:
        case ShareTarget():
            return {"topics": partitions_by_topic(value.partitions)}
        case ShareMemberState():
            return {
                "epoch": value.epoch,
                "previous_epoch": value.previous_epoch,
                "phase": _STABLE,
                "assigned": partitions_by_topic(value.assigned),
            }
        case ShareTopics():
            return {
                "initializing": _list_named(value.initializing),
                "initialized": _list_named(value.initialized),
                "deleting": [
                    {"topic_id": topic_id, "topic_name": name}
                    for topic_id, name in sorted(value.deleting.items())
                ],
            }
        case _:
            return msgspec.structs.asdict(value)


def _list_named(topics: Mapping[bytes, NamedPartitions]) -> list[dict[str, Any]]:
    return [
        {"topic_id": topic_id, "topic_name": topic.name, "partitions": sorted(topic.partitions)}
        for topic_id, topic in sorted(topics.items())
    ]


def _value_of(record_type: ShareRecordType, fields: dict[str, Any]) -> ShareRecordValue:
    match record_type:
        case ShareRecordType.MEMBER:
            return ShareSubscription(**{**fields, "topic_names": tuple(fields["topic_names"])})
        case ShareRecordType.GROUP:
            return ShareEpoch(**fields)
        case ShareRecordType.TARGET:
            return ShareTargetEpoch(**fields)
        case ShareRecordType.MEMBER_TARGET:
            return ShareTarget(partitions_of_topics(fields["topics"]))
        case ShareRecordType.MEMBER_STATE:
            return ShareMemberState(
                fields["epoch"], fields["previous_epoch"], partitions_of_topics(fields["assigned"])
            )
        case ShareRecordType.TOPICS:
            return ShareTopics(
                _named(fields["initializing"]),
                _named(fields["initialized"]),
                {each["topic_id"]: each["topic_name"] for each in fields["deleting"]},
            )


def _named(topics: list[dict[str, Any]]) -> dict[bytes, NamedPartitions]:
    return {
        each["topic_id"]: NamedPartitions(each["topic_name"], frozenset(each["partitions"]))
        for each in topics
    }


SHARE_RECORDS: Final = RecordCodec[ShareRecordType, ShareRecordValue](
    ShareRecordType,
    (ShareRecordType.MEMBER, ShareRecordType.MEMBER_TARGET, ShareRecordType.MEMBER_STATE),
    _SCHEMAS,
    _fields_of,
    _value_of,
)
