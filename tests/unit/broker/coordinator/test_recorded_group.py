"""The parts that consumer, share and streams groups have in common: deadlines, removals and views."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator.member_deadlines import TRY_AGAIN_MS
from kproc.broker.coordinator.recorded_group import TargetProgress
from tests.support.consumer_groups import GroupRig, HonestMember

INTERVAL_MS = 5_000


@pytest.fixture
def rig() -> GroupRig:
    rig = GroupRig(settings={"consumer.assignment.interval.ms": str(INTERVAL_MS)})
    rig.set_topics({"t": 2})
    return rig


def test_update_target_waits_for_the_interval(rig: GroupRig) -> None:
    """A second member joins within the interval, so a tick at its end computes the target."""
    HonestMember(rig, "a").heartbeat()
    assert rig.group.update_target(rig.now_ms) is TargetProgress.UP_TO_DATE
    HonestMember(rig, "b").heartbeat()
    assert rig.group.update_target(rig.now_ms) is TargetProgress.DELAYED
    rig.advance(INTERVAL_MS)
    assert rig.group.state.target_epoch.epoch == rig.group.state.epoch.epoch
    assert rig.group.update_target(rig.now_ms) is TargetProgress.UP_TO_DATE


def test_tick_removes_expired_members_again_after_a_failed_write(
    rig: GroupRig, caplog: pytest.LogCaptureFixture
) -> None:
    HonestMember(rig, "a").heartbeat()
    rig.broken_after = len(rig.log)
    timeout_ms = rig.environment.session_timeout_ms("g")
    rig.advance(timeout_ms)
    assert "consumer group g: the removal of expired members" in caplog.text
    assert (rig.group.member_count, rig.group.is_empty) == (1, False)
    rig.broken_after = None
    rig.advance(TRY_AGAIN_MS)
    assert (rig.group.member_count, rig.group.is_empty) == (0, True)
    assert rig.group.next_deadline_ms() is None


def test_offsets_of_subscribed_topics_do_not_expire(rig: GroupRig) -> None:
    HonestMember(rig, "a").heartbeat()
    assert rig.group.offset_expires_from_ms("t", 5) is None
    assert rig.group.offset_expires_from_ms("other", 5) == 5
