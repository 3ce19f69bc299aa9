"""Cases of Kafka's GroupMetadataManagerTest that no other test of ours has (tests/UPSTREAM.md)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kproc.broker.coordinator.member_phase import MemberPhase
from kproc.broker.group.consumer.messages import ConsumerHeartbeat
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.consumer_groups import GroupRig, HonestMember, settle, topic_id

T, U = topic_id("t"), topic_id("u")


@pytest.fixture
def rig() -> GroupRig:
    rig = GroupRig()
    rig.set_topics({"t": 4, "u": 2})
    return rig


def epoch(rig: GroupRig) -> int:
    return rig.group.state.epoch.epoch


def phase(rig: GroupRig, member_id: str) -> MemberPhase:
    return rig.group.state.members[member_id].state.phase


def in_phase(rig: GroupRig, wanted: MemberPhase) -> HonestMember:
    """Return a member of a group of two, in this phase."""
    first, second = HonestMember(rig, "a"), HonestMember(rig, "b")
    settle([first])
    second.heartbeat()
    first.heartbeat()
    if wanted is MemberPhase.STABLE:
        settle([first, second])
    member = second if wanted is MemberPhase.UNRELEASED else first
    assert phase(rig, member.member_id) is wanted
    return member


PHASES = (MemberPhase.STABLE, MemberPhase.UNREVOKED, MemberPhase.UNRELEASED)


@pytest.mark.parametrize("wanted", PHASES)
def test_member_rejoins_with_epoch_0_in_every_phase(rig: GroupRig, wanted: MemberPhase) -> None:
    """It owns nothing, so it is at the epoch of the target at once, and the group's epoch stays as it is."""
    member = in_phase(rig, wanted)
    before = epoch(rig)
    result = member.rejoin()
    assert result.member_epoch == epoch(rig) == before == 3
    expected = {} if wanted is MemberPhase.UNRELEASED else {T: {0, 1}}
    assert result.assignment == expected


@pytest.mark.parametrize("wanted", PHASES)
def test_repeated_full_heartbeat_gets_the_same_response(rig: GroupRig, wanted: MemberPhase) -> None:
    request = in_phase(rig, wanted).request()
    first = rig.group.heartbeat(request, rig.now_ms)
    count = len(rig.log)
    assert rig.group.heartbeat(request, rig.now_ms) == first
    assert len(rig.log) == count
    assert first.assignment is not None


def test_repeated_confirmation_gets_the_same_response(rig: GroupRig) -> None:
    member = in_phase(rig, MemberPhase.UNREVOKED)
    request = replace(member.request(), owned={T: frozenset({0, 1})})
    first = rig.group.heartbeat(request, rig.now_ms)
    count = len(rig.log)
    assert (first.member_epoch, phase(rig, "a")) == (3, MemberPhase.STABLE)
    # Its epoch is the previous one now, and what it owns is a part of its assignment.
    assert rig.group.heartbeat(request, rig.now_ms) == first
    assert len(rig.log) == count


def test_other_subscription_raises_the_epoch(rig: GroupRig) -> None:
    member = HonestMember(rig, "a")
    settle([member])
    member.topics = ("t", "u")
    result = member.heartbeat()
    assert (result.member_epoch, result.assignment) == (3, {T: {0, 1, 2, 3}, U: {0, 1}})


def test_deleted_topic_is_given_up(rig: GroupRig) -> None:
    member = HonestMember(rig, "a")
    settle([member])
    rig.set_topics({"u": 2})
    result = rig.group.heartbeat(ConsumerHeartbeat(member_id="a", member_epoch=2), rig.now_ms)
    assert (result.member_epoch, result.assignment) == (2, {})
    assert (epoch(rig), rig.group.state.epoch.metadata_hash) == (3, 0)
    assert phase(rig, "a") is MemberPhase.UNREVOKED


def test_topics_of_a_member_that_left_leave_the_hash(rig: GroupRig) -> None:
    first, second = HonestMember(rig, "a"), HonestMember(rig, "b", topics=("t", "u"))
    settle([first])
    before = rig.group.state.epoch.metadata_hash
    settle([first, second])
    assert rig.group.state.epoch.metadata_hash != before
    second.leave()
    assert (rig.group.state.epoch.metadata_hash, epoch(rig)) == (before, 4)


@pytest.mark.parametrize("topics", [("t",), ("t", "u")])
def test_static_member_returns_with_its_subscription(rig: GroupRig, topics: tuple[str, ...]) -> None:
    """Another subscription than that of its predecessor raises the epoch, the same one does not."""
    first, other = HonestMember(rig, "a", instance_id="i"), HonestMember(rig, "b")
    settle([first, other])
    settle([first, other])
    before, owned = epoch(rig), first.owned[T]
    first.leave(-2)
    assert epoch(rig) == before
    # As in Kafka, the successor may commit offsets whatever epoch it names below its own.
    assert set(rig.group.state.members["a"].state.owned[T].values()) == {0}
    successor = HonestMember(rig, "c", topics=topics, instance_id="i")
    result = successor.heartbeat()
    assert result.assignment is not None
    assert result.assignment == ({T: {0}, U: {0, 1}} if "u" in topics else {T: owned})
    assert epoch(rig) == before + ("u" in topics)


def test_static_members_return_with_another_assignor(rig: GroupRig) -> None:
    members = [HonestMember(rig, name, instance_id=name, assignor="uniform") for name in "abc"]
    settle(members)
    settle(members)
    before = epoch(rig)
    for member in members:
        member.leave(-2)
    HonestMember(rig, "b2", instance_id="b", assignor="range").heartbeat()
    assert epoch(rig) == before
    result = HonestMember(rig, "c2", instance_id="c", assignor="range").heartbeat()
    assert result.member_epoch == epoch(rig) == before + 1


@pytest.mark.parametrize("member_epoch", [0, -2])
def test_static_member_returns_with_its_member_id(rig: GroupRig, member_epoch: int) -> None:
    """Let a static member return, which left for a time or is still active: it gets its partitions back."""
    member = HonestMember(rig, "a", instance_id="i")
    settle([member])
    if member_epoch == -2:
        member.leave(-2)
    assert member.rejoin().assignment == {T: {0, 1, 2, 3}}
    assert rig.group.state.instance_ids == {"i": "a"}
    assert epoch(rig) == 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member_id": "b", "instance_id": "j", "member_epoch": 10}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "b", "instance_id": "i", "member_epoch": 11}, ErrorCode.FENCED_INSTANCE_ID),
        ({"member_id": "a", "instance_id": "j", "member_epoch": -2}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "b", "instance_id": "i", "member_epoch": -2}, ErrorCode.FENCED_INSTANCE_ID),
        ({"member_id": "a", "instance_id": "i", "member_epoch": 200}, ErrorCode.FENCED_MEMBER_EPOCH),
        ({"member_id": "a", "instance_id": "i", "member_epoch": 1}, ErrorCode.FENCED_MEMBER_EPOCH),
    ],
)
def test_wrong_static_member_is_rejected(rig: GroupRig, fields: dict[str, Any], code: ErrorCode) -> None:
    settle([HonestMember(rig, "a", instance_id="i")])
    count = len(rig.log)
    with pytest.raises(KafkaError) as raised:
        rig.group.heartbeat(ConsumerHeartbeat(**fields), rig.now_ms)
    assert raised.value.code == code
    assert len(rig.log) == count


def test_partition_that_others_give_up_wakes_a_waiting_member(rig: GroupRig) -> None:
    member = in_phase(rig, MemberPhase.UNRELEASED)
    state = rig.group.state
    assert not state.can_get_more(state.members[member.member_id])
    rig.group.heartbeat(
        ConsumerHeartbeat(member_id="a", member_epoch=2, owned={T: frozenset({0, 1})}), rig.now_ms
    )
    assert state.can_get_more(state.members[member.member_id])


def test_names_count_by_members_and_expressions(rig: GroupRig) -> None:
    HonestMember(rig, "a", topics=("t",)).heartbeat()
    HonestMember(rig, "b", topics=("t",), regex="u.*").heartbeat()
    HonestMember(rig, "c", topics=(), regex="u.*").heartbeat()
    for member_id, left in (("a", {"t", "u"}), ("b", {"u"}), ("c", set())):
        HonestMember(rig, member_id).leave()
        assert rig.group.state.subscribed_names() == left
        assert rig.group.is_subscribed_to("u") == ("u" in left)
