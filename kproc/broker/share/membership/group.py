"""ShareGroup: one share group, with the rules of Kafka 4's GroupMetadataManager (KIP-932).

The group has no I/O, no clock and no thread. A heartbeat runs up to three steps, and each of them appends records and
applies them (state.py) before the next one begins:

1. the member joins or changes its subscription (record 10), and the group's epoch rises, if members, subscriptions,
   topics or initialized partitions have changed (11)
2. the target assignment is computed for the group's epoch (13, 12)
3. the member gets its target at once, because members do not wait for each other (14)

After a crash between two steps the next heartbeat runs the missing ones, so the records need not be one batch. The
response is sent when all records are synced. Only partitions whose state the share coordinator has are assigned;
stored_states.py has them initialized.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kproc.broker.coordinator.member_deadlines import UNSETTLED_HEARTBEAT_MS
from kproc.broker.coordinator.member_errors import group_is_full
from kproc.broker.coordinator.member_phase import JOIN_EPOCH
from kproc.broker.coordinator.recorded_group import RecordedGroup
from kproc.broker.coordinator.steps import Work
from kproc.broker.coordinator.target_computation import is_applicable
from kproc.broker.share.membership.assignor import assign_simple
from kproc.broker.share.membership.environment import ShareGroupEnvironment
from kproc.broker.share.membership.messages import DescribedShareGroup, ShareHeartbeat, ShareHeartbeatResult
from kproc.broker.share.membership.records import (
    SHARE_RECORDS,
    NamedPartitions,
    ShareAssignment,
    ShareEpoch,
    ShareMemberState,
    ShareRecord,
    ShareRecordType,
    ShareSubscription,
    ShareTarget,
    ShareTargetEpoch,
    ShareTopics,
)
from kproc.broker.share.membership.state import ShareGroupState, ShareMember
from kproc.broker.share.membership.target import (
    assignable_partitions,
    assignor_members,
    has_unassigned,
    uninitialized_partitions,
)
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.group.messages import CommitRequest

GROUP_TYPE: Final = "share"


class ShareGroup(RecordedGroup[ShareGroupState, ShareMember, ShareGroupEnvironment]):
    """One share group."""

    group_type = GROUP_TYPE
    protocol_type = GROUP_TYPE
    codec = SHARE_RECORDS
    can_expire = False  # False, because its start offsets must survive a time without members.

    __slots__ = ("_checked", "_checked_complete", "initialize_after_ms", "initialize_pause_ms")

    def __init__(self, state: ShareGroupState, environment: ShareGroupEnvironment) -> None:
        super().__init__(state, environment)
        # Pair (version of the metadata, topics with states) at the last check whether the group's epoch must rise.
        self._checked: tuple[int, ShareTopics] | None = None
        # (Version of the metadata, topics with states, record 11) at the last check in which every partition had a
        # state.
        self._checked_complete: tuple[int, ShareTopics, ShareEpoch] | None = None
        # Monotonic time (ms) from which the states of new partitions may be initialized. Far in the future while a call
        # for it is open.
        self.initialize_after_ms = 0
        self.initialize_pause_ms = 0  # The delay after the last attempt; 0 if that succeeded.

    # -- heartbeats --------------------------------------------------------------------------------------------

    def heartbeat(self, request: ShareHeartbeat, now_ms: int) -> ShareHeartbeatResult:
        """Handle a ShareGroupHeartbeat, whose result may be sent when all records are synced.

        Raises KafkaError for a request that is rejected, and if a record could not be appended.
        """
        if request.member_epoch < JOIN_EPOCH:
            self.remove([self.state.get_member(request.member_id)])
            return ShareHeartbeatResult(member_id=request.member_id, member_epoch=request.member_epoch)
        known = self._admit(request)
        assigned_before: ShareAssignment = {} if known is None else known.state.assigned
        self._update_member(request, None if known is None else known.subscription)
        member = self.state.members[request.member_id]
        # Start the session before the next steps, which can fail. A member without a session would stay in the group
        # for ever if its client never returned.
        self.renew_session(member, now_ms)
        self.update_target(now_ms)
        self._reconcile(member)
        is_full = request.member_epoch == JOIN_EPOCH or request.topic_names is not None
        is_told = is_full or member.state.assigned != assigned_before
        return ShareHeartbeatResult(
            member_id=member.member_id,
            member_epoch=member.state.epoch,
            heartbeat_interval_ms=self._heartbeat_interval_ms(member),
            assignment=member.state.assigned if is_told else None,
        )

    def _heartbeat_interval_ms(self, member: ShareMember) -> int:
        """Return the time in ms until the member's next heartbeat. It is short while the member waits for partitions.

        Kafka always returns the group's interval of 5 s. A member would learn the first assignment, which needs the
        share coordinator, only after that time.
        """
        interval_ms = self._environment.heartbeat_interval_ms(self.group_id)
        is_settled = member.state.epoch == self.state.epoch.epoch and not self.missing_states()
        return interval_ms if is_settled else min(interval_ms, UNSETTLED_HEARTBEAT_MS)

    def _admit(self, request: ShareHeartbeat) -> ShareMember | None:
        """Return the member that sent the request, or None if a new member joins.

        Raises KafkaError if the member is unknown or fenced, or if the group is full.
        """
        member = self.state.members.get(request.member_id)
        size_max = self._environment.config.group_share_max_size
        if member is None and len(self.state.members) >= size_max:
            raise group_is_full("share", size_max)
        if request.member_epoch != JOIN_EPOCH:
            member = self.state.get_member(request.member_id)
            _check_epoch(member.state, request.member_epoch)
        return member

    # -- step 1: the member and the group's epoch ----------------------------------------------------------------

    def _update_member(self, request: ShareHeartbeat, known: ShareSubscription | None) -> None:
        """Record the subscription of a member, and the group's next epoch if the change needs a new assignment.

        known: the member's subscription before this request, None for a new member.
        """
        before = ShareSubscription() if known is None else known
        names = before.topic_names
        if request.topic_names is not None and set(request.topic_names) != set(names):
            names = tuple(sorted(set(request.topic_names)))
        updated = ShareSubscription(
            rack_id=before.rack_id if request.rack_id is None else request.rack_id,
            client_id=request.client_id,
            client_host=request.client_host,
            topic_names=names,
        )
        records: list[ShareRecord] = []
        member = self.state.members.get(request.member_id)
        if updated != known:
            self.state.member_memory.check_room(
                updated.content,
                own_bytes=updated.size_without_content(self.group_id, request.member_id),
                replaced=None if member is None else member.held,
            )
            records.append((self._key(ShareRecordType.MEMBER, request.member_id), updated))
        self._append_with_epoch(
            records,
            has_changed=known is None or names != known.topic_names,
            removed=() if member is None else (member,),
            added=names,
        )

    def _append_with_epoch(
        self,
        records: Sequence[ShareRecord],
        *,
        has_changed: bool,
        removed: Sequence[ShareMember] = (),
        added: Sequence[str] = (),
    ) -> None:
        """Append records of members and the group's next epoch, if the epoch rises, in one write.

        The epoch rises if `has_changed`, or if the topics or the initialized partitions have changed. The records end
        the subscriptions of the members in `removed`, and begin one to the topics in `added`.
        """
        # Use one write. Otherwise a crash or a full disk could separate the epoch from the members, and no target would
        # be computed. A new member would get no partitions, and those of a member that left would stay unassigned.
        topics, state = self._environment.cluster.topics, self.state
        checked = topics.version, state.topics
        if not has_changed and self._checked == checked:
            self._append(records)
            return
        metadata_hash = topics.metadata_hash(state.subscribed_names(removed, added))
        # If the group's epoch is above that of the target already, a new target is computed anyway.
        is_outdated = state.epoch.epoch <= state.target_epoch.epoch and has_unassigned(state, topics)
        if has_changed or is_outdated or metadata_hash != state.epoch.metadata_hash:
            # As in Kafka 4.4, a new group is at epoch 1, and its first member raises it to 2.
            records = [*records, self._epoch_record(max(state.epoch.epoch, 1) + 1, metadata_hash)]
        self._append(records)
        self._checked = checked

    def raise_epoch(self, epoch: int) -> None:
        """Raise the group's epoch to `epoch`, because share coordinators reject state epochs below the stored one."""
        metadata_hash = self._environment.cluster.topics.metadata_hash(self.state.subscribed_names())
        self._append([self._epoch_record(epoch, metadata_hash)])

    def _epoch_record(self, epoch: int, metadata_hash: int) -> ShareRecord:
        return self._key(ShareRecordType.GROUP), ShareEpoch(epoch, metadata_hash)

    def set_topics(self, topics: ShareTopics) -> None:
        """Write record 15, the topics whose share partitions have, get or lose a state, if it has changed."""
        if topics != self.state.topics:
            self._append([(self._key(ShareRecordType.TOPICS), topics)])

    def assign(self, now_ms: int) -> None:
        """Compute the target anew, with a higher group epoch if necessary, after partitions were initialized."""
        if self.state.members:
            self._append_with_epoch([], has_changed=False)
            self.update_target(now_ms)

    def missing_states(self) -> dict[bytes, NamedPartitions]:
        """Return the partitions of subscribed topics that have no state in the share coordinator yet."""
        topics, state = self._environment.cluster.topics, self.state
        # A changed subscription raises the epoch. Without a change, a heartbeat need not visit thousands of topics.
        present = topics.version, state.topics, state.epoch
        if self._checked_complete == present:
            return {}
        missing = uninitialized_partitions(state, topics)
        self._checked_complete = None if missing else present
        return missing

    # -- step 2: the target assignment -------------------------------------------------------------------------

    def _compute_target(self, wall_ms: int) -> Work:
        state, topics, epoch = self.state, self._environment.cluster.topics, self.state.epoch.epoch
        assignable = assignable_partitions(state, topics)
        targets = yield from assign_simple(assignor_members(state, topics), assignable)
        # Discard the result if partitions were initialized meanwhile. New partitions do not raise the epoch while it is
        # above the target's, so they would stay unassigned.
        if assignable != assignable_partitions(state, topics) or not is_applicable(targets, epoch, state):
            return
        records: list[ShareRecord] = [
            (self._key(ShareRecordType.MEMBER_TARGET, member_id), ShareTarget(target))
            for member_id, target in targets.items()
            if member_id in state.members
            and (target != state.target_of(member_id) or member_id not in state.targets)
        ]
        # A target without partitions means that the share coordinator has not initialized any. Store it without a time,
        # so that the next target is computed at once.
        has_partitions = any(targets.values())
        target_epoch = ShareTargetEpoch(epoch, wall_ms if has_partitions else 0)
        records.append((self._key(ShareRecordType.TARGET), target_epoch))
        self._append(records)

    # -- step 3: the partitions of the member ------------------------------------------------------------------

    def _reconcile(self, member: ShareMember) -> None:
        """Give a member its target.

        Leave out the partitions of topics to which the member does not subscribe any more.
        """
        state, target_epoch = member.state, self.state.target_epoch.epoch
        assert member.subscription is not None
        if state.epoch != target_epoch:
            source, epoch, previous = self.state.target_of(member.member_id), target_epoch, state.epoch
        else:
            source, epoch, previous = state.assigned, state.epoch, state.previous_epoch
        topics, names = self._environment.cluster.topics, frozenset(member.subscription.topic_names)
        assigned = {
            topic_id: numbers for topic_id, numbers in source.items() if topics.name_of(topic_id) in names
        }
        if epoch != state.epoch or assigned != state.assigned:
            updated = ShareMemberState(epoch, previous, assigned)
            self._append([(self._key(ShareRecordType.MEMBER_STATE, member.member_id), updated)])

    # -- members that leave ------------------------------------------------------------------------------------

    def remove(self, members: Sequence[ShareMember]) -> None:
        tombstones = self.state.member_tombstones(member.member_id for member in members)
        self._append_with_epoch([*tombstones], has_changed=True, removed=members)
        for member in members:
            self._deadlines.discard(member.member_id)
        if not self.state.members:
            # Store the target's epoch without a time, so that the interval between assignments does not delay the next
            # member's partitions.
            target_epoch = ShareTargetEpoch(self.state.epoch.epoch)
            self._append([(self._key(ShareRecordType.TARGET), target_epoch)])

    # -- requests that a share group does not have ---------------------------------------------------------------

    def commit_refusal(self, request: CommitRequest, now_ms: int) -> int:
        """Return GROUP_ID_NOT_FOUND, the error for a commit of offsets, because a share group commits none."""
        del request, now_ms
        return ErrorCode.GROUP_ID_NOT_FOUND

    def fetch_refusal(self, member_id: str | None, epoch: int) -> int:
        """Return NONE for a fetch of committed offsets: it is no error that a share group commits none.

        Kafka's ShareGroup raises GROUP_ID_NOT_FOUND here, and OffsetFetch then shows a group without offsets. Monitors
        fetch the offsets of every group that ListGroups names.
        """
        del member_id, epoch
        return ErrorCode.NONE

    def offset_delete_refusal(self) -> int:
        """Return GROUP_ID_NOT_FOUND, the error for an OffsetDelete, because a share group commits no offsets."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    # -- views -------------------------------------------------------------------------------------------------

    def release_memory(self) -> None:
        self.state.release_memory()

    def is_subscribed_to(self, topic: str) -> bool:
        return self.state.has_topic(topic)

    def offset_expires_from_ms(self, topic: str, commit_timestamp_ms: int) -> int | None:
        """Return the wall time (ms since 1970) from which an offset's retention counts: that of its commit.

        A share group can have committed offsets from before it was a share group.
        """
        del topic
        return commit_timestamp_ms

    def describe_share(self) -> DescribedShareGroup:
        """Return the group for ShareGroupDescribe."""
        return self.state.describe()


def _check_epoch(state: ShareMemberState, epoch: int) -> None:
    """Raise FENCED_MEMBER_EPOCH unless `epoch` is the present or previous epoch of the member."""
    # The member repeats the previous epoch if the response with its new one was lost.
    if epoch in (state.epoch, state.previous_epoch):
        return
    known = f"({epoch}) than the one known by the group coordinator ({state.epoch})"
    if epoch > state.epoch:
        reason = f"The share group member has a greater member epoch {known}."
    else:
        reason = (
            f"The share group member has a smaller member epoch {known}, and it does not match the previous member "
            f"epoch ({state.previous_epoch})."
        )
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH, f"{reason} The member must abandon all its partitions and rejoin."
    )
