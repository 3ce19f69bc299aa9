"""Appends batches of dead letters to the log of a dead letter topic, and finds the last batch of a share partition.

These functions run in the Handler that owns the partition of the dead letter topic. All batches of a share partition
have one producer id, so the log's ProducerTable knows the offset of the last one, also after a crash, a power loss or a
transfer of the log. Clients do not see producer ids.

A call is rejected unless its sender still owns the share partition's log. Without this check, a late call of a former
owner could append letters behind the batch of its successor. The successor calls with newer metadata, so this Handler
knows the new owner before it handles the successor's first call.
"""

from __future__ import annotations

import logging
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from kproc.broker.fetch.fetch_read import partition_now
from kproc.broker.peers.forwarding import Answer, OnAnswer, operation
from kproc.broker.storage.producer_state import OWN_PRODUCER_IDS, SEQUENCE_MAX
from kproc.common.errors import Corrupt, ErrorCode, KafkaError
from kproc.wire.record_batch import parse_header, stamp_sequence, walk_batch

if TYPE_CHECKING:
    from kproc.broker.cluster.image import PartitionImage
    from kproc.broker.handler.owned_partition import OwnedPartition
    from kproc.broker.request.context import Services
    from kproc.broker.storage.log import Log

logger = logging.getLogger(__name__)

APPEND_LETTERS: Final = "dead_letters"
LAST_LETTERS: Final = "last_dead_letters"
# The header of a dead letter with the offset of its record.
OFFSET_HEADER: Final = "__dlq.errors.offset"
# Limit of the decompressed bytes of a batch. DeadLetterWriter writes smaller ones.
_BATCH_BYTES_MAX: Final = 8 << 20
_OFFSET_DIGITS_MAX: Final = 19  # Of an int64.


class LetterSource(msgspec.Struct, frozen=True, array_like=True):
    """A share partition, the producer id of its dead letters, and the batch to append, which has this producer id."""

    handler: int  # The sender, which owns the log of the share partition.
    topic_id: bytes
    partition: int
    producer_id: int
    batch: bytes = b""


def letter_producer_id(name: str, state_epoch: int) -> int:
    """Return the producer id of a share partition's dead letters.

    A reset of the group's offsets raises the state epoch. Then records become dead letters once more, so the letters
    from before the reset must not be found.
    """
    digest = blake2b(f"{name}:{state_epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % OWN_PRODUCER_IDS + OWN_PRODUCER_IDS


def _failed(index: int, code: int, _message: str | None) -> Answer:
    return {"partition_index": index, "error_code": int(code), "offsets": []}


@operation(APPEND_LETTERS, _failed, LetterSource)
def append_letters(
    services: Services,
    owned: OwnedPartition,
    partition: PartitionImage,
    source: LetterSource,
    on_answer: OnAnswer,
) -> None:
    """Append a batch of dead letters to a log of this Handler. Answer when it is as durable as acks=all promises."""
    if not _is_current(services, source):
        on_answer(_failed(partition.index, ErrorCode.NOT_LEADER_OR_FOLLOWER, None))
        return
    batch = bytearray(source.batch)
    entry = owned.log.state.producers.get(source.producer_id)
    if entry is not None and entry.batches:
        stamp_sequence(batch, entry.epoch, (entry.batches[-1][0] + 1) & SEQUENCE_MAX)
    is_hidden = services.config.waits_for_sync
    (result,) = owned.log.append([memoryview(batch)], hidden_from=0 if is_hidden else None)
    if result.error_code:
        on_answer(_failed(partition.index, result.error_code, None))
        return
    owned.after_append()
    answer = _failed(partition.index, ErrorCode.NONE, None)
    _answer_when_synced(owned, answer, result.last_offset, on_answer, waits=is_hidden)


@operation(LAST_LETTERS, _failed, LetterSource)
def find_last_letters(
    services: Services,
    owned: OwnedPartition,
    partition: PartitionImage,
    source: LetterSource,
    on_answer: OnAnswer,
) -> None:
    """Answer with the offsets of the records whose letters are in the last batch of the share partition.

    The answer waits until that batch is durable. The list is empty if the log has no letters of the share partition.
    """
    if not _is_current(services, source):
        on_answer(_failed(partition.index, ErrorCode.NOT_LEADER_OR_FOLLOWER, None))
        return
    entry = owned.log.state.producers.get(source.producer_id)
    if entry is None or not entry.batches:
        on_answer(_failed(partition.index, ErrorCode.NONE, None))
        return
    last = entry.batches[-1][1]
    try:
        offsets = _offsets_in(owned.log, last, source.producer_id)
    except (KafkaError, Corrupt, OSError) as error:
        logger.warning(
            "cannot read the batch of dead letters at offset %d of %s, so this attempt to write more fails: %s",
            last,
            owned.log.state.directory.name,
            error,
        )
        on_answer(_failed(partition.index, ErrorCode.KAFKA_STORAGE_ERROR, None))
        return
    answer = {"partition_index": partition.index, "offsets": offsets}
    _answer_when_synced(owned, answer, last, on_answer, waits=services.config.waits_for_sync)


def _is_current(services: Services, source: LetterSource) -> bool:
    """Return True if the sender of a call still owns the log of the letters' share partition."""
    image = partition_now(services.image, source.topic_id, source.partition)
    return image is not None and image.owner == source.handler


def _offsets_in(log: Log, last: int, producer_id: int) -> list[int]:
    """Return the offsets of the records whose letters are in the batch that ends at `last`.

    Each letter has the offset of its record as a header. The result is empty if retention or compaction has removed the
    batch.
    """
    if last < log.state.start_offset:
        return []
    batch = log.reader.read_bytes(last, 1)
    if not batch or parse_header(batch).producer_id != producer_id:
        return []
    # A copied record can be a dead letter itself. Its headers come first, so the last one of the name counts.
    values = [dict(record.headers).get(OFFSET_HEADER) for record in walk_batch(batch, _BATCH_BYTES_MAX)]
    # A client that may write to the topic can produce a letter with any value of this header. Skip values that are no
    # offset.
    return [int(value) for value in values if value and len(value) <= _OFFSET_DIGITS_MAX and value.isdigit()]


def _answer_when_synced(
    owned: OwnedPartition, answer: Answer, last: int, on_answer: OnAnswer, *, waits: bool
) -> None:
    """Answer when the log is on the disk up to the offset `last`, or at once with kproc.flush=none."""

    def on_synced(code: int) -> None:
        on_answer({**answer, "error_code": code})

    if waits:
        owned.when_synced(last + 1, on_synced)
    else:
        on_synced(0)
