"""Reconciliation of one member: the cases of Kafka's CurrentAssignmentBuilderTest, as tables.

A member has partitions of topics S and T. By default it subscribes to both, has epoch 10 and owns what `OWNED` says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from kproc.broker.coordinator.member_phase import MemberPhase
from kproc.broker.group.consumer.reconciliation import reconcile
from kproc.broker.group.consumer.records import MemberState, OwnedPartitions
from kproc.common.errors import ErrorCode, KafkaError

S, T = b"S" * 16, b"T" * 16
Partitions = Mapping[bytes, Collection[int]]
OWNED: Partitions = {S: (1, 2, 3), T: (4, 5, 6)}
KEPT: Partitions = {S: (2, 3), T: (5, 6)}
STABLE, UNREVOKED, UNRELEASED = MemberPhase.STABLE, MemberPhase.UNREVOKED, MemberPhase.UNRELEASED


def at(partitions: Partitions, epoch: int = 10) -> OwnedPartitions:
    return {topic_id: dict.fromkeys(numbers, epoch) for topic_id, numbers in partitions.items()}


def sets(partitions: Partitions) -> dict[bytes, frozenset[int]]:
    return {topic_id: frozenset(numbers) for topic_id, numbers in partitions.items()}


def member(
    phase: MemberPhase = STABLE,
    owned: Partitions = OWNED,
    pending: Partitions | None = None,
    *,
    epoch: int = 10,
) -> MemberState:
    return MemberState(epoch, epoch, phase, at(owned), at(pending or {}))


def step(
    state: MemberState,
    epoch: int,
    target: Partitions,
    reported: Partitions | None = None,
    *,
    free: bool = True,
    subscribed: Collection[bytes] = (S, T),
) -> tuple[MemberPhase, int, dict[bytes, set[int]], dict[bytes, set[int]]]:
    """Reconcile a member with a target. Return its phase, epoch, partitions, and those that it must give up."""
    found = reconcile(
        state,
        target_epoch=epoch,
        target=sets(target),
        subscribed=subscribed,
        is_free=lambda _topic_id, _partition: free,
        reported=None if reported is None else sets(reported),
    )
    assert found is state or found.previous_epoch == state.epoch
    owned, pending = (
        {topic_id: set(epochs) for topic_id, epochs in each.items()}
        for each in (found.owned, found.pending_revocation)
    )
    return found.phase, found.epoch, owned, pending


def test_member_with_its_target_moves_to_the_next_epoch() -> None:
    same = {S: {1, 2, 3}, T: {4, 5, 6}}
    assert step(member(), 11, OWNED) == (STABLE, 11, same, {})
    assert step(member(UNRELEASED), 11, OWNED, free=False) == (STABLE, 11, same, {})


@pytest.mark.parametrize("phase", [STABLE, UNRELEASED])
def test_member_gets_free_partitions_at_once(phase: MemberPhase) -> None:
    more = {S: {1, 2, 3, 4}, T: {4, 5, 6, 7}}
    assert step(member(phase), 11, more) == (STABLE, 11, more, {})


def test_partition_has_the_epoch_at_which_it_was_assigned() -> None:
    found = reconcile(
        member(),
        target_epoch=11,
        target=sets({S: (1, 2, 3, 4), T: (4, 5, 6)}),
        subscribed=(S, T),
        is_free=lambda _topic_id, _partition: True,
        reported=None,
    )
    assert found.owned[S] == {1: 10, 2: 10, 3: 10, 4: 11}


@pytest.mark.parametrize("phase", [STABLE, UNRELEASED])
def test_member_must_first_give_up_partitions(phase: MemberPhase) -> None:
    lost = {S: {1}, T: {4}}
    found = step(member(phase), 11, {S: (2, 3, 4), T: (5, 6, 7)})
    assert found == (UNREVOKED, 10, {S: {2, 3}, T: {5, 6}}, lost)


def test_member_without_the_lost_partitions_need_not_confirm() -> None:
    found = step(member(), 11, {S: (1, 2, 3), T: (4, 5, 7)}, {}, free=False)
    assert found == (UNRELEASED, 11, {S: {1, 2, 3}, T: {4, 5}}, {})


@pytest.mark.parametrize("phase", [STABLE, UNRELEASED])
def test_member_waits_for_partitions_of_others(phase: MemberPhase) -> None:
    found = step(member(phase), 11, {S: (1, 2, 3, 4), T: (4, 5, 6, 7)}, free=False)
    assert found == (UNRELEASED, 11, {S: {1, 2, 3}, T: {4, 5, 6}}, {})


def test_waiting_member_does_not_change() -> None:
    state = member(UNRELEASED, epoch=11)
    found = reconcile(
        state,
        target_epoch=11,
        target=sets({S: (1, 2, 3, 4), T: (4, 5, 6)}),
        subscribed=(S, T),
        is_free=lambda _topic_id, _partition: False,
        reported=None,
    )
    assert found is state


REVOKING = member(UNREVOKED, KEPT, {S: (1,), T: (4,)})


@pytest.mark.parametrize("reported", [None, {S: (1, 2, 3), T: (5, 6)}])
def test_member_that_has_not_confirmed_stays(reported: Partitions | None) -> None:
    found = step(REVOKING, 12, {S: (3,), T: (6,)}, reported)
    assert found == (UNREVOKED, 10, {S: {2, 3}, T: {5, 6}}, {S: {1}, T: {4}})


def test_confirmation_leads_to_the_next_step() -> None:
    kept = {S: {2, 3}, T: {5, 6}}
    assert step(REVOKING, 11, KEPT, KEPT) == (STABLE, 11, kept, {})
    assert step(REVOKING, 11, {S: (2, 3, 4), T: (5, 6, 7)}, KEPT, free=False) == (UNRELEASED, 11, kept, {})
    # The next target has other losses.
    assert step(REVOKING, 12, {S: (3,), T: (6,)}, KEPT) == (UNREVOKED, 10, {S: {3}, T: {6}}, {S: {2}, T: {5}})
    # The next target gives the partition back.
    again = {S: (1, 2, 3), T: (5, 6, 7)}
    assert step(REVOKING, 12, again, KEPT) == (STABLE, 12, {S: {1, 2, 3}, T: {5, 6, 7}}, {})


def test_member_in_an_unknown_state_must_rejoin() -> None:
    state = member(MemberPhase.UNKNOWN, {S: (3,), T: (6,)}, {S: (2,), T: (5,)}, epoch=11)
    for reported in (None, {S: (3,)}):
        with pytest.raises(KafkaError) as raised:
            step(state, 12, {S: (3,), T: (6,)}, reported)
        assert raised.value.code == ErrorCode.FENCED_MEMBER_EPOCH
    assert step(state, 12, {S: (3,), T: (6,)}, {}) == (STABLE, 12, {S: {3}, T: {6}}, {})


@pytest.mark.parametrize("epoch", [10, 11])
def test_topic_without_subscription_is_given_up_at_once(epoch: int) -> None:
    kept = {T: {4, 5, 6}}
    # The target still has the topic. At the epoch of the target the member keeps its epoch.
    confirmed = step(member(), epoch, OWNED, {T: (4, 5, 6)}, subscribed=(T,))
    assert confirmed == (STABLE, epoch, kept, {})
    owning = step(member(), epoch, OWNED, OWNED, subscribed=(T,))
    assert owning == (UNREVOKED, 10, kept, {S: {1, 2, 3}})


def test_topic_without_subscription_joins_unconfirmed_ones() -> None:
    found = step(REVOKING, 12, {S: (1, 3, 4), T: (6, 7)}, {S: (1, 2, 3), T: (4, 5, 6)}, subscribed=(T,))
    assert found == (UNREVOKED, 10, {T: {5, 6}}, {S: {1, 2, 3}, T: {4}})


def test_member_without_any_subscribed_topic_gives_up_all() -> None:
    # Its expression was not resolved yet.
    assert step(member(), 10, OWNED, OWNED, subscribed=()) == (
        UNREVOKED,
        10,
        {},
        {S: {1, 2, 3}, T: {4, 5, 6}},
    )
