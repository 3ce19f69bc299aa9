"""What the coordinator of transactions is given, and what it stores in memory about one transactional id."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kproc.config import Config
from kproc.coordinator.marker import Marker
from kproc.coordinator.rules import OnCode, Timing
from kproc.errors import KafkaError
from kproc.transaction.messages import AddRequest
from kproc.transaction.state import PartitionKey, State, Transaction

OnCodeOf = Callable[[int, int], None]  # The place of a marker among those that were sent, and its outcome.
SendMarkers = Callable[[Sequence[tuple[PartitionKey, Marker]], OnCodeOf], None]
OnId = Callable[[int], None]
OnFailure = Callable[[KafkaError], None]


class Environment(NamedTuple):
    """What a coordinator is given by the Handler that runs it."""

    config: Config
    timing: Timing
    cluster_version: Callable[[], int]  # The level of the feature transaction.version.
    new_producer_id: Callable[[OnId, OnFailure], None]
    send_markers: SendMarkers


class Waiting(NamedTuple):
    """An add that meets the end of the transaction before."""

    until_ms: int
    request: AddRequest
    on_code: OnCode


class Entry:
    """One transactional id."""

    __slots__ = ("appended", "asked", "latest", "name", "pending", "unmarked", "waiting", "writes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.appended: Transaction | None = None  # As the log has it; None until the first record.
        self.latest: Transaction | None = None  # With the writes that are on their way.
        self.pending: State | None = None
        self.writes = 0
        self.unmarked: set[PartitionKey] = set()  # Of Prepare*: who has no marker yet,
        self.asked: set[PartitionKey] = set()  # and of these whose answer has not come.
        self.waiting: deque[Waiting] = deque()
