"""ConsumerGroup: one group of the consumer protocol, with the rules of Kafka 4's GroupMetadataManager (KIP-848).

The group has no I/O, no clock and no thread. A heartbeat runs up to four steps, and each of them appends records and
applies them (state.py) before the next one begins:

1. the member: joins, returns or changes its subscription (records 5, 16)
2. the group's epoch rises, if members, subscriptions or topics have changed (3)
3. the target assignment is computed for the group's epoch (7, 6)
4. the member is reconciled with its target (8, reconciliation.py)

A crash between two steps leaves a group in which the next heartbeat goes on, so the steps need not be one batch.
The response is sent when everything is synced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from kproc.broker.group.consumer.assignors import ASSIGNORS, Assignment, AssignorMember
from kproc.broker.group.consumer.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from kproc.broker.group.consumer.reconciliation import reconcile
from kproc.broker.group.consumer.records import (
    ConsumerRecord,
    ConsumerRecordKey,
    ConsumerRecordType,
    ExpressionTopics,
    GroupEpoch,
    MemberMetadata,
    MemberPhase,
    MemberState,
    MemberTarget,
    OwnedPartitions,
    TargetEpoch,
)
from kproc.broker.group.consumer.state import ConsumerGroupState, ConsumerMember
from kproc.broker.group.consumer.topics import TopicView
from kproc.common.deadlines import NEVER, Deadlines
from kproc.common.errors import ErrorCode, KafkaError

GROUP_TYPE: Final = "consumer"
# The least time between two resolutions of an expression (Kafka's REGEX_BATCH_REFRESH_MIN_INTERVAL_MS), and the time
# after which one is resolved anew because the rights of its user may have changed.
EXPRESSION_REFRESH_MIN_MS: Final = 10_000
EXPRESSION_REFRESH_MAX_MS: Final = 600_000
# The name of the deadline at which the next target assignment may be computed. Others are named by a member's id.
_ASSIGNMENT: Final = "\0assignment"


@dataclass(frozen=True)
class ConsumerEnvironment:
    """The parts of a broker that a consumer group uses."""

    topics: TopicView
    # (group id, name of a group config such as consumer.session.timeout.ms) -> the group's value or the broker's.
    setting: Callable[[str, str], int]
    assignors: Callable[[], Sequence[str]]  # group.consumer.assignors; the first one is the default.
    size_max: Callable[[], int]  # group.consumer.max.size
    # (expression, principal, host) -> the names of the topics that match and that the principal may describe.
    # Raises INVALID_REGULAR_EXPRESSION.
    match_topics: Callable[[str, str, str], frozenset[str]]
    wall_ms: Callable[[], int]
    # Appends records of a group and applies them. Raises KafkaError if they are not in the log.
    append: Callable[[ConsumerGroup, Sequence[ConsumerRecord]], None]


class ConsumerGroup:
    """One group, owned by the coordinator of its `__consumer_offsets` partition."""

    group_type: Final = GROUP_TYPE

    __slots__ = ("_deadlines", "_environment", "_resolved", "_topics_version", "state")

    def __init__(self, state: ConsumerGroupState, environment: ConsumerEnvironment) -> None:
        self.state = state
        self._environment = environment
        self._deadlines: Deadlines[str] = Deadlines()
        self._topics_version = -1  # The version of the metadata for which the group's epoch was checked.
        # Expression -> (version of the metadata, monotonic ms) of its last resolution by this coordinator.
        self._resolved: dict[str, tuple[int, int]] = {}

    @property
    def group_id(self) -> str:
        return self.state.group_id

    # -- heartbeats --------------------------------------------------------------------------------------------

    def heartbeat(self, request: ConsumerHeartbeat, now_ms: int) -> ConsumerHeartbeatResult:
        """Handle a ConsumerGroupHeartbeat, whose result may be sent when all records are synced.

        Raises KafkaError for a request that is rejected, and if a record could not be appended.
        """
        if request.member_epoch < JOIN_EPOCH:
            return self._leave(request, now_ms)
        known = self._admit(request)
        owned_before: OwnedPartitions = {} if known is None else known.state.owned
        has_changed = self._update_member(request, None if known is None else known.metadata, now_ms)
        self._update_epoch(has_changed)
        self._update_target(now_ms)
        member = self.state.members[request.member_id]
        self._reconcile(member, request.owned, now_ms)
        self._renew_session(member, now_ms)
        is_told = request.member_epoch == JOIN_EPOCH or request.is_full or member.state.owned != owned_before
        return ConsumerHeartbeatResult(
            member_id=member.member_id,
            member_epoch=member.state.epoch,
            heartbeat_interval_ms=self._environment.setting(self.group_id, "consumer.heartbeat.interval.ms"),
            assignment=_plain(member.state.owned) if is_told else None,
        )

    def _admit(self, request: ConsumerHeartbeat) -> ConsumerMember | None:
        """Return the member that sent the request; None for one that joins. Raises KafkaError if it is fenced."""
        joins = request.member_epoch == JOIN_EPOCH
        if joins and request.member_id not in self.state.members:
            size_max = self._environment.size_max()
            if len(self.state.members) >= size_max and request.instance_id not in self.state.instance_ids:
                raise KafkaError(
                    ErrorCode.GROUP_MAX_SIZE_REACHED,
                    f"The consumer group has reached its maximum capacity of {size_max} members.",
                )
        if request.instance_id is not None:
            return self._admit_static(request, request.instance_id)
        member = self.state.members.get(request.member_id)
        if not joins:
            if member is None:
                raise _unknown_member(request.member_id, self.group_id)
            _check_epoch(member.state, request)
        return member

    def _admit_static(self, request: ConsumerHeartbeat, instance_id: str) -> ConsumerMember | None:
        member_id = self.state.instance_ids.get(instance_id)
        member = None if member_id is None else self.state.members[member_id]
        if request.member_epoch != JOIN_EPOCH:
            member = self._static_member(instance_id, request.member_id)
            _check_epoch(member.state, request)
            return member
        if member is None or member.member_id == request.member_id:
            return member
        if member.state.epoch != STATIC_LEAVE_EPOCH:
            # Two processes have the same instance id, or the first one died and its session has not ended yet.
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {request.member_id} with instance id {instance_id} cannot join the group because the "
                f"instance id is owned by {member.member_id} member.",
            )
        return self._replace(member, request.member_id)

    def _replace(self, member: ConsumerMember, member_id: str) -> ConsumerMember:
        """Give the place of a static member that has left for a time to its successor, without a rebalance."""
        metadata, state = member.metadata, member.state
        target = self.state.target_of(member.member_id)
        self._append(
            [
                *((key, None) for key in self._member_keys(member.member_id)),
                (self._key(ConsumerRecordType.MEMBER, member_id), metadata),
                (self._key(ConsumerRecordType.MEMBER_TARGET, member_id), MemberTarget(target)),
                (
                    self._key(ConsumerRecordType.MEMBER_STATE, member_id),
                    MemberState(JOIN_EPOCH, JOIN_EPOCH, state.phase, state.owned, state.pending_revocation),
                ),
            ]
        )
        self._deadlines.discard(member.member_id)
        return self.state.members[member_id]

    def _static_member(self, instance_id: str, member_id: str) -> ConsumerMember:
        """Return the static member. Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another one has its place."""
        known_id = self.state.instance_ids.get(instance_id)
        if known_id is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if known_id != member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {known_id}.",
            )
        return self.state.members[known_id]

    # -- step 1: the member ------------------------------------------------------------------------------------

    def _update_member(
        self, request: ConsumerHeartbeat, metadata: MemberMetadata | None, now_ms: int
    ) -> bool:
        """Record the subscription of a member. Return True if the group's epoch must rise for it."""
        updated = _merged(metadata, request)
        records: list[ConsumerRecord] = []
        if updated != metadata:
            records.append((self._key(ConsumerRecordType.MEMBER, request.member_id), updated))
        expression = updated.topic_regex
        resolved = self._resolve(expression, request, now_ms) if expression else None
        if expression and resolved is not None:
            records.append((self._key(ConsumerRecordType.EXPRESSION, expression), resolved))
        self._append(records)
        replaced = metadata.topic_regex if metadata is not None else None
        if replaced and replaced != expression:
            self._remove_unused_expressions([replaced])
        return (
            metadata is None
            or resolved is not None
            or frozenset(updated.topic_names) != frozenset(metadata.topic_names)
            or updated.topic_regex != metadata.topic_regex
        )

    def _resolve(self, expression: str, request: ConsumerHeartbeat, now_ms: int) -> ExpressionTopics | None:
        """Return the topics that match an expression now, if these are others than before."""
        version = self._environment.topics.version
        known = self.state.expressions.get(expression)
        if known is not None and expression in self._resolved:
            resolved_version, resolved_ms = self._resolved[expression]
            age_ms = now_ms - resolved_ms
            is_old = age_ms >= EXPRESSION_REFRESH_MAX_MS
            if not is_old and (version == resolved_version or age_ms < EXPRESSION_REFRESH_MIN_MS):
                return None
        names = self._environment.match_topics(expression, request.principal, request.client_host)
        self._resolved[expression] = version, now_ms
        if known is not None and names == known.topic_names:
            return None
        return ExpressionTopics(names, version, self._environment.wall_ms())

    def _remove_unused_expressions(self, expressions: Iterable[str]) -> None:
        unused = [each for each in expressions if each and not self.state.is_expression_used(each)]
        self._append([(self._key(ConsumerRecordType.EXPRESSION, each), None) for each in unused])
        for each in unused:
            self._resolved.pop(each, None)

    # -- step 2: the epoch of the group ------------------------------------------------------------------------

    def _update_epoch(self, has_changed: bool) -> None:
        """Raise the group's epoch if `has_changed`, or if a subscribed topic was created, deleted or has grown."""
        topics = self._environment.topics
        if not has_changed and self._topics_version == topics.version:
            return
        metadata_hash = topics.metadata_hash(self.state.subscribed_names())
        if has_changed or metadata_hash != self.state.epoch.metadata_hash:
            epoch = GroupEpoch(self.state.epoch.epoch + 1, metadata_hash)
            self._append([(self._key(ConsumerRecordType.GROUP), epoch)])
        self._topics_version = topics.version

    # -- step 3: the target assignment -------------------------------------------------------------------------

    def _update_target(self, now_ms: int) -> None:
        """Compute the target assignment of the group's epoch, unless the last one is too recent (KIP-1263)."""
        state, environment = self.state, self._environment
        if state.epoch.epoch <= state.target_epoch.epoch:
            return
        wall_ms = environment.wall_ms()
        age_ms = wall_ms - state.target_epoch.timestamp_ms
        interval_ms = environment.setting(self.group_id, "consumer.assignment.interval.ms")
        # A negative age means that the host's clock was set back: then the interval is over.
        if 0 <= age_ms < interval_ms:
            self._deadlines.bring_forward(_ASSIGNMENT, now_ms + interval_ms - age_ms)
            return
        self._deadlines.discard(_ASSIGNMENT)
        assign = ASSIGNORS[self._assignor_name()]
        members = {
            member.member_id: AssignorMember(self._topic_ids(member), state.target_of(member.member_id))
            for member in state.members.values()
        }
        topic_ids = frozenset[bytes]().union(*(member.topic_ids for member in members.values()))
        targets = assign(members, {each: environment.topics.partition_count(each) for each in topic_ids})
        records: list[ConsumerRecord] = [
            (self._key(ConsumerRecordType.MEMBER_TARGET, member_id), MemberTarget(target))
            for member_id, target in targets.items()
            if target != state.target_of(member_id)
        ]
        records.append((self._key(ConsumerRecordType.TARGET), TargetEpoch(state.epoch.epoch, wall_ms)))
        self._append(records)

    def _assignor_name(self) -> str:
        """Return the assignor that most members prefer, or the broker's first one."""
        supported = self._environment.assignors()
        votes = Counter(
            member.metadata.assignor
            for member in self.state.members.values()
            if member.metadata is not None and member.metadata.assignor in supported
        )
        return max(supported, key=lambda name: votes[name])

    def _topic_ids(self, member: ConsumerMember) -> frozenset[bytes]:
        """Return the ids of the topics to which a member subscribes and that exist."""
        if member.metadata is None:
            return frozenset()
        ids = map(self._environment.topics.id_of, self.state.names_of(member.metadata))
        return frozenset(topic_id for topic_id in ids if topic_id is not None)

    # -- step 4: the partitions of the member ------------------------------------------------------------------

    def _reconcile(self, member: ConsumerMember, reported: Assignment | None, now_ms: int) -> None:
        state = reconcile(
            member.state,
            target_epoch=self.state.target_epoch.epoch,
            target=self.state.target_of(member.member_id),
            subscribed=self._topic_ids(member),
            is_free=lambda topic_id, partition: (
                self.state.owners.get((topic_id, partition), member.member_id) == member.member_id
            ),
            reported=reported,
        )
        if state is member.state:
            return
        self._append([(self._key(ConsumerRecordType.MEMBER_STATE, member.member_id), state)])
        self._start_rebalance_timeout(member, now_ms)

    def _start_rebalance_timeout(self, member: ConsumerMember, now_ms: int) -> None:
        member.rebalance_deadline_ms = None
        if member.state.phase is MemberPhase.UNREVOKED and member.metadata is not None:
            member.rebalance_deadline_ms = now_ms + member.metadata.rebalance_timeout_ms
            self._deadlines.bring_forward(member.member_id, member.rebalance_deadline_ms)

    # -- members that leave ------------------------------------------------------------------------------------

    def _leave(self, request: ConsumerHeartbeat, now_ms: int) -> ConsumerHeartbeatResult:
        if request.instance_id is not None:
            member = self._static_member(request.instance_id, request.member_id)
        elif request.member_id in self.state.members:
            member = self.state.members[request.member_id]
        else:
            raise _unknown_member(request.member_id, self.group_id)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            # Its partitions wait for its return until its session ends.
            state = msgspec.structs.replace(member.state, epoch=STATIC_LEAVE_EPOCH, pending_revocation={})
            self._append([(self._key(ConsumerRecordType.MEMBER_STATE, member.member_id), state)])
            member.rebalance_deadline_ms = None
        else:
            self.remove([member], now_ms)
        return ConsumerHeartbeatResult(member_id=request.member_id, member_epoch=request.member_epoch)

    def remove(self, members: Sequence[ConsumerMember], now_ms: int) -> None:
        """Remove members, whose partitions are free at once. The others get them by the next target assignment."""
        expressions = {member.metadata.topic_regex or "" for member in members if member.metadata is not None}
        self._append([(key, None) for member in members for key in self._member_keys(member.member_id)])
        for member in members:
            self._deadlines.discard(member.member_id)
        self._remove_unused_expressions(expressions)
        self._update_epoch(has_changed=True)

    def _member_keys(self, member_id: str) -> Iterator[ConsumerRecordKey]:
        """Yield the keys of a member's records, in the order in which Kafka writes their tombstones."""
        yield self._key(ConsumerRecordType.MEMBER_STATE, member_id)
        yield self._key(ConsumerRecordType.MEMBER_TARGET, member_id)
        yield self._key(ConsumerRecordType.MEMBER, member_id)

    # -- deadlines ---------------------------------------------------------------------------------------------

    def start_sessions(self, now_ms: int) -> None:
        """Start the sessions of a group that was loaded. A member with half of its records is removed."""
        for member in self.state.members.values():
            self._renew_session(member, now_ms)
            self._start_rebalance_timeout(member, now_ms)

    def _renew_session(self, member: ConsumerMember, now_ms: int) -> None:
        timeout_ms = self._environment.setting(self.group_id, "consumer.session.timeout.ms")
        member.session_deadline_ms = now_ms + timeout_ms
        self._deadlines.bring_forward(member.member_id, member.session_deadline_ms)

    def next_deadline_ms(self) -> int | None:
        """Return the time in ms at which `tick` must be called at the latest, or None."""
        return None if self._deadlines.first == NEVER else self._deadlines.first

    def tick(self, now_ms: int) -> None:
        """Remove members whose session or rebalance timeout is over, and compute the assignment that was put off."""
        expired: list[ConsumerMember] = []
        for name in self._deadlines.pop_due(now_ms):
            member = self.state.members.get(name)
            if member is not None:
                # Heartbeats only change the member's deadline, so the entry may be an old one.
                due_ms = member.session_deadline_ms
                if member.rebalance_deadline_ms is not None:
                    due_ms = min(due_ms, member.rebalance_deadline_ms)
                if due_ms <= now_ms:
                    expired.append(member)
                else:
                    self._deadlines.bring_forward(name, due_ms)
        if expired:
            self.remove(expired, now_ms)
        if self.state.members:
            self._update_target(now_ms)

    # -- committed offsets -------------------------------------------------------------------------------------

    def check_commit(
        self, member_id: str, epoch: int, partitions: Iterable[tuple[bytes, int]], *, is_transactional: bool
    ) -> None:
        """Raise KafkaError if a member may not commit offsets of these partitions (topic id, number).

        A member that has not yet learnt its new epoch may commit what it owned before and still owns (KIP-1251).
        """
        if epoch < 0 and not self.state.members:
            return
        if is_transactional and not member_id and epoch < 0:
            return
        member = self.state.members.get(member_id)
        if member is None:
            raise _unknown_member(member_id, self.group_id)
        if epoch == member.state.epoch:
            return
        for topic_id, partition in partitions:
            assigned_at = member.state.owned.get(topic_id, {}).get(partition)
            if epoch > member.state.epoch or assigned_at is None or not 0 <= assigned_at <= epoch:
                raise KafkaError(
                    ErrorCode.STALE_MEMBER_EPOCH,
                    f"The received member epoch {epoch} does not match the expected member epoch "
                    f"{member.state.epoch}.",
                )

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raise KafkaError if a member may not fetch committed offsets. An admin client has no member and no epoch."""
        if not member_id and epoch < 0:
            return
        member = self.state.members.get(member_id or "")
        if member is None:
            raise _unknown_member(member_id or "", self.group_id)
        if epoch != member.state.epoch:
            raise KafkaError(
                ErrorCode.STALE_MEMBER_EPOCH,
                f"The received member epoch {epoch} does not match the expected member epoch {member.state.epoch}.",
            )

    # -- views -------------------------------------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        """The state's name as ListGroups shows it."""
        if not self.state.members:
            return "Empty"
        epoch = self.state.target_epoch.epoch
        if self.state.epoch.epoch > epoch:
            return "Assigning"
        is_stable = all(
            member.state.phase is MemberPhase.STABLE and member.state.epoch == epoch
            for member in self.state.members.values()
        )
        return "Stable" if is_stable else "Reconciling"

    def describe(self) -> DescribedConsumerGroup:
        """Return the group for ConsumerGroupDescribe."""
        return DescribedConsumerGroup(
            group_id=self.group_id,
            state=self.state_name,
            group_epoch=self.state.epoch.epoch,
            assignment_epoch=self.state.target_epoch.epoch,
            assignor=self._assignor_name(),
            members=tuple(map(self._describe_member, self.state.members.values())),
        )

    def _describe_member(self, member: ConsumerMember) -> DescribedConsumer:
        metadata = member.metadata
        assert metadata is not None
        return DescribedConsumer(
            member_id=member.member_id,
            instance_id=metadata.instance_id,
            rack_id=metadata.rack_id,
            member_epoch=member.state.epoch,
            client_id=metadata.client_id,
            client_host=metadata.client_host,
            topic_names=metadata.topic_names,
            topic_regex=metadata.topic_regex,
            assignment=_plain(member.state.owned),
            target=self.state.target_of(member.member_id),
            is_classic=metadata.classic is not None,
        )

    # -- records -----------------------------------------------------------------------------------------------

    def _key(self, record_type: ConsumerRecordType, name: str = "") -> ConsumerRecordKey:
        return ConsumerRecordKey(record_type, self.group_id, name)

    def _append(self, records: Sequence[ConsumerRecord]) -> None:
        if records:
            self._environment.append(self, records)


def _merged(metadata: MemberMetadata | None, request: ConsumerHeartbeat) -> MemberMetadata:
    """Return the metadata of a member after a request, in which None means "as before"."""
    known = metadata if metadata is not None else MemberMetadata(client_id="", client_host="")
    changes: dict[str, object] = {
        "client_id": request.client_id,
        "client_host": request.client_host,
        # A member of the consumer protocol that takes the place of a classic one has no classic protocols.
        "classic": None,
    }
    if request.instance_id is not None:
        changes["instance_id"] = request.instance_id
    if request.rack_id is not None:
        changes["rack_id"] = request.rack_id
    if request.rebalance_timeout_ms != -1:
        changes["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.assignor is not None:
        changes["assignor"] = request.assignor
    if request.topic_names is not None and frozenset(request.topic_names) != frozenset(known.topic_names):
        changes["topic_names"] = tuple(sorted(set(request.topic_names)))
    if request.topic_regex is not None:
        changes["topic_regex"] = request.topic_regex or None
    return msgspec.structs.replace(known, **changes)


def _check_epoch(state: MemberState, request: ConsumerHeartbeat) -> None:
    """Raise FENCED_MEMBER_EPOCH for an epoch that the member cannot have."""
    if request.member_epoch == state.epoch:
        return
    # The member repeats the previous epoch if the response with its new one was lost.
    is_repeated = request.member_epoch < state.epoch and request.member_epoch == state.previous_epoch
    if is_repeated and request.owned is not None and _is_part(request.owned, state.owned):
        return
    order = "greater" if request.member_epoch > state.epoch else "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {order} member epoch ({request.member_epoch}) than the one known by the "
        f"group coordinator ({state.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _is_part(partitions: Assignment, owned: OwnedPartitions) -> bool:
    return all(numbers <= owned.get(topic_id, {}).keys() for topic_id, numbers in partitions.items())


def _unknown_member(member_id: str, group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")


def _plain(owned: OwnedPartitions) -> Assignment:
    return {topic_id: frozenset(epochs) for topic_id, epochs in owned.items()}


__all__ = ["GROUP_TYPE", "LEAVE_EPOCH", "ConsumerEnvironment", "ConsumerGroup"]
