"""The reconciliation of one member (KIP-848): from its present partitions to its target, in a safe order.

A partition has one owner at any time. A member first gives up the partitions that its target lacks, and confirms it
in a heartbeat. Until then it keeps its epoch. After that it gets partitions that others have given up, and moves to
the epoch of the target.

    STABLE at the target's epoch
      | new target
      v                     the member still owns          others still own
    lose partitions? --yes-> UNREVOKED --confirmed--> gain? --------------> UNRELEASED --released--> STABLE
      | no                                              ^                       |
      +-------------------------------------------------+                       +-- each heartbeat adds free partitions
"""

from __future__ import annotations

from collections.abc import Callable, Container

from kproc.broker.coordinator.member_phase import MemberPhase
from kproc.broker.group.consumer.assignors import Assignment
from kproc.broker.group.consumer.records import MemberState, OwnedPartitions
from kproc.common.errors import ErrorCode, KafkaError

# (topic id, partition) -> True if no other member owns the partition.
IsFree = Callable[[bytes, int], bool]


def reconcile(
    state: MemberState,
    *,
    target_epoch: int,
    target: Assignment,
    subscribed: Container[bytes],
    is_free: IsFree,
    reported: Assignment | None,
) -> MemberState:
    """Return the next state of a member; `state` itself if nothing changes.

    `subscribed` has the ids of the topics of its subscription. `reported` are the partitions that the member reports
    as owned, or None if its heartbeat does not have them. Raises FENCED_MEMBER_EPOCH for a state that a newer Kafka
    has written, unless the member reports that it owns nothing.
    """
    epoch = state.epoch
    if state.phase is MemberPhase.UNKNOWN:
        # A newer Kafka wrote this state, and the downgraded broker does not know what the member must give
        # up. Only a member without partitions is safe.
        if reported is None or reported:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The consumer group member is in a unknown state. The member must abandon all its partitions and "
                "rejoin.",
            )
        epoch = target_epoch
    is_consistent = all(topic_id in subscribed for topic_id in state.owned)
    is_waiting = state.phase is MemberPhase.UNREVOKED and _owns_any(reported, state.pending_revocation)
    if is_waiting or (state.phase is MemberPhase.STABLE and state.epoch == target_epoch):
        # If the member has unsubscribed from a topic that it owns, it must give that up before the next target is
        # computed.
        return state if is_consistent else _without_unsubscribed(state, subscribed, reported)
    wanted = {topic_id: partitions for topic_id, partitions in target.items() if topic_id in subscribed}
    return _next_state(state, epoch, target_epoch, wanted, is_free, reported)


def _next_state(
    state: MemberState,
    epoch: int,
    target_epoch: int,
    wanted: Assignment,
    is_free: IsFree,
    reported: Assignment | None,
) -> MemberState:
    owned: dict[bytes, dict[int, int]] = {}
    revoked: dict[bytes, dict[int, int]] = {}
    for topic_id, epochs in state.owned.items():
        wanted_here = wanted.get(topic_id, ())
        for partition, assigned_at in epochs.items():
            part = owned if partition in wanted_here else revoked
            part.setdefault(topic_id, {})[partition] = assigned_at
    # Keep the revoked partitions from other members while this member may still read them. Two members would read the
    # same records.
    if revoked and _owns_any(reported, revoked):
        return state.changed(
            epoch=epoch, phase=MemberPhase.UNREVOKED, owned=owned, pending_revocation=revoked
        )
    is_unreleased = False
    for topic_id, partitions in wanted.items():
        for partition in partitions - owned.get(topic_id, {}).keys():
            # The partition is owned from the target's epoch on. Commits with an older epoch are rejected for
            # it (KIP-1251).
            if is_free(topic_id, partition):
                owned.setdefault(topic_id, {})[partition] = target_epoch
            else:
                is_unreleased = True
    phase = MemberPhase.UNRELEASED if is_unreleased else MemberPhase.STABLE
    return state.changed(epoch=target_epoch, phase=phase, owned=owned, pending_revocation={})


def _without_unsubscribed(
    state: MemberState, subscribed: Container[bytes], reported: Assignment | None
) -> MemberState:
    kept = {topic_id: epochs for topic_id, epochs in state.owned.items() if topic_id in subscribed}
    revoked = {topic_id: dict(epochs) for topic_id, epochs in state.pending_revocation.items()}
    for topic_id in state.owned.keys() - kept.keys():
        revoked.setdefault(topic_id, {}).update(state.owned[topic_id])
    if _owns_any(reported, revoked):
        return state.changed(phase=MemberPhase.UNREVOKED, owned=kept, pending_revocation=revoked)
    return state.changed(owned=kept)


def _owns_any(reported: Assignment | None, partitions: OwnedPartitions) -> bool:
    """Return True if the member may still own one of the partitions.

    `reported` has the partitions that the heartbeat reports as owned. If it is None, the member may own any.
    """
    if reported is None:
        return True
    return any(
        partition in partitions.get(topic_id, ())
        for topic_id, owned in reported.items()
        for partition in owned
    )
