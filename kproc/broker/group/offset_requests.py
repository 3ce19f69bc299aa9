"""OffsetRequests: requests about the committed offsets of one coordinator's groups.

A commit creates its group if there is none, so that tools and consumers that choose their own partitions need no group.
Whether a member may commit or fetch is decided by its group, by the rules of the group's protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.coordinator.rules import Code, KeyAndValue, OnCode, Timing, Write, write_error
from kproc.broker.group.classic.group import ClassicGroup
from kproc.broker.group.messages import CommitRequest
from kproc.broker.group.offsets import GroupOffsets
from kproc.broker.group.records import OffsetKey, encode_offset_key, encode_offset_value
from kproc.broker.group.removal import GroupRemoval
from kproc.common.clock import NS_PER_MS
from kproc.common.errors import ErrorCode
from kproc.common.log_rate import LogRate
from kproc.common.printable import printable

if TYPE_CHECKING:
    from kproc.broker.coordinator.coordinator_log import CoordinatorLog
    from kproc.broker.group.classic_groups import ClassicGroups
    from kproc.broker.group.coordinator import Group

logger = logging.getLogger(__name__)

# Limit of the offsets in one producer's open transaction. Its marker commits them in one step, which takes 2 us each.
PENDING_OFFSETS_MAX: Final = 20_000


class OffsetRequests:
    """The part of a GroupCoordinator that handles OffsetCommit, OffsetFetch's checks and OffsetDelete.

    `groups`, `deleting` and `offsets` are the coordinator's own. `deleting` has the groups that are being deleted.
    """

    def __init__(
        self,
        classic: ClassicGroups,
        groups: Mapping[str, Group],
        deleting: Mapping[str, OnCode],
        offsets: GroupOffsets,
        removal: GroupRemoval,
        timing: Timing,
        log: CoordinatorLog[Any],
    ) -> None:
        self._classic = classic
        self._groups = groups
        self._deleting = deleting
        self._offsets = offsets
        self._removal = removal
        self._timing = timing
        self._log = log
        self._rejection_lines = LogRate(logger, "rejected %d more TxnOffsetCommits with too many offsets")

    def commit(self, request: CommitRequest, on_done: OnCode) -> None:
        """Handle an OffsetCommit or TxnOffsetCommit. `on_done` gets one error code for all offsets, or NONE."""
        code = self._commit_refusal(request)
        if not code and not self._offsets.has_room(request.offsets, request.producer):
            code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        if code or not request.offsets:
            if not code and request.group_id not in self._groups:
                # As in Kafka, a commit without offsets creates the group, which exists until the next sweep.
                self._classic.add_unwritten(request.group_id)
            on_done(code)
            return

        def apply(number: int, record_offset: int) -> None:
            key, value = request.offsets[number]
            self._classic.group_of_offsets(request.group_id)
            self._offsets.put(key, value, record_offset, request.producer)

        records: list[KeyAndValue] = [
            (encode_offset_key(key), encode_offset_value(value)) for key, value in request.offsets
        ]
        self._log.write(Write(records, lambda error: on_done(write_error(error)), apply, request.producer))

    def _commit_refusal(self, request: CommitRequest) -> Code:
        # The group is being deleted in steps. A commit in between could survive the deletion, so the client
        # retries and then creates a new group.
        if request.group_id in self._deleting:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        producer = request.producer
        if producer is not None:
            keys = (key for key, _ in request.offsets)
            if self._offsets.pending.count_with(producer.producer_id, keys) > PENDING_OFFSETS_MAX:
                # The response has no field for a message.
                if self._rejection_lines.has_room(self._timing.now_ms() * NS_PER_MS):
                    logger.warning(
                        "group %s: rejected a TxnOffsetCommit, because a transaction can have %d offsets in a "
                        "partition of __consumer_offsets",
                        printable(request.group_id),
                        PENDING_OFFSETS_MAX,
                    )
                return ErrorCode.POLICY_VIOLATION
        group = self._groups.get(request.group_id)
        if group is not None:
            return group.commit_refusal(request, self._timing.now_ms())
        if request.generation < 0:
            return ErrorCode.NONE  # The client is a tool, or a consumer that assigns its own partitions.
        # KIP-848 introduced GROUP_ID_NOT_FOUND in v9. Older clients know ILLEGAL_GENERATION, and join again.
        return ErrorCode.GROUP_ID_NOT_FOUND if request.knows_unknown_group else ErrorCode.ILLEGAL_GENERATION

    def fetch_refusal(self, group_id: str, member_id: str | None, member_epoch: int) -> Code:
        """Return the error for an OffsetFetch of a member, or NONE.

        Only groups whose members have epochs return an error. Members of classic groups have none.
        """
        group = self._groups.get(group_id)
        # Kafka checks members at a fetch only in groups with epochs. Classic clients name no member there.
        if group is None or isinstance(group, ClassicGroup):
            return ErrorCode.NONE
        return group.fetch_refusal(member_id, member_epoch)

    def delete_offsets(
        self, group_id: str, keys: Sequence[OffsetKey], on_done: Callable[[Code, frozenset[str]], None]
    ) -> None:
        """Handle an OffsetDelete.

        `on_done` gets the error code or NONE, and the subscribed topics, which keep their offsets.
        """
        self._log.flush()
        group = self._groups.get(group_id)
        # KIP-496: offsets of a topic that a member reads must not disappear under it.
        refusal = ErrorCode.GROUP_ID_NOT_FOUND if group is None else group.offset_delete_refusal()
        if group is None or refusal:
            on_done(refusal, frozenset())
            return
        subscribed = frozenset(
            topic for topic in {key.topic for key in keys} if group.is_subscribed_to(topic)
        )
        doomed = [key for key in keys if key.topic not in subscribed and self._offsets.is_known(key)]
        self._removal.remove(doomed, lambda error: on_done(write_error(error), subscribed))
