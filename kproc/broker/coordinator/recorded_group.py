"""RecordedGroup: the parts that consumer, share and streams groups have in common.

The state of such a group is built from its records (recorded_states.py). Its members have deadlines
(member_deadlines.py), and each epoch of the group gets a target assignment (target_computation.py). The subclasses
define the steps of a heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum, IntEnum, auto
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec

from kproc.broker.coordinator.member_deadlines import (
    REMOVED_AT_ONCE,
    TRY_AGAIN_MS,
    MemberDeadlines,
    TimedMember,
)
from kproc.broker.coordinator.record_codec import RecordCodec, RecordKey
from kproc.broker.coordinator.recorded_states import RecordedState
from kproc.broker.coordinator.steps import Work
from kproc.broker.coordinator.target_computation import TargetComputation
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.group.consumer.topics import ConsumerCluster
    from kproc.broker.group.messages import CommitRequest

logger = logging.getLogger(__name__)


class RecordedGroupEnvironment(msgspec.Struct, frozen=True):
    """The parts of a broker that a consumer, share or streams group uses. Subclasses read the configs of a group."""

    cluster: ConsumerCluster
    config: Config
    wall_ms: Callable[[], int]
    # Appends records of a group and applies them to its state. Raises KafkaError unless all are in the log.
    append: Callable[[Any, Sequence[Any]], None]

    def session_timeout_ms(self, group_id: str) -> int:
        """Return the time in ms without a heartbeat after which a member is removed."""
        raise NotImplementedError

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return the interval in ms at which members send heartbeats."""
        raise NotImplementedError

    def assignment_interval_ms(self, group_id: str) -> int:
        """Return the least time in ms between two target assignments."""
        raise NotImplementedError


class TargetProgress(Enum):
    """The result of an attempt to bring a group's target assignment up to date."""

    UP_TO_DATE = auto()
    COMPUTING = auto()  # The coordinator computes the rest in its steps.
    DELAYED = auto()  # The last target is too recent (KIP-1263).


S = TypeVar("S", bound=RecordedState[Any, Any])
M = TypeVar("M", bound=TimedMember)
E = TypeVar("E", bound=RecordedGroupEnvironment)


class RecordedGroup(Generic[S, M, E]):
    """One group, owned by the coordinator of its `__consumer_offsets` partition."""

    group_type: ClassVar[str]
    protocol_type: ClassVar[str]
    codec: ClassVar[RecordCodec[Any, Any]]
    can_expire: ClassVar[bool] = True  # True if GroupRemoval.sweep deletes an empty group without offsets.
    # False if a tick that only removes members computes no target, but leaves that to the next heartbeat.
    assigns_at_every_tick: ClassVar[bool] = True

    __slots__ = ("_deadlines", "_environment", "computation", "state")

    def __init__(self, state: S, environment: E) -> None:
        self.state = state
        self._environment = environment
        self._deadlines: MemberDeadlines[M] = MemberDeadlines()
        self.computation = TargetComputation(state.group_id, self._deadlines)

    @property
    def group_id(self) -> str:
        return self.state.group_id

    # -- the target assignment ---------------------------------------------------------------------------------

    def update_target(self, now_ms: int) -> TargetProgress:
        """Start to compute the target assignment of the group's epoch, unless the target is up to date.

        If the last target is too recent, schedule the computation (KIP-1263).
        """
        state = self.state
        if state.epoch.epoch <= state.target_epoch.epoch:
            return TargetProgress.UP_TO_DATE
        if self.computation.is_running:
            return TargetProgress.COMPUTING
        environment = self._environment
        wall_ms, last_ms = environment.wall_ms(), state.target_epoch.timestamp_ms
        interval_ms = environment.assignment_interval_ms(state.group_id)
        if self.computation.must_wait(last_ms, interval_ms, wall_ms=wall_ms, now_ms=now_ms):
            return TargetProgress.DELAYED
        is_ready = self.computation.start(self._compute_target(wall_ms), now_ms)
        return TargetProgress.UP_TO_DATE if is_ready else TargetProgress.COMPUTING

    def _compute_target(self, wall_ms: int) -> Work:
        """Compute the target assignment of the group's present epoch, and append it unless it is outdated."""
        raise NotImplementedError

    # -- members and their deadlines ---------------------------------------------------------------------------

    def remove(self, members: Sequence[M]) -> None:
        """Remove members. The next target assignment gives their partitions or tasks to others."""
        raise NotImplementedError

    def start_sessions(self, now_ms: int) -> None:
        """Start the sessions of all members of a group that was loaded."""
        for member in self.state.members.values():
            self.renew_session(member, now_ms)

    def renew_session(self, member: M, now_ms: int) -> None:
        """Restart the session of a member, because it has sent a request."""
        timeout_ms = self._environment.session_timeout_ms(self.group_id)
        self._deadlines.renew_session(member, now_ms, timeout_ms)

    def next_deadline_ms(self) -> int | None:
        """Return the time in ms at which `tick` must be called at the latest, or None if nothing has a deadline."""
        return self._deadlines.first_ms

    def tick(self, now_ms: int) -> None:
        """Remove members whose session or rebalance timeout is over, and compute a delayed assignment."""
        expired, is_assignment_due = self._deadlines.pop_due(self.state.members, now_ms, REMOVED_AT_ONCE)
        try:
            if expired:
                logger.info(
                    "%s group %s: removing %d members whose session or rebalance timeout has expired",
                    self.group_type,
                    self.group_id,
                    len(expired),
                )
                self.remove(expired)
            if self.state.members and (is_assignment_due or self.assigns_at_every_tick):
                self.update_target(now_ms)
        except KafkaError as error:
            logger.warning(
                "%s group %s: the removal of expired members or the new assignment was not written, trying again: %s",
                self.group_type,
                self.group_id,
                error.code.name,
            )
            self._deadlines.schedule_assignment(now_ms + TRY_AGAIN_MS)

    # -- views -------------------------------------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        """The state's name as ListGroups shows it."""
        return self.state.state_name

    @property
    def is_empty(self) -> bool:
        """True if the group has no members."""
        return not self.state.members

    @property
    def is_unwritten(self) -> bool:
        """True if the log has no record of the group, so that it may be removed if it has no offsets."""
        return not self.state.is_written

    @property
    def generation(self) -> int:
        """The group's epoch, which is 0 before the first record."""
        epoch: int = self.state.epoch.epoch
        return epoch

    @property
    def member_count(self) -> int:
        return len(self.state.members)

    def is_subscribed_to(self, topic: str) -> bool:
        """Return True if the group has a member that reads a topic."""
        raise NotImplementedError

    def offset_expires_from_ms(self, topic: str, commit_timestamp_ms: int) -> int | None:
        """Return the wall time in ms from which an offset's retention counts (KIP-211). None: it does not expire."""
        return None if self.is_subscribed_to(topic) else commit_timestamp_ms

    def offset_delete_refusal(self) -> int:
        """Return NONE, because OffsetDelete may delete offsets of topics that no member reads (KIP-496)."""
        return ErrorCode.NONE

    def commit_refusal(self, request: CommitRequest, now_ms: int) -> int:
        """Return the error for a commit of offsets, or NONE. A commit does not restart the member's session.

        The rules are those of validateOffsetCommit of Kafka's ConsumerGroup and StreamsGroup.
        """
        del now_ms
        is_transactional = request.producer is not None
        # Accept a commit that names no member, from a tool or from a consumer that assigns its own partitions, while
        # the group has no members. Also accept one from a transactional producer older than KIP-447, which cannot name
        # the member.
        is_unnamed = is_transactional and not request.member_id
        if request.generation < 0 and (is_unnamed or not self.state.members):
            return ErrorCode.NONE
        member = self.state.members.get(request.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        wrong_epoch = self._wrong_epoch_code(member)
        is_old_client = not is_transactional and not request.knows_unknown_group
        if is_old_client and wrong_epoch is ErrorCode.STALE_MEMBER_EPOCH:
            return ErrorCode.UNSUPPORTED_VERSION  # Before v9 the client knows no STALE_MEMBER_EPOCH.
        if request.generation == member.state.epoch or self._may_commit_late(member, request):
            return ErrorCode.NONE
        return wrong_epoch

    def _may_commit_late(self, member: M, request: CommitRequest) -> bool:
        """Return True if a commit with another epoch than the member's is valid (KIP-1251).

        It can cross the heartbeat that raised the member's epoch. It stays valid for partitions that the member has
        owned since the epoch of the commit, because no other member can have committed there.
        """
        raise NotImplementedError

    def fetch_refusal(self, member_id: str | None, epoch: int) -> int:
        """Return the error for a fetch of committed offsets, or NONE.

        Admin clients, which have neither member nor epoch, get NONE. An empty member id is that of an unknown member,
        as in Kafka (validateOffsetFetch of ConsumerGroup and StreamsGroup).
        """
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.state.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if epoch == member.state.epoch else self._wrong_epoch_code(member)

    def _wrong_epoch_code(self, _member: M) -> ErrorCode:
        """Return the error for an OffsetFetch or OffsetCommit whose epoch is not the member's."""
        return ErrorCode.STALE_MEMBER_EPOCH

    def record_keys(self) -> list[bytes]:
        """Return the encoded keys of all records of the group."""
        return [self.codec.encode(key, None)[0] for key in self.state.record_keys()]

    def release_memory(self) -> None:
        """Remove the group and its members from the memory count, because the group or its coordinator ends here.

        Do not wait until a garbage collection finds the group, because its next coordinator may be loaded before.
        """
        raise NotImplementedError

    # -- records -----------------------------------------------------------------------------------------------

    def _key(self, record_type: IntEnum, name: str = "") -> RecordKey:
        return RecordKey(record_type, self.group_id, name)

    def _append(self, records: Sequence[tuple[RecordKey, Any]]) -> None:
        if records:
            self._environment.append(self, records)
