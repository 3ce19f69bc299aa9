"""Produce calls between Handlers, and the records that are parked while a partition moves to another Handler.

Requests of one client stay in order when the owner changes: see ProduceBatcher, "partitions of other Handlers". That is
why Produce does not use Gather (owners.py). Gather sends a returned part again at once, even if later requests are
already on their way. Here, returned records go before everything that was sent behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from kproc.broker.calls.calls import Call, ForOwner, Lost, OnResult, Reply
from kproc.broker.peers.owners import Join
from kproc.broker.produce.produce_answers import LOST, Pending, Result, failed
from kproc.broker.request.context import PartitionKey, Services
from kproc.common.errors import ErrorCode


class ProduceAsked(ForOwner):
    """The partitions of one Produce that the receiver owns, as positions in its body. The payload is the whole body."""

    version: int
    parts: list[tuple[int, int]]  # Position of the topic, and of the partition in it.


class RecordsAsked(ForOwner):
    """Records of one partition that a former owner returned. The payload is the records; their request is not sent."""

    version: int
    acks: int
    transactional_id: str | None
    topic_id: bytes
    index: int


class ProduceResults(Reply):
    """The owner's results. An open reply returns the records of one partition in `bounced` instead."""

    results: list[Result | None]
    bounced: tuple[int, bytes, int, bytes] | None = None  # Place in the call, topic id, index, records.
    image: int = 0  # Version of the owner's metadata image when it returned the records.


PRODUCE: Final = Call("produce", ProduceAsked, ProduceResults)
PRODUCE_RECORDS: Final = Call("produce_records", RecordsAsked, ProduceResults)


class Batcher(Protocol):
    """The methods of ProduceBatcher that the replies of other Handlers use."""

    def place(self, later: Later) -> None: ...
    def settled(self, reply: ForwardReply) -> None: ...
    def when_image(self, version: int, on_image: Callable[[], None]) -> None: ...


class Later(NamedTuple):
    """Records of one partition that are parked until its owner is known or its log is open.

    `records` must be writable, because the log writes the offsets into them. `at` is the partition's position in the
    request, `version` the request's API version.
    """

    topic_id: bytes
    partition: int
    records: bytearray | memoryview
    pending: Pending
    at: int
    version: int


class MovingRecords(NamedTuple):
    """Records that wait for a partition that is being transferred to this Handler."""

    batcher: Batcher
    later: Later

    def go_on(self, is_ready: bool) -> None:
        if is_ready:
            self.batcher.place(self.later)
        else:
            result = failed(self.later.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.later.pending.decide(self.later.at, result)


class Fence:
    """Records for a partition that has moved. They wait until the `left` earlier calls about it are finished."""

    __slots__ = ("key", "left", "waiting")

    def __init__(self, key: PartitionKey) -> None:
        self.key = key
        self.left = 0
        self.waiting: list[Later] = []


class Served(Join[Result | None]):
    """A Produce call of another Handler. The last reply has the results; open replies before it return records.

    Records are returned at once. Those of the next call are also returned at once and must not arrive before them.
    """

    __slots__ = ("_on_reply", "_services", "acks", "transactional_id")

    def __init__(
        self,
        services: Services,
        acks: int,
        transactional_id: str | None,
        count: int,
        on_reply: OnResult[ProduceResults],
    ) -> None:
        super().__init__([None] * count, lambda results: on_reply(ProduceResults(results)))
        self.acks = acks
        self.transactional_id = transactional_id
        self._services = services
        self._on_reply = on_reply

    decide = Join.take

    def fail(self) -> None:
        """Reply as if this Handler had died, because it is unknown which records are in the log."""
        self._on_reply(None)

    def bounce(self, at: int, topic_id: bytes, index: int, records: bytearray | memoryview | None) -> None:
        """Return one partition's records to the sender, with the version of our metadata."""
        self.left -= 1
        version = self._services.image.version
        back = at, topic_id, index, bytes(records or b"")
        self._on_reply(ProduceResults(self.answers, bounced=back, image=version, is_open=self.left > 0))


class ForwardReply:
    """Handles the replies of one forwarded call: passes results to the request and routes returned records again."""

    __slots__ = ("_batcher", "_bounced", "_image", "_pending", "_version", "fences", "parts")

    def __init__(
        self, batcher: Batcher, pending: Pending, version: int, parts: list[tuple[int, PartitionKey]]
    ) -> None:
        self._batcher = batcher
        self._pending = pending
        self._version = version
        self._image = 0
        self._bounced: list[int] = []
        self.parts = parts  # (position in the request, partition), in the order of the call.
        self.fences: list[Fence] = []

    def __call__(self, reply: ProduceResults | Lost) -> None:
        """Handle a reply. From the first returned records on, replies wait until our image is as new as the owner's.

        Before that, we would send the records to the same owner again. Later replies wait too, to keep the order.
        """
        if isinstance(reply, ProduceResults):
            self._image = max(self._image, reply.image)
        if self._image:
            self._batcher.when_image(self._image, lambda: self._take(reply))
        else:
            self._take(reply)

    def _take(self, reply: ProduceResults | Lost) -> None:
        if isinstance(reply, Lost):
            # If the owner died during the call, the outcome is unknown, so the connection must close (LOST). If it has
            # been away for some time (`is_away`), the call was never sent. The client then gets the error of a Kafka
            # leader that is down. It retries, and its other partitions go on meanwhile.
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if reply.is_away else LOST
            self._settle([failed(index, code) for _, (_, index) in self.parts])
            return
        if reply.bounced is not None:
            number, topic_id, index, records = reply.bounced
            later = Later(
                topic_id, index, bytearray(records), self._pending, self.parts[number][0], self._version
            )
            self._bounced.append(number)
            self._batcher.place(later)
        if not reply.is_open:
            self._settle(reply.results)

    def _settle(self, results: Sequence[Result | None]) -> None:
        for number, ((at, _), result) in enumerate(zip(self.parts, results, strict=True)):
            if number not in self._bounced:
                assert result is not None, "neither decided nor given back"
                self._pending.decide(at, result)
        self._batcher.settled(self)
