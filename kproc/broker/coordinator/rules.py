"""Coordinator: the interface between a coordinator's rules, for one partition of an internal topic, and its runtime.

The runtime (handler/coordinator_runtime.py) replays the partition's log into the rules, then lets requests ask them.
The rules write durable state through a `CoordinatorLog`. Their state follows the log: it changes when a record is
appended, never before, so a failed write has nothing to undo. A request that caused or reads a change is answered when
the change is as durable as acks=all promises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import msgspec

Code = int
OnCode = Callable[[Code], None]
KeyAndValue = tuple[bytes, bytes | None]


# Applies one record to the state. Arguments: the number of the record in its write, its offset in the log.
ApplyRecord = Callable[[int, int], None]


@dataclass(frozen=True)
class KnownTopics:
    """The topics of the metadata, for coordinators whose state refers to topics."""

    id_of: Callable[[str], bytes | None]  # The id of the topic that has a name now, or None.
    deleted: Mapping[bytes, str]  # Id to name of the topics whose deletion is recorded.
    epoch_of: Callable[[str, int], int]  # The leader epoch of a partition, or -1.

    @cached_property
    def deleted_names(self) -> frozenset[str]:
        """The names of the topics whose deletion is recorded. Some names may be in use again."""
        return frozenset(self.deleted.values())


class Producer(NamedTuple):
    """In whose transaction records are written."""

    producer_id: int
    epoch: int


class Write(msgspec.Struct):
    """Records to append, and their effect on the coordinator's state. Without records it only waits for earlier writes.

    Records of a producer are appended in its transaction and count from its commit marker on.

    Only `apply` changes the state for a write. It is called for each record that is in the log, in the log's order,
    before any `on_done`. A write that is too large for one batch can be appended in part: `apply` is called for that
    part, and `on_done` gets the error of the rest.
    """

    records: list[KeyAndValue]
    on_done: OnCode  # NONE when all records are durable, else the error.
    apply: ApplyRecord | None = None
    producer: Producer | None = None
    is_awaited: bool = True  # Else on_done does not wait for the disk: what is lost is written anew.


class CoordinatorLog(Protocol):
    """The owned log, as a coordinator uses it."""

    def write(self, write: Write) -> None:
        """Append in the order of the calls, at the end of the duty cycle at the latest."""

    def flush(self) -> None:
        """Append now what waits, so that the state holds it."""

    def guarded(self, callback: Callable[..., object]) -> Callable[..., None]:
        """`callback` for who calls it later: if it raises unexpectedly, the coordinator is dropped and loaded anew."""


class Timing(msgspec.Struct, frozen=True):
    """The clocks and the random numbers of coordinators."""

    now_ms: Callable[[], int]  # monotonic
    wall_ms: Callable[[], int]
    random_id: Callable[[], str]


class Coordinator(Protocol):
    """The rules of one partition. If a method raises unexpectedly, the coordinator is dropped and loaded anew."""

    def replay(self, key: bytes | None, value: bytes | None, offset: int, producer: Producer | None) -> None:
        """Replay one record, in the log's order. Corrupt if it cannot be read.

        `offset` is its place in the log, `producer` the one in whose transaction it was written.
        """

    def finish_loading(self, topics: KnownTopics) -> None:
        """The whole log was replayed: prepare to serve requests."""

    def tick(self, name: str) -> None:
        """Handle the deadline that was set under that name."""

    def topics_deleted(self, topics: KnownTopics) -> None:
        """Drop the state about deleted topics."""

    def begin_sweep(self) -> None:
        """Begin a sweep over the whole state, for example for expired offsets."""

    @property
    def is_sweeping(self) -> bool:
        """True if `sweep_some` has work."""

    def sweep_some(self) -> int:
        """Sweep a part of the state, some ms of work; return how much was done."""

    def resign(self) -> None:
        """Another Handler takes over: answer waiting requests with NOT_COORDINATOR. No method may be called
        afterwards.
        """

    def abandon(self) -> None:
        """Like `resign`, for a coordinator whose writes cannot be trusted any more."""


# What a deadline is for: whose, and its name there.
DueOf = tuple[Coordinator, str]
