"""ConsumerGroup: one group of the consumer protocol, with the rules of Kafka 4's GroupMetadataManager (KIP-848).

The group has no I/O, no clock and no thread. A heartbeat runs up to three steps, and each of them appends records and
applies them (state.py) before the next one begins:

1. the member joins, returns or changes its subscription (records 5, 16), and the group's epoch rises, if members,
   subscriptions or topics have changed (3)
2. the target assignment is computed for the group's epoch (7, 6). That of a large group is not ready when the heartbeat
   ends (TargetComputation), so the next heartbeat of each member continues
3. the member is reconciled with its target (8, reconciliation.py)

After a crash between two steps the next heartbeat runs the missing ones, so the records need not be one batch. The
response is sent when all records are synced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from kproc.broker.coordinator.member_deadlines import REMOVED_AT_ONCE, UNSETTLED_HEARTBEAT_MS
from kproc.broker.coordinator.member_phase import JOIN_EPOCH, NO_EPOCH, STATIC_LEAVE_EPOCH, MemberPhase
from kproc.broker.coordinator.recorded_group import RecordedGroup
from kproc.broker.coordinator.steps import Work
from kproc.broker.coordinator.target_computation import is_applicable
from kproc.broker.group.consumer.admission import admit, check_size, is_new_epoch_needed, merged
from kproc.broker.group.consumer.assignors import Assignment
from kproc.broker.group.consumer.environment import ConsumerEnvironment
from kproc.broker.group.consumer.expressions import Expressions
from kproc.broker.group.consumer.group_records import (
    absence_of_member,
    successor_records,
    target_records,
)
from kproc.broker.group.consumer.messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    DescribedConsumerGroup,
)
from kproc.broker.group.consumer.reconciliation import reconcile
from kproc.broker.group.consumer.records import (
    CONSUMER_RECORDS,
    ConsumerRecord,
    ConsumerRecordType,
    ExpressionTopics,
    GroupEpoch,
    MemberMetadata,
    OwnedPartitions,
    TargetEpoch,
    plain,
)
from kproc.broker.group.consumer.state import ConsumerGroupState, ConsumerMember
from kproc.broker.group.consumer.subscriptions import Subscriptions
from kproc.broker.group.consumer.target import compute_target
from kproc.broker.group.consumer.topics import SubscribedTopics
from kproc.broker.group.messages import CommitRequest
from kproc.broker.group.migration import can_downgrade
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.security.principal import Identity

GROUP_TYPE: Final = "consumer"


class ConsumerGroup(RecordedGroup[ConsumerGroupState, ConsumerMember, ConsumerEnvironment]):
    """One consumer group."""

    group_type = GROUP_TYPE
    protocol_type = "consumer"
    codec = CONSUMER_RECORDS
    # As in Kafka, the target without expired members is computed at the next heartbeat of any member.
    assigns_at_every_tick = False

    __slots__ = ("_expressions", "_topics_version")

    def __init__(self, state: ConsumerGroupState, environment: ConsumerEnvironment) -> None:
        super().__init__(state, environment)
        self._topics_version = -1  # The version of the metadata for which the group's epoch was checked.
        self._expressions = Expressions(state, environment)

    # -- heartbeats --------------------------------------------------------------------------------------------

    def heartbeat(self, request: ConsumerHeartbeat, now_ms: int) -> ConsumerHeartbeatResult:
        """Handle a ConsumerGroupHeartbeat, whose result may be sent when all records are synced.

        Raises KafkaError for a request that is rejected, and if a record could not be appended.
        """
        if request.member_epoch < JOIN_EPOCH:
            return self._leave(request)
        known = admit(self, request)
        owned_before: OwnedPartitions = {} if known is None else known.state.owned
        updated = merged(None if known is None else known.metadata, request)
        member = self.update_member(known, request.member_id, updated, request.client, now_ms)
        self.update_target(now_ms)
        self.reconcile(member, request.owned, now_ms)
        is_told = request.member_epoch == JOIN_EPOCH or request.is_full or member.state.owned != owned_before
        return ConsumerHeartbeatResult(
            member_id=member.member_id,
            member_epoch=member.state.epoch,
            heartbeat_interval_ms=self._heartbeat_interval_ms(member),
            assignment=plain(member.state.owned) if is_told else None,
        )

    def _heartbeat_interval_ms(self, member: ConsumerMember) -> int:
        """Return the time in ms until the member's next heartbeat. It is short while the member waits for partitions.

        Kafka always returns the group's interval of 5 s. A member would learn an assignment that comes a second later,
        or partitions that others give up, only after that time.
        """
        interval_ms = self._environment.heartbeat_interval_ms(self.group_id)
        epoch = self.state.target_epoch.epoch
        state = member.state
        is_settled = state.phase is MemberPhase.STABLE and state.epoch == epoch == self.state.epoch.epoch
        return interval_ms if is_settled else min(interval_ms, UNSETTLED_HEARTBEAT_MS)

    def becomes_classic(self) -> bool:
        """Return True if the group can become a classic one: all members are classic, and the settings permit it."""
        return can_downgrade(self.state.members.values(), self._environment.config)

    def check_size(self) -> None:
        """Raise GROUP_MAX_SIZE_REACHED if no member can be added."""
        check_size(len(self.state.members), self._environment.config)

    # -- step 1: the member and the group's epoch ----------------------------------------------------------------

    def update_member(
        self,
        known: ConsumerMember | None,
        member_id: str,
        updated: MemberMetadata,
        client: Identity,
        now_ms: int,
    ) -> ConsumerMember:
        """Record the subscription of a member, and the group's next epoch if the change needs a new assignment.

        Return the member, whose session has been restarted. `known` is the member as the group has it, or the static
        member that it replaces. It is None for a new member. `updated` is the new metadata.
        """
        if known is not None and known.member_id == member_id and self._is_unchanged(known, updated):
            self.renew_session(known, now_ms)
            return known
        self._check_memory(known, member_id, updated)
        before = None if known is None else known.metadata
        expression = updated.topic_regex
        resolved = self._expressions.resolve(expression, client, now_ms) if expression else None
        after = self.state.subscriptions
        replaced = None if known is None or known.member_id == member_id else known
        records = [] if replaced is None else [*successor_records(self.state, replaced, member_id)]
        if updated != before:
            records.append((self._key(ConsumerRecordType.MEMBER, member_id), updated))
            after = after.after([] if before is None else [before], [updated])
        expressions: Mapping[str, ExpressionTopics] = self.state.expressions
        if expression and resolved is not None:
            records.append((self._key(ConsumerRecordType.EXPRESSION, expression), resolved))
            expressions = {**expressions, expression: resolved}
        has_changed = resolved is not None or is_new_epoch_needed(
            self.state, before, updated, after, self._environment.config.group_consumer_assignors
        )
        # Append member, expression and group epoch in one batch, as in Kafka. If a crash could separate them, the group
        # could have a member for which no assignment is computed.
        self._append_with_epoch(records, after, expressions, has_changed=has_changed)
        if expression and resolved is not None:
            self._expressions.store(expression, resolved, now_ms)
        if replaced is not None:
            self._deadlines.discard(replaced.member_id)
        member = self.state.members[member_id]
        # Start the session now, because the next steps can fail. A member without a session would hold its partitions
        # for ever if it does not return.
        self.renew_session(member, now_ms)
        return member

    def _is_unchanged(self, member: ConsumerMember, updated: MemberMetadata) -> bool:
        """Return True if neither the member's metadata nor a topic has changed, as in most heartbeats.

        False for a member with an expression, because that may have to be resolved again.
        """
        return (
            updated == member.metadata
            and not updated.topic_regex
            and self._topics_version == self._environment.cluster.topics.version
        )

    def _check_memory(self, known: ConsumerMember | None, member_id: str, updated: MemberMetadata) -> None:
        """Raise KafkaError if new metadata of a member would exceed the memory limit of members."""
        if known is None or updated != known.metadata:
            self.state.member_memory.check_room(
                updated.content,
                own_bytes=updated.size_without_content(self.group_id, member_id),
                replaced=None if known is None else known.held,
            )

    def raise_epoch(self) -> None:
        """Raise the group's epoch, because its members have changed."""
        self._append_with_epoch([], self.state.subscriptions, self.state.expressions, has_changed=True)

    def _append_with_epoch(
        self,
        records: list[ConsumerRecord],
        after: Subscriptions,
        expressions: Mapping[str, ExpressionTopics],
        *,
        has_changed: bool,
    ) -> None:
        """Append records and, if it rises, the group's next epoch.

        Also delete the expressions that no member has any more. The epoch rises if `has_changed`, or if a subscribed
        topic was created, deleted or has grown. `after` and `expressions` are the group's subscriptions and expressions
        after these records.
        """
        topics = self._environment.cluster.topics
        records += [
            (self._key(ConsumerRecordType.EXPRESSION, each), None)
            for each in expressions
            if not after.has_expression(each)
        ]
        if has_changed or not self.state.is_written or self._topics_version != topics.version:
            metadata_hash = topics.metadata_hash(after.names(expressions))
            has_changed = has_changed or metadata_hash != self.state.epoch.metadata_hash
            if has_changed or not self.state.is_written:
                # As in Kafka, a group begins at epoch 1, which the subscription of its first member raises.
                epoch = max(self.state.epoch.epoch, 1) + has_changed
                records.append((self._key(ConsumerRecordType.GROUP), GroupEpoch(epoch, metadata_hash)))
        self._append(records)
        self._expressions.discard_unused()
        self._topics_version = topics.version

    # -- step 2: the target assignment -------------------------------------------------------------------------

    def _compute_target(self, wall_ms: int) -> Work:
        state, epoch = self.state, self.state.epoch.epoch
        targets = yield from compute_target(state, self._environment.cluster.topics, self._assignor_name())
        if not is_applicable(targets, epoch, state):
            return
        self._append([*target_records(state, targets, TargetEpoch(epoch, wall_ms))])

    def _assignor_name(self) -> str:
        return self.state.subscriptions.preferred_assignor(self._environment.config.group_consumer_assignors)

    # -- step 3: the partitions of the member ------------------------------------------------------------------

    def reconcile(self, member: ConsumerMember, reported: Assignment | None, now_ms: int) -> None:
        """Bring the member one step closer to its target.

        `reported` are the partitions that the member reports as owned. It is None if the request does not have them.
        """
        names = frozenset[str]() if member.metadata is None else self.state.names_of(member.metadata)
        state = reconcile(
            member.state,
            target_epoch=self.state.target_epoch.epoch,
            target=self.state.target_of(member.member_id),
            # Look up single ids instead of building the set of up to 10,000. Most heartbeats change nothing.
            subscribed=SubscribedTopics(names, self._environment.cluster.topics),
            is_free=lambda topic_id, partition: (
                self.state.owners.get((topic_id, partition), member.member_id) == member.member_id
            ),
            reported=reported,
        )
        if state is member.state:
            return
        self._append([(self._key(ConsumerRecordType.MEMBER_STATE, member.member_id), state)])
        member.rebalance_deadline_ms = None
        if state.phase is MemberPhase.UNREVOKED:
            self.start_rebalance_timeout(member, now_ms)

    # -- members that leave ------------------------------------------------------------------------------------

    def _leave(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        member = self.state.get_member(request.member_id, request.instance_id)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            self._append([absence_of_member(self.group_id, member)])
            member.rebalance_deadline_ms = None
        else:
            self.remove([member])
        return ConsumerHeartbeatResult(member_id=request.member_id, member_epoch=request.member_epoch)

    def remove(self, members: Sequence[ConsumerMember]) -> None:
        for first in range(0, len(members), REMOVED_AT_ONCE):
            self._remove(members[first : first + REMOVED_AT_ONCE])

    def _remove(self, members: Sequence[ConsumerMember]) -> None:
        removed = {member.member_id: member.metadata for member in members}
        remaining = [each for name, each in self.state.members.items() if name not in removed]
        after = self.state.subscriptions.after([each for each in removed.values() if each is not None])
        records: list[ConsumerRecord] = [*self.state.member_tombstones(removed)]
        if can_downgrade(remaining, self._environment.config):
            # The group becomes classic, so do not raise its epoch. As in Kafka, the last epoch is the generation of the
            # classic group, which rebalances at once.
            self._append(records)
        else:
            self._append_with_epoch(records, after, self.state.expressions, has_changed=True)
        for name in removed:
            self._deadlines.discard(name)
        if not remaining:
            # Write the target epoch without a time. The interval between assignments then counts as over, so that the
            # next member gets its partitions at once.
            target_epoch = TargetEpoch(self.state.epoch.epoch)
            self._append([(self._key(ConsumerRecordType.TARGET), target_epoch)])

    # -- deadlines ---------------------------------------------------------------------------------------------

    def start_sessions(self, now_ms: int) -> None:
        super().start_sessions(now_ms)
        for member in self.state.members.values():
            if member.state.phase is MemberPhase.UNREVOKED:
                self.start_rebalance_timeout(member, now_ms)
        if self.state.is_classic:
            # A crash came between the leave of the last member of the consumer protocol and the conversion of the
            # group. Schedule a tick, after which the coordinator converts the group.
            self._deadlines.schedule_assignment(now_ms)

    def renew_session(self, member: ConsumerMember, now_ms: int) -> None:
        if member.classic is None:
            timeout_ms = self._environment.session_timeout_ms(self.group_id)
        else:
            timeout_ms = member.classic.session_timeout_ms
        self._deadlines.renew_session(member, now_ms, timeout_ms)

    def start_rebalance_timeout(self, member: ConsumerMember, now_ms: int) -> None:
        """Start the member's rebalance timeout. If the member does not do its next step in that time, it is removed."""
        if member.metadata is not None:
            self._deadlines.start_rebalance_timeout(member, now_ms, member.metadata.rebalance_timeout_ms)

    # -- committed offsets -------------------------------------------------------------------------------------

    def _may_commit_late(self, member: ConsumerMember, request: CommitRequest) -> bool:
        owned, epoch = member.state.owned, request.generation
        return member.classic is None and all(
            0 <= owned.get(offset.topic_id, {}).get(key.partition, NO_EPOCH) <= epoch < member.state.epoch
            for key, offset in request.offsets
        )

    def _wrong_epoch_code(self, member: ConsumerMember) -> ErrorCode:
        # A member of the classic protocol (KIP-848, online migration) knows generations, and rejoins after this error.
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION

    # -- views -------------------------------------------------------------------------------------------------

    def release_memory(self) -> None:
        self.state.release_memory()

    def is_subscribed_to(self, topic: str) -> bool:
        return self.state.subscriptions.has_topic(topic, self.state.expressions)

    def describe_consumers(self) -> DescribedConsumerGroup:
        """Return the group for ConsumerGroupDescribe."""
        return self.state.describe(self._assignor_name())
