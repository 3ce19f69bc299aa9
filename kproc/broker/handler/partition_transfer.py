"""PartitionTransfer: transfers partitions from one running Handler to another. One per Handler.

A change of the Handler count reaches every Handler as one delta of the metadata. The former owner *retires* a partition
that it has open: it waits for the fdatasync that requests depend on, closes the log and keeps its state. The new owner
*awaits* it: it claims the state ("take_partitions") from the former owner, and parks requests until the reply has the
state or says "not open here". It opens the log only then, so that a log has one writer at any time:

    delta   old owner: open -> retiring -> retired --state--> new owner: awaited -> open
                                             |
                          nobody claims it   +-> row names no Handler: opened from its files

- Claims and replies carry the image version of their sender. A Handler with an older image first waits for its delta.
- A former owner sends a state only to the owner by its own image. If a partition is transferred again before it has
  arrived, the state goes on to the next claimant. If it returns to its former owner, that Handler opens it again.
- The partition's row in the shared table names the Handler that has the log open (`holder`). Three kinds of owner call
  that Handler first: a new owner that the former owner rejected, a restarted Handler that missed the delta, and an
  owner by older metadata. They call it again if its successor has opened the log since.
- A Handler opens a log that no other Handler has open at its first use, or in a later duty cycle
  (deferred_openings.py).
- If the new owner dies after the reply, or the former owner before it, the log is opened from row and files, as after
  any other death.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from kproc.broker.calls.calls import OnResult
from kproc.broker.cluster.image import ClusterImage, MovedPartition, PartitionImage, TopicImage
from kproc.broker.handler.deferred_openings import DeferredOpenings
from kproc.broker.handler.partition_claims import (
    TAKE_PARTITIONS,
    Arrival,
    AskHolder,
    Claim,
    PartitionsClaimed,
    SentClaim,
    StateGiven,
    StatesGiven,
)
from kproc.broker.handler.partitions import Partitions
from kproc.broker.request.context import OnReady, PartitionKey, PartitionMoving
from kproc.broker.role.partition_table import NOBODY, PartitionRow
from kproc.common.errors import Corrupt

logger = logging.getLogger(__name__)


_CLAIMED_AT_ONCE: Final = 256  # Partitions in one claim, which is then about 6 KB.
_STATES_PER_REPLY: Final = 16  # A state is about 1 KB, and far more with many producers.
# Partitions that are closed for their next owners in one call of `retire`. Each writes a snapshot of its producers.
RETIRED_TOGETHER: Final = 20
# Time that a request waits for a partition. It is shorter than the clients' own timeouts of 30 s.
_WAIT_NS: Final = 20_000_000_000
# Time that an unclaimed state is kept. Its new owner has probably died, and row and files have the same information.
_KEEP_NS: Final = 5_000_000_000


class _Retired(NamedTuple):
    """The state of a partition that was closed for its next owner, until that Handler claims it."""

    topic_id: bytes
    state: dict[str, Any]
    since_ns: int


class PartitionTransfer:
    """The partitions that this Handler transfers to others, and those that it waits for."""

    def __init__(
        self,
        *,
        handler_index: int,
        image: Callable[[], ClusterImage],
        partitions: Partitions,
        ask: AskHolder,
        is_linked: Callable[[int], bool],
        now_ns: Callable[[], int],
    ) -> None:
        self._handler_index = handler_index
        self._image = image
        self._partitions = partitions
        self._ask = ask
        self._is_linked = is_linked
        self._now_ns = now_ns
        self._arrivals: dict[PartitionKey, Arrival] = {}
        self._retiring: dict[PartitionKey, None] = {}
        self.is_retiring = False  # True if the last call of `retire` has not reached all partitions.
        self._retired: dict[PartitionKey, _Retired] = {}
        self._claims: dict[PartitionKey, list[Claim]] = {}
        # (Handler, store count of the row): the last Handler that did not have the partition, or had died, and the row
        # when it was called. If the row still names it and has not changed, the log may be opened from its files. A
        # successor of that Handler that has opened the log since has also written the row, which changes the count.
        self._denied: dict[PartitionKey, tuple[int, int]] = {}
        self._for_image: list[tuple[int, Callable[[], None]]] = []
        self.deferred = DeferredOpenings(now_ns, self._open_deferred)
        self._contained = partitions.containment.bind_owner
        partitions.before_open = self._before_open

    @property
    def is_idle(self) -> bool:
        """True if no partition is being transferred to or from this Handler, and no log is deferred."""
        return not (
            self._arrivals or self._retiring or self._retired or self._for_image or self.deferred.waiters
        )

    # -- for the APIs ------------------------------------------------------------------------------------------

    def later(self, key: PartitionKey, on_ready: OnReady) -> None:
        """Call `on_ready` in a later duty cycle, within the time for opening logs.

        For work on a partition that takes long.
        """
        self.deferred.add(key, self._contained("an operation that waited for a partition", on_ready))

    def when_ready(self, key: PartitionKey, on_ready: OnReady) -> None:
        """Call `on_ready(True)` when a partition that raised PartitionMoving can be tried again.

        `on_ready(False)` is called instead if that takes longer than 20 s.
        """
        arrival = self._arrivals.get(key)
        if arrival is not None:
            arrival.waiters.append(self._contained("an operation that waited for a partition", on_ready))
        elif key in self.deferred.waiters:
            self.later(key, on_ready)
        else:
            on_ready(True)

    def when_image(self, version: int, on_image: Callable[[], None]) -> None:
        """Call `on_image` when our metadata have at least `version`, at once if they do.

        For a message from a Handler that has applied that version already.
        """
        if self._image().version >= version:
            on_image()
        else:
            self._for_image.append(
                (version, self._contained("an operation that waited for the metadata", on_image))
            )

    # -- the metadata changed ----------------------------------------------------------------------------------

    def on_moved(self, moved: Iterable[MovedPartition]) -> Callable[[], None]:
        """Record the transfers that the new owners of partitions require. Return a function that starts them.

        This must run before any callback of a waiting request, and calls none itself. A request that goes on and uses a
        partition that has become ours would otherwise open it from its files, while its former owner has it open.
        """
        claimed: dict[int, list[PartitionKey]] = {}
        lost: list[PartitionKey] = []
        for each in moved:
            key = (each.topic.name, each.partition.index)
            self._denied.pop(key, None)
            self._refuse_claims(key, each.topic)  # These claims came from a former owner.
            if each.partition.owner != self._handler_index:
                self._partitions.discard_damage(key)
                if self._partitions.find(key) is not None:
                    self._retiring[key] = None
                lost.append(key)
            elif key in self._retiring:
                del self._retiring[key]  # The partition returns to us before we closed it.
            elif key in self._retired:
                self._reopen(key)
            elif key in self._arrivals:
                # This log was already claimed from another Handler. If that Handler does not have it, the last owner
                # before this change does.
                self._arrivals[key].later_holder = each.owner_before
            else:
                claimed.setdefault(each.owner_before, []).append(key)
        asks = [ask for holder, keys in claimed.items() for ask in self._await(holder, keys)]
        return lambda: self._start(lost, asks)

    def _start(self, lost: Iterable[PartitionKey], asks: Iterable[Callable[[], None]]) -> None:
        for key in lost:
            # Route the waiting requests to the new owner now, before any later request of their connections.
            self._release_waiters(key)
        self.retire()
        for ask in asks:
            ask()

    def on_image(self) -> None:
        """Call back the operations that waited for this version of the metadata."""
        while self._for_image and self._for_image[0][0] <= self._image().version:
            self._for_image.pop(0)[1]()

    def discard_topic(self, topic: TopicImage) -> None:
        """Discard the states of a deleted topic's partitions, and call back the requests that wait for them."""
        for partition in topic.partitions:
            key = (topic.name, partition.index)
            self._retired.pop(key, None)
            self._denied.pop(key, None)
            if key in self._retiring:
                del self._retiring[key]
                self._partitions.abandon(key)
            self._refuse_claims(key, topic)
            self._release_waiters(key)
            self._arrivals.pop(key, None)

    # -- transfer to another Handler ---------------------------------------------------------------------------

    def retire(self) -> int:
        """Close a few retiring partitions that no request waits for, first those with claims. Return their number.

        Called again after every round of fdatasync, and in each duty cycle while `is_retiring`.
        """
        count = 0
        self.is_retiring = False
        for key in sorted(self._retiring, key=lambda key: key not in self._claims):
            if count == RETIRED_TOGETHER:
                self.is_retiring = True
                break
            topic = self._image().topics_by_name[key[0]]
            state = self._partitions.export(key, topic.topic_id)
            if state is None:
                continue  # A request waits until its records are on disk. The end of the sync round calls this again.
            count += 1
            del self._retiring[key]
            if state:
                self._retired[key] = _Retired(topic.topic_id, state, self._now_ns())
            self._answer_claims(key, topic)
        return count

    def handle_claim(self, body: PartitionsClaimed, on_reply: OnResult[StatesGiven]) -> None:
        """Handle another Handler's claim. Our image is at least as new as the claim's (OwnerCalls waits for that).

        Partitions that are still open, or still on their way to us, get their reply later.
        """
        claim = Claim(self._image, len(body.parts), on_reply)
        parts: list[StateGiven] = []
        for topic_id, index in body.parts:
            topic = self._image().topics_by_id.get(topic_id)
            state = None
            if topic is not None and topic.partitions[index].owner == body.claimer:
                key = (topic.name, index)
                if key in self._retiring or key in self._arrivals:
                    self._claims.setdefault(key, []).append(claim)
                    continue
                retired = self._retired.pop(key, None)
                state = retired.state if retired is not None else None
            parts.append((topic_id, index, state))
            if len(parts) >= _STATES_PER_REPLY:
                claim.reply(parts)
                parts = []
        if parts:
            claim.reply(parts)

    def _answer_claims(self, key: PartitionKey, topic: TopicImage) -> None:
        """Reply to the claims of a partition that is closed or has arrived. The first claimant gets its state."""
        claims = self._claims.pop(key, None)
        if not claims:
            return
        retired = self._retired.pop(key, None)
        for claim in claims:
            claim.reply([(topic.topic_id, key[1], retired.state if retired is not None else None)])
            retired = None

    def _refuse_claims(self, key: PartitionKey, topic: TopicImage) -> None:
        for claim in self._claims.pop(key, ()):
            claim.reply([(topic.topic_id, key[1], None)])

    # -- opening -----------------------------------------------------------------------------------------------

    def _open_deferred(self, key: PartitionKey) -> None:
        self._release_waiters(key)
        self._partitions.purgatory.check(key)

    # -- transfer from another Handler -------------------------------------------------------------------------

    def _before_open(self, key: PartitionKey, row: PartitionRow | None) -> None:
        """Raise PartitionMoving while another Handler may have this log open, or if its opening is deferred."""
        if key not in self._arrivals:
            if self._may_be_held(key, row):
                # This Handler was restarted after the delta that transferred the partition, so it never claimed it.
                assert row is not None
                self._claim(row.holder, [key])
            if key not in self._arrivals and not self.deferred.must_wait(key):
                self._denied.pop(key, None)
                return
        if row is None:
            raise PartitionMoving(key, -1, -1)
        # A recovering log can leave its former owner only after its first sync. Until then its row has a high watermark
        # below the one that clients saw before the crash.
        raise PartitionMoving(key, row.start_offset, -1 if row.is_recovering else row.high_watermark)

    def _may_be_held(self, key: PartitionKey, row: PartitionRow | None) -> bool:
        """Return True if the Handler in the row must be called before the log is opened here.

        This does not depend on whether we have a link to it. Its successor can have the log open before we have read
        that it was started.
        """
        if row is None or row.holder in (NOBODY, self._handler_index):
            return False
        stores = self._partitions.row_stores(self._image().topics_by_name[key[0]].partitions[key[1]])
        return self._denied.get(key) != (row.holder, stores)

    def _claim(self, holder: int, keys: list[PartitionKey]) -> None:
        for ask in self._await(holder, keys):
            ask()

    def _await(self, holder: int, keys: list[PartitionKey]) -> list[Callable[[], None]]:
        """Park requests for these partitions from now on. Return functions that send the claims to `holder`."""
        image = self._image()
        now_ns = self._now_ns()
        asks: list[Callable[[], None]] = []
        for start in range(0, len(keys), _CLAIMED_AT_ONCE):
            asked = SentClaim(self.when_image, self._arrived)
            parts: list[tuple[bytes, int]] = []
            for key in keys[start : start + _CLAIMED_AT_ONCE]:
                topic = image.topics_by_name[key[0]]
                parts.append((topic.topic_id, key[1]))
                stores = self._partitions.row_stores(topic.partitions[key[1]])
                arrival = self._arrivals[key] = Arrival(key, holder, stores, now_ns)
                asked.arrivals[topic.topic_id, key[1]] = arrival
            body = PartitionsClaimed(image.version, self._handler_index, parts)
            asks.append(partial(self._ask, holder, TAKE_PARTITIONS, body, asked))
        return asks

    def _arrived(self, arrival: Arrival, topic_id: bytes, state: dict[str, Any] | None) -> None:
        """Handle the reply of the called Handler for one partition, or its death.

        state: None if that Handler did not have the partition open, or died. The log is then opened from row and files,
        unless yet another Handler may have it.
        """
        key = arrival.key
        if self._arrivals.get(key) is not arrival:
            return  # The topic was deleted meanwhile.
        del self._arrivals[key]
        topic = self._image().topics_by_id[topic_id]
        partition = topic.partitions[key[1]]
        is_ours = partition.owner == self._handler_index
        if state is not None and is_ours:
            self._import(topic, partition, state)
        elif state is not None:
            self._retired[key] = _Retired(topic_id, state, self._now_ns())
        elif is_ours and self._asks_another(key, partition, arrival):
            return
        self._answer_claims(key, topic)
        for on_ready in arrival.waiters:
            on_ready(True)
        self._partitions.purgatory.check(key)

    def _asks_another(self, key: PartitionKey, partition: PartitionImage, arrival: Arrival) -> bool:
        """Return True if another Handler than the one that replied may have the partition. Claim it from that one."""
        holder = arrival.later_holder
        if holder is None:
            self._denied[key] = arrival.holder, arrival.row_stores
            row = self._partitions.row(partition)
            if row is None or not self._may_be_held(key, row):
                return False
            holder = row.holder
        self._claim(holder, [key])
        claimed = self._arrivals.get(key)
        if claimed is not None:
            claimed.waiters = arrival.waiters
        return claimed is not None

    def _release_waiters(self, key: PartitionKey) -> None:
        for on_ready in self.deferred.waiters.pop(key, ()):
            on_ready(True)
        arrival = self._arrivals.get(key)
        if arrival is not None:
            waiters, arrival.waiters = arrival.waiters, []
            for on_ready in waiters:
                on_ready(True)

    def _import(self, topic: TopicImage, partition: PartitionImage, state: dict[str, Any]) -> None:
        try:
            self._partitions.import_state(topic, partition, state)
        except (Corrupt, OSError) as error:
            # Do not fail the Handler. At its first use the log is opened from its files, which reports the damage to
            # the client.
            logger.error(
                "cannot open %s-%d from its transferred state, so its next use opens it from its files: %s",
                topic.name,
                partition.index,
                error,
            )

    def _reopen(self, key: PartitionKey) -> None:
        retired = self._retired.pop(key)
        topic = self._image().topics_by_name[key[0]]
        self._import(topic, topic.partitions[key[1]], retired.state)

    # -- housekeeping ------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Close retiring partitions, end waits after 20 s, and discard unclaimed states after 5 s.

        Called once a second.
        """
        # If a sync could not start, no round ends and calls `retire`. So close the remaining partitions here.
        self.retire()
        now_ns = self._now_ns()
        for arrival in list(self._arrivals.values()):
            if arrival.waiters and now_ns - arrival.since_ns > _WAIT_NS:
                waiters, arrival.waiters = arrival.waiters, []
                for on_ready in waiters:
                    on_ready(False)
        for key, retired in list(self._retired.items()):
            partition = self._image().topics_by_id[retired.topic_id].partitions[key[1]]
            # The new owner has not claimed the state in time, or has died. It then recovers the log from its files.
            if now_ns - retired.since_ns > _KEEP_NS or not self._is_linked(partition.owner):
                del self._retired[key]
                self._partitions.disown(partition)

    def close(self) -> None:
        """Open retired partitions again at a stop of the broker, so that this Handler closes their logs cleanly.

        Raises OSError if partitions are still on their way to this Handler. The stop is then not clean.
        """
        for key in list(self._retired):
            self._reopen(key)
        if self._arrivals:
            raise OSError(
                f"{len(self._arrivals)} partitions were still being transferred to this Handler, which cannot close "
                "their logs"
            )


def moved_between(before: ClusterImage, after: ClusterImage) -> list[MovedPartition]:
    """Return the partitions whose owner differs between two images. For a Handler that missed the deltas between."""
    moved: list[MovedPartition] = []
    for topic_id, topic in after.topics_by_id.items():
        known = before.topics_by_id.get(topic_id)
        if known is None:
            continue
        # Compare only the partitions that both images have. A partition that was added since has no former owner.
        for old, new in zip(known.partitions, topic.partitions, strict=False):
            if old.owner != new.owner:
                moved.append(MovedPartition(topic, new, old.owner))
    return moved
