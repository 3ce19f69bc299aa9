"""Lane: the batches of one partition, their order and their sequences.

A batch gets its sequence when it is first sent and keeps it in every retry. Queued batches are in order. A batch that
the broker did not write is queued again before all batches with later sequences.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kproc.client import ClientError
from kproc.spark.encode import Draft, split

SEQUENCE_COUNT: Final = 1 << 31


class ProduceFailed(ClientError):
    """Records could not be written. The message is one line with topic and partition."""


class ProducerIdentity(NamedTuple):
    """Producer id, epoch and transactional id of a producer. Without idempotence both numbers are -1."""

    producer_id: int
    epoch: int
    transactional_id: str | None = None


NOBODY: Final = ProducerIdentity(-1, -1)


@dataclass(slots=True, eq=False)
class QueuedBatch:
    """A record batch that is queued in a lane, or in flight in a request."""

    draft: Draft
    deadline_ns: int
    order: tuple[int, ...]
    """Position in the lane. The halves of a split batch have the batch's own order and then 0 or 1."""
    identity: ProducerIdentity | None = None
    sequence: int = -1
    parts: list[bytes | memoryview] | None = None
    attempts: int = 0
    problem: str = ""

    def stamp_anew(self) -> None:
        """Discard producer id and sequence, so that the next attempt gets those of the new producer id."""
        self.identity, self.sequence, self.parts = None, -1, None


@dataclass(slots=True, eq=False)
class Lane:
    """The queue of one partition's batches. A BatchProducer owns it."""

    topic: str
    partition: int
    queued: deque[QueuedBatch] = field(default_factory=deque)
    under_way: list[QueuedBatch] = field(default_factory=list)
    batch_count: int = 0
    identity: ProducerIdentity | None = None
    next_sequence: int = 0
    window: int = 1
    not_before_ns: int = 0

    @property
    def name(self) -> str:
        """`topic-partition`, for messages."""
        return f"{self.topic}-{self.partition}"

    def append(self, draft: Draft, deadline_ns: int) -> None:
        """Enqueue a new batch after the others. `deadline_ns` is the end of its delivery timeout."""
        self.queued.append(QueuedBatch(draft, deadline_ns, (self.batch_count,)))
        self.batch_count += 1

    def dequeue(self, identity: ProducerIdentity) -> QueuedBatch:
        """Dequeue the first batch, mark it as in flight and stamp it with a sequence if it has none.

        A batch keeps its identity and sequence in every retry, so that a broker that has stored it recognises it.
        """
        batch = self.queued.popleft()
        self.under_way.append(batch)
        batch.attempts += 1
        if batch.identity is None:
            # KIP-98: a broker expects the sequences of a new producer id to begin at 0.
            if self.identity != identity:
                self.identity, self.next_sequence = identity, 0
            batch.identity = identity
            if identity is not NOBODY:
                batch.sequence = self.next_sequence
                self.next_sequence = (self.next_sequence + batch.draft.count) % SEQUENCE_COUNT
        if batch.parts is None:
            producer_id, epoch, transactional_id = batch.identity
            batch.parts = batch.draft.stamp(
                producer_id, epoch, batch.sequence, is_transactional=transactional_id is not None
            )
        return batch

    def follows_another(self, batch: QueuedBatch) -> bool:
        """Return True if an earlier batch of this lane is not acknowledged."""
        return self.under_way[0] is not batch or bool(self.queued and self.queued[0].order < batch.order)

    def requeue(self, batch: QueuedBatch) -> None:
        """Enqueue a batch again that was in flight, before all batches with later sequences.

        The lane then has one request in flight at a time, so that a later batch cannot overtake the retry.
        """
        self.under_way.remove(batch)
        at = 0
        # Insert it before later batches that are queued again already, because a broker rejects a sequence that arrives
        # before its predecessor.
        while at < len(self.queued) and self.queued[at].order < batch.order:
            at += 1
        self.queued.insert(at, batch)
        self.window = 1

    def split(self, batch: QueuedBatch) -> list[QueuedBatch]:
        """Replace a batch in flight by its two halves and return them. They share the batch's range of sequences."""
        halves = []
        sequence = batch.sequence
        for number, draft in enumerate(split(batch.draft)):
            halves.append(
                QueuedBatch(draft, batch.deadline_ns, (*batch.order, number), batch.identity, sequence)
            )
            if sequence >= 0:
                sequence = (sequence + draft.count) % SEQUENCE_COUNT
        at = self.under_way.index(batch)
        self.under_way[at : at + 1] = halves
        return halves
