"""Coordinator: the interface between a coordinator's rules, for one partition of an internal topic, and its runtime.

The runtime (coordinator_runtime.py) replays the partition's log into the rules, then passes requests to them. The rules
write durable state through a `CoordinatorLog` (coordinator_log.py). Their state follows the log: it changes when a
record is appended, never before, so a failed write has nothing to undo. A request that caused or reads a change is
answered when the change is as durable as acks=all promises.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from kproc.broker.coordinator.steps import Steps
from kproc.common.errors import ErrorCode
from kproc.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage

Code = int
OnCode = Callable[[Code], None]
KeyAndValue = tuple[bytes, bytes | None]
# Applies one record to the state. Arguments: the number of the record in its write, its offset in the log.
ApplyRecord = Callable[[int, int], None]


@dataclass(frozen=True)
class KnownTopics:
    """The topics that exist or were deleted. The states of coordinators refer to topics by id or name."""

    id_of: Callable[[str], bytes | None]  # The id of the topic that has a name now, or None.
    deleted: Mapping[bytes, str]  # Id to name of the topics whose deletion is recorded.
    epoch_of: Callable[[str, int], int]  # The leader epoch of a partition, or -1.

    @classmethod
    def of(cls, image: Callable[[], ClusterImage]) -> KnownTopics:
        """Return the topics of the present metadata. Ids and epochs are looked up when they are needed."""

        def id_of(name: str) -> bytes | None:
            topic = image().topic(name)
            return topic.topic_id if topic is not None else None

        def epoch_of(name: str, index: int) -> int:
            partition = image().partition(name, index)
            return -1 if partition is None else partition.leader_epoch

        return cls(id_of, image().deleted_topics, epoch_of)

    @cached_property
    def gone(self) -> DeletedTopics:
        """The deleted topics, as they are at the first use of this property."""
        names = frozenset(name for name in self.deleted.values() if self.id_of(name) is None)
        return DeletedTopics(self.deleted, names)


class DeletedTopics(NamedTuple):
    """The topics whose deletion is recorded.

    `ids` has the ids of all of them. `names` has only the names that no existing topic has.
    """

    ids: Container[bytes]
    names: frozenset[str]

    def has(self, name: str, topic_id: bytes) -> bool:
        """Return True for a topic that was deleted. A topic without an id is identified by its name."""
        return topic_id in self.ids or (topic_id == ZERO_UUID and name in self.names)


class Producer(NamedTuple):
    """The producer in whose transaction records are written."""

    producer_id: int
    epoch: int


class Write(msgspec.Struct):
    """Records to append, and their effect on the coordinator's state. Without records it only waits for earlier writes.

    Records of a producer are appended in its transaction and count from its commit marker on.

    Only `apply` changes the state for a write. It is called for each record that is in the log, in the log's order,
    before any `on_done`. If one record is too large for a batch, no record of its write is appended. A write of several
    batches can be appended in part, for example if the disk becomes full: `apply` is called for that part, and
    `on_done` gets the error of the rest.
    """

    records: list[KeyAndValue]
    on_done: OnCode  # NONE when all records are durable, else the error.
    apply: ApplyRecord | None = None
    producer: Producer | None = None
    is_awaited: bool = True  # If False, `on_done` does not wait for the disk. A lost record is written again.


class Marker(msgspec.Struct, frozen=True, array_like=True):
    """A commit or abort of one producer's open transaction (WriteTxnMarkers, KIP-98; version: KIP-1228).

    The transaction's coordinator sends it to the owner of each partition.
    """

    producer_id: int
    epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int  # 2: the epoch is raised with each transaction, and is checked strictly.


class Timing(msgspec.Struct, frozen=True):
    """The clocks and the random numbers that coordinators use, so that tests can replace them."""

    now_ms: Callable[[], int]  # monotonic
    wall_ms: Callable[[], int]
    random_id: Callable[[], str]


class Coordinator(Protocol):
    """The rules of one partition. After an unexpected exception, the coordinator is discarded and loaded again.

    No method does work on the whole state at once. It adds this work to `steps`, which the runtime runs one by one.
    """

    @property
    def steps(self) -> Steps:
        """The work on the whole state that is not done yet. The runtime calls it step by step."""

    def replay(self, key: bytes | None, value: bytes | None, offset: int, producer: Producer | None) -> None:
        """Replay the last record of a key, or an update (coordinator_replay.py). Raises Corrupt if it cannot be read.

        value: never None, because no tombstone is replayed, except for an update that another program has written.
        offset: its place in the log. producer: set if the record belongs to a transaction that is still open at the end
        of the log.
        """

    def finish_loading(self, topics: KnownTopics) -> None:
        """Start to prepare for requests, after the replay of the whole log. Requests come once `steps` is empty."""

    def tick(self, name: str) -> None:
        """Do the work that is due at the deadline `name`, which the coordinator has set itself."""

    def topics_deleted(self, topics: KnownTopics) -> None:
        """Start to remove the state about deleted topics. From now on requests must not see that state."""

    def start_sweep(self) -> None:
        """Start a sweep over the whole state, for example for expired offsets."""

    def resign(self) -> None:
        """Append the queued writes, because another Handler takes over.

        This starts to answer waiting requests with NOT_COORDINATOR. Afterwards only `steps` may be run.
        """

    def abandon(self) -> None:
        """Answer the waiting requests with NOT_COORDINATOR, but append no queued write.

        The runtime calls this when an unexpected exception left the state half changed. It fails the queued writes, and
        the coordinator is loaded again from its log.
        """


# The coordinator of a deadline, and the name of the deadline there.
DueOf = tuple[Coordinator, str]

# The client's error code by the code of a failed append. As in Kafka, clients retry, look for the coordinator again, or
# give up.
_CODE_OF_WRITE: Final[dict[int, ErrorCode]] = {
    # These errors pass by themselves, so the client retries (Kafka's CoordinatorOperationExceptionHelper).
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    # This Handler cannot write to the partition any more, so the client looks for the coordinator again.
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    # A repeated request would fail in the same way, so the client gives up.
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def write_error(code: int) -> int:
    """Return the error code that a client gets if an append failed with `code`. Most codes are returned unchanged."""
    return _CODE_OF_WRITE.get(code, code)
