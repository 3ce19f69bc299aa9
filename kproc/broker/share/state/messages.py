"""Requests to the share coordinator, the state of a share partition that it stores, and the key of a share partition.

The owner of a topic's partition reads and writes the state. The group coordinator creates, summarizes and deletes it.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from kproc.common.errors import ErrorCode, KafkaError

NO_OFFSET: Final = -1  # The start offset is not chosen yet, or a write leaves it as it is.
NO_COUNT: Final = -1  # The number of completed deliveries is unknown.

_UUID_BYTES: Final = 16
_UUID_TEXT_BYTES: Final = 24  # base64 of 16 bytes, with its padding.


class RecordState(IntEnum):
    """The delivery states of a record, with Kafka's numbers. All but ACQUIRED are stored."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class StateBatch(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive records with the same delivery state and delivery count. `last` is the offset of the last one."""

    first: int
    last: int
    state: int  # A RecordState. It is not converted, so that a number of a newer Kafka survives a copy.
    delivery_count: int


class PersistedState(msgspec.Struct, frozen=True, array_like=True):
    """The stored state of a share partition.

    Records from `start_offset` on without a batch are available: never acquired, or no change since then was stored.
    """

    state_epoch: int  # Rises when the group coordinator initializes the share partition again.
    leader_epoch: int  # The highest leader epoch of the topic's partition that has read or written the state.
    start_offset: int = NO_OFFSET
    delivery_complete_count: int = NO_COUNT
    # In the order of their offsets. Empty in a summary that was requested without them.
    batches: tuple[StateBatch, ...] = ()


class InitializeState(msgspec.Struct, frozen=True, array_like=True):
    """Create the state of a share partition, or replace it unless the stored state epoch is higher."""

    state_epoch: int
    start_offset: int = NO_OFFSET
    keeps_existing: bool = False  # True: an existing state is not replaced.


class ReadState(msgspec.Struct, frozen=True, array_like=True):
    """Read the state, and fence owners of an older leader epoch from now on."""

    leader_epoch: int


class WriteState(msgspec.Struct, frozen=True, array_like=True):
    """Change the state of the ranges in `batches`, and move the start offset forward.

    If the start offset is below the present one, it has no effect, and the count of completed deliveries has none
    either. Stored delivery counts never decrease (batches.py).

    With `replaces` the state becomes exactly what the request says. The owner sends this if its log has lost records
    that the state knows.
    """

    state_epoch: int
    leader_epoch: int
    start_offset: int = NO_OFFSET
    delivery_complete_count: int = NO_COUNT
    batches: tuple[StateBatch, ...] = ()
    replaces: bool = False


class DeleteState(msgspec.Struct, frozen=True, array_like=True):
    """Delete the state. A share partition without a state is no error."""


class ReadSummary(msgspec.Struct, frozen=True, array_like=True):
    """Read the state, without its batches unless `has_batches`. Unlike ReadState, this fences no owner."""

    leader_epoch: int = -1
    has_batches: bool = False


class SharePartitionKey(NamedTuple):
    """The name of a share partition."""

    group_id: str
    topic_id: bytes
    partition: int


def state_key(group_id: str, topic_id: bytes, partition: int) -> str:
    """Return a share partition's key as text. As in Kafka, its hash determines the share coordinator.

    The topic id is in base64 for URLs without padding, as Kafka prints it.
    """
    return f"{group_id}:{urlsafe_b64encode(topic_id).decode().rstrip('=')}:{partition}"


def parse_state_key(key: str) -> SharePartitionKey:
    """Parse the result of `state_key`. Raises KafkaError (INVALID_REQUEST)."""
    group_id, _, rest = key.rpartition(":")
    group_id, _, topic = group_id.rpartition(":")
    try:
        topic_id = urlsafe_b64decode(topic.ljust(_UUID_TEXT_BYTES, "="))
        index = int(rest)
    except ValueError as error:
        raise _invalid_key(key) from error
    if not group_id.strip() or len(topic_id) != _UUID_BYTES:
        raise _invalid_key(key)
    return SharePartitionKey(group_id, topic_id, index)


def _invalid_key(key: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REQUEST, f"Invalid key format: expected - groupId:topicId:partition, found - {key}"
    )
