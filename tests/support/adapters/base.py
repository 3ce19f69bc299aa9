"""The shape that every client adapter has, so that one test body serves them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol

from tests.support.records import Received, Sample
from tests.support.wait import stretched

LARGEST_MESSAGE_BYTES = 25_000_000
# Long enough for 20 MB through a slow codec on two busy cores; a hang still ends the test.
TIMEOUT_SECONDS = 240.0
# Long enough that a busy machine delivers a record in half of it.
FETCH_WAIT_MS = stretched(5_000)


class Tail(Protocol):
    """A consumer that waits at the end of a partition's log, with FETCH_WAIT_MS of long poll."""

    def __enter__(self) -> Tail:
        """Returns when the consumer is at the end and waits."""

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def next_value(self, seconds: float) -> bytes:
        """The next record's value; AssertionError when none comes."""


class ClientAdapter(Protocol):
    """One client library or tool."""

    name: str
    compressions: Sequence[str]
    # What the tool cannot send or show; the tests leave it out of the compared records.
    sends_timestamps: bool
    sends_nulls: bool

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Sample],
        *,
        compression: str = "none",
        idempotent: bool = True,
    ) -> None:
        """Send all and return when each is acknowledged by acks=all."""

    def consume(self, bootstrap: str, topic: str, counts: Mapping[int, int]) -> list[Received]:
        """Read from the start exactly `counts[partition]` records of each partition."""

    def tail(self, bootstrap: str, topic: str, partition: int) -> Tail:
        """A consumer waiting at the partition's end."""
