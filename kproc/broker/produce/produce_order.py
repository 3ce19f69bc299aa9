"""Produce and the owners of partitions: what is asked of another Handler, and what waits for a change of the owner.

Requests of one client stay in order over such a change: see ProduceBatcher, "partitions of others". So this is no
Gather (owners.py), which asks anew for a part that came back whatever was asked since: here what comes back goes before
all that was sent behind it, whichever request that is of.
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
    """A Produce's partitions of one owner, by their places in its body, which goes along."""

    version: int
    parts: list[tuple[int, int]]  # Position of the topic, and of the partition in it.


class RecordsAsked(ForOwner):
    """One partition's records, which go along, without their request."""

    version: int
    acks: int
    transactional_id: str | None
    topic_id: bytes
    index: int


class ProduceResults(Reply):
    """What the owner decided. While it is open: one partition's records, that are given back."""

    results: list[Result | None]
    bounced: tuple[int, bytes, int, bytes] | None = None  # Place in the call, topic id, index, records.
    image: int = 0  # The version by which they were given back.


PRODUCE: Final = Call("produce", ProduceAsked, ProduceResults)
PRODUCE_RECORDS: Final = Call("produce_records", RecordsAsked, ProduceResults)


class Batcher(Protocol):
    """What is needed of the ProduceBatcher."""

    def place(self, later: Later) -> None: ...
    def settled(self, reply: ForwardReply) -> None: ...
    def when_image(self, version: int, on_image: Callable[[], None]) -> None: ...


class Later(NamedTuple):
    """One partition's records that wait for a change of its owner to end. Offsets are written into them."""

    topic_id: bytes
    partition: int
    records: bytearray | memoryview
    pending: Pending
    at: int
    version: int


class MovingRecords(NamedTuple):
    """Records that wait for a partition on its way to us."""

    batcher: Batcher
    later: Later

    def go_on(self, is_ready: bool) -> None:
        if is_ready:
            self.batcher.place(self.later)
        else:
            result = failed(self.later.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.later.pending.decide(self.later.at, result)


class Fence:
    """Records for a partition that moved wait until all that was sent before them is settled."""

    __slots__ = ("key", "left", "waiting")

    def __init__(self, key: PartitionKey) -> None:
        self.key = key
        self.left = 0
        self.waiting: list[Later] = []


class Served(Join[Result | None]):
    """What another Handler asked of us: results in the last reply, what goes back in replies before it.

    Records go back at once: the next request's come back at once, too, and must not be the first.
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
        """As if we had died."""
        self._on_reply(None)

    def bounce(self, at: int, topic_id: bytes, index: int, records: bytearray | memoryview | None) -> None:
        """Give one partition's records back."""
        self.left -= 1
        version = self._services.image.version
        back = at, topic_id, index, bytes(records or b"")
        self._on_reply(ProduceResults(self.answers, bounced=back, image=version, is_open=self.left > 0))


class ForwardReply:
    """Puts an owner's results into the request that waits for them."""

    __slots__ = ("_batcher", "_bounced", "_image", "_pending", "_version", "fences", "parts")

    def __init__(
        self, batcher: Batcher, pending: Pending, version: int, parts: list[tuple[int, PartitionKey]]
    ) -> None:
        self._batcher = batcher
        self._pending = pending
        self._version = version
        self._image = 0
        self._bounced: list[int] = []
        self.parts = parts  # Place in the request, and which partition it is.
        self.fences: list[Fence] = []

    def __call__(self, reply: ProduceResults | Lost) -> None:
        """What was given back waits for our image; what comes behind it waits with it."""
        if isinstance(reply, ProduceResults):
            self._image = max(self._image, reply.image)
        if self._image:
            self._batcher.when_image(self._image, lambda: self._take(reply))
        else:
            self._take(reply)

    def _take(self, reply: ProduceResults | Lost) -> None:
        if isinstance(reply, Lost):
            # The owner died, and nobody knows whether it appended. Or it is away for longer, and did not: the client
            # asks again, as of Kafka's leader that is down, and its other partitions are served meanwhile.
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
