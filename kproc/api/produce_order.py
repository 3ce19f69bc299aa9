"""Produce and the owners of partitions: what is asked of another Handler, and what waits for a change of the owner.

Requests of one client stay in order over such a change: see ProduceBatcher, "partitions of others". So this is no
Gather (owners.py), which asks anew for a part that came back whatever was asked since: here what comes back goes before
all that was sent behind it, whichever request that is of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from kproc.api.context import PartitionKey, Services
from kproc.api.owners import Join
from kproc.api.produce_answers import LOST, Pending, Result, failed
from kproc.errors import ErrorCode


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

    __slots__ = ("_on_reply", "_services", "acks")

    def __init__(
        self, services: Services, acks: int, count: int, on_reply: Callable[[dict[str, Any]], None]
    ) -> None:
        super().__init__([None] * count, lambda results: on_reply({"results": results}))
        self.acks = acks
        self._services = services
        self._on_reply = on_reply

    decide = Join.take

    def fail(self) -> None:
        """As if we had died."""
        self._on_reply({"lost": True})

    def bounce(self, at: int, topic_id: bytes, index: int, records: bytearray | memoryview | None) -> None:
        """Give one partition's records back."""
        self.left -= 1
        version = self._services.image.version
        self._on_reply(
            {
                "bounced": [at, topic_id, index, bytes(records or b"")],
                "image": version,
                "is_open": self.left > 0,
                "results": self.answers,
            }
        )


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

    def __call__(self, reply: dict[str, Any]) -> None:
        """What was given back waits for our image; what comes behind it waits with it."""
        self._image = max(self._image, reply.get("image", 0))
        if self._image:
            self._batcher.when_image(self._image, lambda: self._take(reply))
        else:
            self._take(reply)

    def _take(self, reply: dict[str, Any]) -> None:
        bounced = reply.get("bounced")
        if bounced is not None:
            number, topic_id, index, records = bounced
            later = Later(
                topic_id, index, bytearray(records), self._pending, self.parts[number][0], self._version
            )
            self._bounced.append(number)
            self._batcher.place(later)
        if reply.get("is_open"):
            return
        results = reply.get("results")
        if results is None:
            # The owner died, and nobody knows whether it appended. Or it is away for longer, and did not: the client
            # asks again, as of Kafka's leader that is down, and its other partitions are served meanwhile.
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if reply.get("is_away") else LOST
            results = [failed(index, code) for _, (_, index) in self.parts]
        for number, ((at, _), result) in enumerate(zip(self.parts, results, strict=True)):
            if number not in self._bounced:
                self._pending.decide(at, tuple(result))
        self._batcher.settled(self)
