"""Claims: how a Handler requests the states of partitions from the Handler that has them open, and gets them.

`Claim` is a claim that was received, `SentClaim` one that was sent, until its last reply. partition_transfer.py decides
which partitions are claimed, and what happens with their states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kproc.broker.calls.calls import Call, FromImage, Lost, OnResult, Reply
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.request.context import OnReady, PartitionKey
from kproc.common.errors import FatalError

# Topic id, index, the partition's state or None.
StateGiven = tuple[bytes, int, dict[str, Any] | None]


class PartitionsClaimed(FromImage):
    """A claim: the request of a Handler for the states of partitions that another Handler has open.

    By metadata version `image` the claimer is the owner of the partitions.
    """

    claimer: int
    parts: list[tuple[bytes, int]]  # Topic id and index.


class StatesGiven(Reply):
    """A reply to a claim: the states of some of the claimed partitions, and the sender's version of the metadata."""

    image: int
    parts: list[StateGiven]


TAKE_PARTITIONS: Final = Call("take_partitions", PartitionsClaimed, StatesGiven)
# (handler, call, body, on_reply)
AskHolder = Callable[
    [int, Call[PartitionsClaimed, StatesGiven], PartitionsClaimed, Callable[[StatesGiven | Lost], None]], None
]


class Arrival:
    """A partition that another Handler may have open, and the requests that wait for it here."""

    __slots__ = ("holder", "key", "later_holder", "row_stores", "since_ns", "waiters")

    def __init__(self, key: PartitionKey, holder: int, row_stores: int, since_ns: int) -> None:
        self.key = key
        self.holder = holder
        self.row_stores = row_stores  # Store count of the partition's row when `holder` was called.
        self.since_ns = since_ns
        self.waiters: list[OnReady] = []
        # The last owner, if the partition was transferred away and back while we waited. A rejection by `holder` is
        # then about the time before that, so the last owner must be called, too.
        self.later_holder: int | None = None


class Claim:
    """A claim of another Handler that does not have its last reply yet."""

    __slots__ = ("_image", "_left", "_on_reply")

    def __init__(
        self, image: Callable[[], ClusterImage], count: int, on_reply: OnResult[StatesGiven]
    ) -> None:
        self._image = image
        self._left = count
        self._on_reply = on_reply

    def reply(self, parts: list[StateGiven]) -> None:
        """Reply with the states of some of the claimed partitions.

        parts: (topic id, index, state). A state of None means that this Handler has nothing to transfer. The
        claimer then opens the log from the partition's row and files, unless another Handler can have it open.
        """
        self._left -= len(parts)
        self._on_reply(StatesGiven(self._image().version, parts, is_open=self._left > 0))


class SentClaim:
    """A claim that this Handler has sent, until its last reply. It is the callback for the replies."""

    __slots__ = ("_arrived", "_version", "_when_image", "arrivals")

    def __init__(
        self,
        when_image: Callable[[int, Callable[[], None]], None],
        arrived: Callable[[Arrival, bytes, dict[str, Any] | None], None],
    ) -> None:
        self.arrivals: dict[tuple[bytes, int], Arrival] = {}
        self._when_image = when_image
        self._arrived = arrived
        self._version = 0

    def __call__(self, reply: StatesGiven | Lost) -> None:
        """Open the partitions whose states have arrived, or all remaining ones if the called Handler died (Lost).

        A reply from a newer metadata image waits until ours is as new, and all later replies, even Lost, wait behind
        it.
        """
        if isinstance(reply, StatesGiven):
            self._version = max(self._version, reply.image)
        self._when_image(self._version, lambda: self._handle_reply(reply))

    def _handle_reply(self, reply: StatesGiven | Lost) -> None:
        # If the called Handler died, open all remaining partitions from their rows in the shared table and their files.
        lost: list[StateGiven] = [(*each, None) for each in self.arrivals]
        for topic_id, index, state in lost if isinstance(reply, Lost) else reply.parts:
            arrival = self.arrivals.pop((topic_id, index), None)
            if arrival is None:
                continue
            try:
                self._arrived(arrival, topic_id, state)
            # End the role, because a contained exception would leave the partition's requests waiting for ever. The
            # successor claims the partition again.
            except Exception as error:
                raise FatalError(
                    f"unexpected error in the transfer of {arrival.key[0]}-{arrival.key[1]} to this Handler, which "
                    f"ends, so that its successor claims the partition again: {error!r}"
                ) from error
