"""Records of `__consumer_offsets` and `__share_group_state` as JSON, for `kproc dump-log --records`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from kproc.broker.group.consumer.records import (
    CONSUMER_RECORDS,
    ConsumerRecordType,
    ConsumerRecordValue,
    MemberState,
    MemberTarget,
    OwnedPartitions,
)
from kproc.broker.group.records import OffsetKey, UnknownGroupRecord, decode_record
from kproc.broker.share.membership.records import (
    SHARE_RECORDS,
    NamedPartitions,
    ShareMemberState,
    ShareRecordType,
    ShareRecordValue,
    ShareTarget,
    ShareTopics,
)
from kproc.broker.share.state.messages import RecordState, StateBatch
from kproc.broker.share.state.records import UnknownRecord as UnknownShareRecord
from kproc.broker.share.state.records import base_key_of, decode_share_record
from kproc.broker.storage.checkpoints import uuid_text
from kproc.broker.streams.reconciliation import StreamsMemberState
from kproc.broker.streams.records import STREAMS_RECORDS, StreamsRecordType, StreamsRecordValue
from kproc.broker.streams.tasks import MemberTasks, OwnedTasks, partitions_by_subtopology
from kproc.common.json_bytes import json_text

Fields = dict[str, Any]

# By type of record: the name of its schema in Kafka, which users can look up.
_CONSUMER_TYPES: Final = {
    ConsumerRecordType.GROUP: "ConsumerGroupMetadata",
    ConsumerRecordType.PARTITION_METADATA: "ConsumerGroupPartitionMetadata",
    ConsumerRecordType.MEMBER: "ConsumerGroupMemberMetadata",
    ConsumerRecordType.TARGET: "ConsumerGroupTargetAssignmentMetadata",
    ConsumerRecordType.MEMBER_TARGET: "ConsumerGroupTargetAssignmentMember",
    ConsumerRecordType.MEMBER_STATE: "ConsumerGroupCurrentMemberAssignment",
    ConsumerRecordType.EXPRESSION: "ConsumerGroupRegularExpression",
}
_SHARE_TYPES: Final = {
    ShareRecordType.MEMBER: "ShareGroupMemberMetadata",
    ShareRecordType.GROUP: "ShareGroupMetadata",
    ShareRecordType.TARGET: "ShareGroupTargetAssignmentMetadata",
    ShareRecordType.MEMBER_TARGET: "ShareGroupTargetAssignmentMember",
    ShareRecordType.MEMBER_STATE: "ShareGroupCurrentMemberAssignment",
    ShareRecordType.TOPICS: "ShareGroupStatePartitionMetadata",
}
_STREAMS_TYPES: Final = {
    StreamsRecordType.GROUP: "StreamsGroupMetadata",
    StreamsRecordType.MEMBER: "StreamsGroupMemberMetadata",
    StreamsRecordType.TARGET: "StreamsGroupTargetAssignmentMetadata",
    StreamsRecordType.MEMBER_TARGET: "StreamsGroupTargetAssignmentMember",
    StreamsRecordType.MEMBER_STATE: "StreamsGroupCurrentMemberAssignment",
    StreamsRecordType.TOPOLOGY: "StreamsGroupTopology",
}
_RECORD_STATES: Final = frozenset(map(int, RecordState))


def group_record_fields(key: bytes | None, value: bytes | None) -> tuple[Fields, Fields | None] | None:
    """Return key and value of a record of `__consumer_offsets` as fields, or None for an unknown record type.

    The value of a tombstone is None. Raise Corrupt for invalid bytes.
    """
    if key is not None and CONSUMER_RECORDS.has(key):
        record_key, content = CONSUMER_RECORDS.decode(key, value)
        record_type = ConsumerRecordType(record_key.record_type)
        name_field = "regex" if record_type is ConsumerRecordType.EXPRESSION else "member"
        fields = _key_fields(_CONSUMER_TYPES[record_type], record_key.group_id, record_key.name, name_field)
        return fields, None if content is None else _consumer_value(content)
    if key is not None and SHARE_RECORDS.has(key):
        record_key, share_content = SHARE_RECORDS.decode(key, value)
        kind = _SHARE_TYPES[ShareRecordType(record_key.record_type)]
        fields = _key_fields(kind, record_key.group_id, record_key.name)
        return fields, None if share_content is None else _share_value(share_content)
    if key is not None and STREAMS_RECORDS.has(key):
        record_key, streams_content = STREAMS_RECORDS.decode(key, value)
        kind = _STREAMS_TYPES[StreamsRecordType(record_key.record_type)]
        fields = _key_fields(kind, record_key.group_id, record_key.name)
        return fields, None if streams_content is None else _streams_value(streams_content)
    decoded = decode_record(key, value)
    if isinstance(decoded, UnknownGroupRecord):
        return None
    if isinstance(decoded[0], OffsetKey):
        offset_key = decoded[0]
        fields = {"type": "OffsetCommit", "group": offset_key.group_id}
        fields |= {"topic": offset_key.topic, "partition": offset_key.partition}
    else:
        fields = {"type": "GroupMetadata", "group": decoded[0]}
    return fields, None if decoded[1] is None else _plain(decoded[1])


def _key_fields(kind: str, group_id: str, name: str | None, name_field: str = "member") -> Fields:
    """Return the fields of a record's key: the name `kind` of its schema, the group, and the member if it has one."""
    fields: Fields = {"type": kind, "group": group_id}
    if name:
        fields[name_field] = name
    return fields


def share_record_fields(key: bytes | None, value: bytes | None) -> tuple[Fields, Fields | None] | None:
    """Return key and value of a record of `__share_group_state`, as `group_record_fields` does."""
    try:
        (group_id, topic_id, partition), content = decode_share_record(key, value)
    except UnknownShareRecord:
        return None
    record_type = "ShareSnapshot" if base_key_of(key or b"") is None else "ShareUpdate"
    fields = {"type": record_type, "group": group_id, "topic": uuid_text(topic_id), "partition": partition}
    return fields, None if content is None else _plain(content)


def _share_batch(batch: StateBatch) -> Fields:
    """Return a state batch of a share partition with the name of its delivery state, or its number if it is unknown."""
    state = RecordState(batch.state).name if batch.state in _RECORD_STATES else batch.state
    return {"first": batch.first, "last": batch.last, "state": state, "delivery_count": batch.delivery_count}


def _consumer_value(value: ConsumerRecordValue) -> Fields:
    match value:
        case MemberTarget():
            return {"partitions": _topics(value.partitions)}
        case MemberState():
            return {
                "epoch": value.epoch,
                "previous_epoch": value.previous_epoch,
                "phase": value.phase.name,
                "owned": _owned(value.owned),
                "pending_revocation": _owned(value.pending_revocation),
            }
        case _:
            return _plain(value)


def _streams_value(value: StreamsRecordValue) -> Fields:
    match value:
        case MemberTasks():
            return _tasks(value)
        case StreamsMemberState():
            return {
                "epoch": value.epoch,
                "previous_epoch": value.previous_epoch,
                "phase": value.phase.name,
                "owned": _owned_tasks(value.owned),
                "pending_revocation": _owned_tasks(value.pending_revocation),
            }
        case _:
            fields: Fields = msgspec.to_builtins(value)
            return fields


def _tasks(tasks: MemberTasks) -> Fields:
    """Return the tasks of a member of a streams group: role -> subtopology id -> list of partitions."""
    return {
        "active": partitions_by_subtopology(tasks.active),
        "standby": partitions_by_subtopology(tasks.standby),
        "warmup": partitions_by_subtopology(tasks.warmup),
    }


def _owned_tasks(tasks: OwnedTasks) -> Fields:
    """Return the tasks that a member of a streams group has: role -> subtopology id -> list of partitions.

    An active task has its epoch: "active" -> subtopology id -> partition -> epoch at which the member got the task.
    """
    active: dict[str, dict[str, int]] = {}
    for (subtopology_id, partition), epoch in sorted(tasks.active.items()):
        active.setdefault(subtopology_id, {})[str(partition)] = epoch
    return {**_tasks(tasks.plain), "active": active}


def _share_value(value: ShareRecordValue) -> Fields:
    match value:
        case ShareTarget():
            return {"partitions": _topics(value.partitions)}
        case ShareMemberState():
            return {
                "epoch": value.epoch,
                "previous_epoch": value.previous_epoch,
                "assigned": _topics(value.assigned),
            }
        case ShareTopics():
            return {
                "initializing": _named_partitions(value.initializing),
                "initialized": _named_partitions(value.initialized),
                "deleting": {uuid_text(topic_id): name for topic_id, name in value.deleting.items()},
            }
        case _:
            return _plain(value)


def _named_partitions(topics: Mapping[bytes, NamedPartitions]) -> Fields:
    return {
        uuid_text(topic_id): {"name": topic.name, "partitions": sorted(topic.partitions)}
        for topic_id, topic in topics.items()
    }


def _topics(partitions: Mapping[bytes, frozenset[int]]) -> dict[str, list[int]]:
    return {uuid_text(topic_id): sorted(numbers) for topic_id, numbers in partitions.items()}


def _owned(owned: OwnedPartitions) -> dict[str, dict[str, int]]:
    """Return a member's partitions: topic id -> partition -> epoch at which the member got it, or NO_EPOCH."""
    return {
        uuid_text(topic_id): {str(partition): epoch for partition, epoch in sorted(epochs.items())}
        for topic_id, epochs in owned.items()
    }


def _plain(value: msgspec.Struct) -> Fields:
    """Return the fields of a struct, with the UUID of the field `topic_id`, if it has one, as text."""
    fields: Fields = {}
    for name, field in msgspec.structs.asdict(value).items():
        if name == "topic_id":
            fields[name] = uuid_text(field)
        elif name not in ("group_id", "record_offset"):  # The key has group_id. No record has record_offset.
            fields[name] = _json(field)
    return fields


def _json(value: Any) -> Any:
    match value:
        case bytes():
            return json_text(value)
        case StateBatch():
            return _share_batch(value)
        case msgspec.Struct():
            return _plain(value)
        case tuple():
            return [_json(each) for each in value]
        case frozenset():
            return sorted(value)
        case _:
            return value
