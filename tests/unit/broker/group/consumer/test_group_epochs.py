"""The causes of a higher epoch of a consumer group, and the time of its target assignment, as in Kafka 4.4."""

from __future__ import annotations

import pytest

from tests.support.consumer_groups import GroupRig, HonestMember, settle, topic_id

T = topic_id("t")


@pytest.fixture
def rig() -> GroupRig:
    rig = GroupRig()
    rig.set_topics({"t": 4})
    return rig


def epoch(rig: GroupRig) -> int:
    return rig.group.state.epoch.epoch


@pytest.mark.parametrize(
    ("first", "second", "raises"),
    [
        ("uniform", "range", True),
        (None, "range", True),
        # None is the first assignor of the broker for a new member, and no change for any other one.
        (None, "uniform", False),
        ("uniform", None, False),
        ("range", "range", False),
    ],
)
def test_other_preferred_assignor_raises_the_epoch(
    rig: GroupRig, first: str | None, second: str | None, raises: bool
) -> None:
    member = HonestMember(rig, "a", assignor=first)
    settle([member])
    before = epoch(rig)
    member.assignor = second
    member.heartbeat()
    assert epoch(rig) == before + raises


def test_first_member_with_an_assignor_starts_at_epoch_2(rig: GroupRig) -> None:
    assert HonestMember(rig, "a", topics=(), assignor="range").heartbeat().member_epoch == 2


def test_subscription_after_empty_join_is_assigned_at_once(rig: GroupRig) -> None:
    """The join without a subscription has no target, after which the interval would delay the next one."""
    rig.settings["consumer.assignment.interval.ms"] = "1000"
    member = HonestMember(rig, "a", topics=())
    assert member.heartbeat().member_epoch == 1
    member.topics = ("t",)
    result = member.heartbeat()
    assert (result.member_epoch, result.assignment) == (2, {T: frozenset({0, 1, 2, 3})})


def test_clock_that_was_set_back_does_not_delay_a_target(rig: GroupRig) -> None:
    rig.settings["consumer.assignment.interval.ms"] = "1000"
    HonestMember(rig, "a").heartbeat()
    rig.now_ms -= 60_000
    assert HonestMember(rig, "b").heartbeat().member_epoch == 3


def test_vote_without_a_majority_keeps_the_epoch(rig: GroupRig) -> None:
    members = [HonestMember(rig, name, assignor="uniform") for name in "abc"]
    settle(members)
    before = epoch(rig)
    members[0].assignor = "range"
    members[0].heartbeat()
    assert epoch(rig) == before
    members[1].assignor = "range"
    members[1].heartbeat()
    assert epoch(rig) == before + 1
    assert rig.group.describe_consumers().assignor == "range"


def test_member_without_a_subscription_keeps_the_epoch(rig: GroupRig) -> None:
    settle([HonestMember(rig, "a")])
    assert HonestMember(rig, "b", topics=()).heartbeat().member_epoch == 2
    assert epoch(rig) == 2
    assert HonestMember(rig, "c").heartbeat().member_epoch == 3


def test_expired_member_leaves_the_assignment_to_a_heartbeat(
    rig: GroupRig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    first, second = HonestMember(rig, "a"), HonestMember(rig, "b")
    settle([first, second])
    rig.advance(30_000)
    first.heartbeat()
    rig.advance(15_001)
    assert set(rig.group.state.members) == {"a"}
    assert "removing 1 members whose session or rebalance timeout has expired" in caplog.text
    assert rig.group.state_name == "Assigning"
    settle([first])
    assert first.owned == {T: {0, 1, 2, 3}}
