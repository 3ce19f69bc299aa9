"""Produce calls between Handlers, and the records that are parked while a partition is transferred.

Requests of one client stay in order when the owner changes: see RecordRouter, "partitions of other Handlers". That is
why Produce does not use OwnersRequest (owners.py), which sends a returned part again at once, even if later requests
are already on their way. This module routes returned records before all records that were sent after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from kproc.broker.calls.calls import Call, ForOwner, Lost, OnResult, Reply
from kproc.broker.produce.reply import LOST, Part, PendingProduce, ProduceTarget, Result, failed
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.produce.produce import RecordRouter
    from kproc.broker.request.context import PartitionKey, Services


class ProduceParts(ForOwner):
    """A call with the partitions of one Produce that the receiver owns, as positions in the request.

    The payload of the call is the body of the Produce request.
    """

    version: int
    parts: list[tuple[int, int]]  # Position of the topic, and of the partition in it.


class ReturnedRecords(ForOwner):
    """Records of one partition that a former owner returned. The payload is the records, without their request."""

    version: int
    acks: int
    transactional_id: str | None
    topic_id: bytes
    index: int


class ProduceResults(Reply):
    """Results of a forwarded Produce. Use only those of the last reply: earlier ones are `is_open` and return records.

    `returned` holds the records of one partition that has moved, for the sender to route again. The last reply has None
    as the result of each partition whose records were returned.
    """

    results: list[Result | None]
    returned: tuple[int, bytes, int, bytes] | None = None  # Position in the call, topic id, index, records.
    image: int = 0  # Version of the owner's metadata image when it returned the records.


PRODUCE: Final = Call("produce", ProduceParts, ProduceResults)
PRODUCE_RECORDS: Final = Call("produce_records", ReturnedRecords, ProduceResults)


class DeferredRecords(NamedTuple):
    """Records of one partition that are parked until its owner is known or its log is open.

    `records` must be writable, because the log writes the offsets into them. `version` is the request's API version.
    """

    topic_id: bytes
    partition: int
    records: bytearray | memoryview
    target: ProduceTarget
    version: int

    def fail(self, code: int, message: str | None = None) -> None:
        """Fail this partition of its request with an error code."""
        self.target.decide(failed(self.partition, code, message))


class ReorderGuard:
    """Records for a partition that has moved. They wait until the `left` earlier Produce calls for it are finished."""

    __slots__ = ("key", "left", "waiting")

    def __init__(self, key: PartitionKey) -> None:
        self.key = key
        self.left = 0
        self.waiting: list[DeferredRecords] = []


class ForwardedProduce(PendingProduce):
    """A Produce call of another Handler. The last reply has the results; open replies before it return records.

    Records are returned at once and not with the last reply. Otherwise the records of the sender's next call, which are
    also returned at once, could arrive before them.
    """

    __slots__ = ("_on_reply", "_services")

    def __init__(
        self,
        services: Services,
        acks: int,
        transactional_id: str | None,
        count: int,
        on_reply: OnResult[ProduceResults],
    ) -> None:
        super().__init__(acks, transactional_id, count, lambda results: on_reply(ProduceResults(results)))
        self._services = services
        self._on_reply = on_reply

    def parts(self) -> Iterator[ForwardedPart]:
        return (ForwardedPart(self, at) for at in range(len(self.answers)))

    def fail(self) -> None:
        """Reply as if this Handler had died: the sender closes the connection. It is unknown what the log contains."""
        # None is sent as the death of this Handler. The sender then closes the connection, because neither
        # success nor an error would be true.
        self._on_reply(None)

    def return_records(
        self, at: int, topic_id: bytes, index: int, records: bytearray | memoryview | None
    ) -> None:
        """Return one partition's records to the sender, with the version of our metadata."""
        self.left -= 1
        returned = at, topic_id, index, bytes(records or b"")
        version = self._services.image.version
        self._on_reply(ProduceResults(self.answers, returned=returned, image=version, is_open=self.left > 0))


class ForwardedPart(Part):
    """One partition of a Produce call of another Handler (ForwardedProduce)."""

    request: ForwardedProduce

    __slots__ = ()

    def return_records(self, topic_id: bytes, index: int, records: bytearray | memoryview | None) -> None:
        """Return this partition's records to the Handler that sent them, because the partition has moved."""
        self.request.return_records(self.at, topic_id, index, records)


class ForwardReply:
    """Handles the replies of one forwarded call: passes results to the request and routes returned records again."""

    __slots__ = ("_image", "_returned", "_router", "_version", "guards", "parts")

    def __init__(
        self, router: RecordRouter, version: int, parts: list[tuple[ProduceTarget, PartitionKey]]
    ) -> None:
        self._router = router
        self._version = version
        self._image = 0
        self._returned: set[int] = set()  # Positions in `parts` whose records were returned.
        self.parts = parts  # In the order of the call.
        self.guards: list[ReorderGuard] = []

    def __call__(self, reply: ProduceResults | Lost) -> None:
        """Handle a reply. From the first returned records on, replies wait until our image is as new as the owner's.

        Before that, we would send the records to the same owner again. Later replies wait too, to keep the order.
        """
        if isinstance(reply, ProduceResults):
            self._image = max(self._image, reply.image)
        if self._image:
            self._router.when_image(self._image, partial(self._handle, reply))
        else:
            self._handle(reply)

    def _handle(self, reply: ProduceResults | Lost) -> None:
        if isinstance(reply, Lost):
            # If the owner died during the call, the outcome is unknown, so the connection must close (LOST). If it has
            # been away for some time (`is_away`), the call was never sent. The client then gets the error of a Kafka
            # leader that is down. It retries, and its other partitions go on meanwhile.
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if reply.is_away else LOST
            self._finish([failed(index, code) for _, (_, index) in self.parts])
            return
        if reply.returned is not None:
            place, topic_id, index, records = reply.returned
            self._returned.add(place)
            target = self.parts[place][0]
            self._router.route(DeferredRecords(topic_id, index, bytearray(records), target, self._version))
        # An open reply only returns records. More results follow.
        if not reply.is_open:
            self._finish(reply.results)

    def _finish(self, results: Sequence[Result | None]) -> None:
        for place, ((target, _), result) in enumerate(zip(self.parts, results, strict=True)):
            if place not in self._returned:
                assert result is not None, "neither decided nor returned"
                target.decide(result)
        self._router.on_settled(self)
