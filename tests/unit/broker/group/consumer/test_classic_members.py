"""Static members of the classic protocol in a consumer group, and restarts that change the protocol (KIP-848)."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from tests.support.group_coordinator_rig import TOPIC_ID, Rig
from tests.support.mixed_groups import beat, classic_group, consumer, join, mixed_rig, partitions, sync


@pytest.fixture
def rig() -> Rig:
    return mixed_rig()


def members(rig: Rig) -> dict[str, bool]:
    """Return which members of the consumer group use the classic protocol."""
    described = rig.coordinator.describe_consumer_group("g")
    assert described is not None
    return {member.member_id: member.is_classic for member in described.members}


def test_static_member_is_upgraded_by_its_restart(rig: Rig) -> None:
    """Such a member of the classic protocol does not leave when it stops. Its session has not ended yet."""
    classic = classic_group(rig, instance_id="seat")
    restarted = consumer(rig, "n", instance_id="seat")
    assert (restarted.error_code, restarted.assignment) == (ErrorCode.NONE, {TOPIC_ID: {0, 1, 2, 3}})
    assert members(rig) == {"n": False}
    assert rig.coordinator.heartbeat("g", classic.member_id, "seat", 1) == ErrorCode.FENCED_INSTANCE_ID
    assert beat(rig, classic) == ErrorCode.UNKNOWN_MEMBER_ID
    rig.pass_ms(11_000)  # The session of the classic member is discarded with it.
    assert members(rig) == {"n": False}
    before = rig.coordinator.describe_consumer_group("g")
    rig.make()
    assert rig.coordinator.describe_consumer_group("g") == before


def test_static_member_is_upgraded_in_a_mixed_group(rig: Rig) -> None:
    consumer(rig, "n")
    classic = join(rig, instance_id="seat")
    assert members(rig) == {"n": False, classic.member_id: True}
    assert consumer(rig, "o", instance_id="seat").error_code == ErrorCode.NONE
    assert members(rig) == {"n": False, "o": False}


def test_static_member_is_downgraded_by_its_restart(rig: Rig) -> None:
    """It takes the place of the member at once, which may not have left, and keeps its partitions."""
    consumer(rig, "n", instance_id="seat")
    consumer(rig, "o")
    restarted = join(rig, instance_id="seat")
    assert (restarted.error_code, members(rig)) == (ErrorCode.NONE, {"o": False, restarted.member_id: True})
    assert partitions(sync(rig, restarted)) == {0, 1}
    assert consumer(rig, "n", 2, instance_id="seat").error_code == ErrorCode.FENCED_INSTANCE_ID
    assert consumer(rig, "x", instance_id="seat").error_code == ErrorCode.NONE


def test_restart_of_the_last_member_makes_the_group_classic(rig: Rig) -> None:
    classic = classic_group(rig)
    consumer(rig, "n", instance_id="seat")
    restarted = join(rig, instance_id="seat")
    assert (restarted.error_code, restarted.generation) == (ErrorCode.NONE, 2)
    described = rig.coordinator.describe("g")
    assert described is not None
    assert {member.member_id for member in described.members} == {classic.member_id, restarted.member_id}
    # Its subscription is that of the member before, so the assignment stays and nobody has to join again.
    assert sync(rig, restarted).error_code == ErrorCode.NONE
    assert rig.coordinator.heartbeat("g", restarted.member_id, "seat", 2) == ErrorCode.NONE
    rig.make()
    assert rig.coordinator.describe("g") is not None


def test_downgrading_restart_with_other_topics_rebalances(rig: Rig) -> None:
    """As in Kafka the member gets no generation of the group, so that its SyncGroup makes it join again."""
    consumer(rig, "n", instance_id="seat", topic_names=("other",))
    restarted = join(rig, instance_id="seat")
    assert (restarted.error_code, restarted.generation) == (ErrorCode.NONE, 0)
    described = rig.coordinator.describe("g")
    assert described is not None
    assert described.state == "PreparingRebalance"
    assert sync(rig, restarted).error_code == ErrorCode.ILLEGAL_GENERATION
    assert rig.coordinator.heartbeat("g", restarted.member_id, "seat", 0) == ErrorCode.ILLEGAL_GENERATION


def test_present_member_of_the_consumer_protocol_is_not_replaced(rig: Rig) -> None:
    consumer(rig, "n", instance_id="seat")
    assert consumer(rig, "o", instance_id="seat").error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert members(rig) == {"n": False}
