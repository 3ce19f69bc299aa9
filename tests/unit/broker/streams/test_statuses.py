"""The statuses of a streams group: delays, shutdowns, missing tags and old topologies (KIP-1071, KIP-1263)."""

from __future__ import annotations

import pytest

from kproc.broker.config import Config
from kproc.broker.streams.messages import StreamsHeartbeat
from kproc.broker.streams.tasks import MemberTasks
from kproc.broker.streams.topology import KeyValue, StreamsStatusCode, Topology
from kproc.common.errors import ErrorCode
from tests.support.streams_groups import (
    ALL_TOPICS,
    COUNT,
    HonestStreamsMember,
    StreamsRig,
    codes,
    rejected,
    settle,
    tasks,
)


def delayed_rig() -> StreamsRig:
    """Return a group with the default initial rebalance delay."""
    rig = StreamsRig(config=Config.build({"group.streams.assignment.interval.ms": 0}))
    rig.set_topics(ALL_TOPICS)
    return rig


def test_initial_delay_waits_for_more_members() -> None:
    """The first member gets epoch 1. With epoch 0 its next heartbeat would be a request to join without a topology."""
    rig = delayed_rig()
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    result = first.heartbeat()
    assert (codes(result), result.tasks) == ([StreamsStatusCode.ASSIGNMENT_DELAYED], MemberTasks())
    assert result.statuses[0].detail == "Assignment delayed due to the configured initial rebalance delay."
    assert (result.member_epoch, result.heartbeat_interval_ms) == (1, 500)
    assert second.heartbeat().member_epoch == 1
    assert first.heartbeat().member_epoch == 1
    assert rig.group.state_name == "Assigning"
    rig.advance(3_000)
    assert first.heartbeat().tasks == MemberTasks(tasks(0, 2))
    assert second.heartbeat().tasks == MemberTasks(tasks(1, 3))


def test_emptied_group_has_the_initial_delay_again() -> None:
    rig = delayed_rig()
    first = HonestStreamsMember(rig, "a")
    first.heartbeat()
    rig.advance(3_000)
    settle([first])
    first.leave()
    second = HonestStreamsMember(rig, "b")
    result = second.heartbeat()
    assert (codes(result), result.tasks) == ([StreamsStatusCode.ASSIGNMENT_DELAYED], MemberTasks())
    assert result.member_epoch == rig.group.state.target_epoch.epoch > 0
    rig.advance(3_000)
    assert second.heartbeat().tasks == MemberTasks(tasks(0, 1, 2, 3))


def test_group_without_members_has_no_assignment_after_the_delay() -> None:
    rig = delayed_rig()
    first = HonestStreamsMember(rig, "a")
    first.heartbeat()
    first.leave()
    before = len(rig.log)
    rig.advance(10_000)
    assert (len(rig.log), rig.group.state_name) == (before, "Empty")


def test_assignments_have_an_interval(rig: StreamsRig) -> None:
    rig.settings["streams.assignment.interval.ms"] = "1000"
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    first.heartbeat()
    result = second.heartbeat()
    assert [status.detail for status in result.statuses] == [
        "Assignment delayed due to the configured assignment interval."
    ]
    assert (result.member_epoch, result.tasks, rig.group.state.epoch.epoch) == (2, MemberTasks(), 3)
    rig.advance(1_000)
    assert rig.group.state.target_epoch.epoch == rig.group.state.epoch.epoch
    result = second.heartbeat()
    assert (result.member_epoch, result.statuses) == (3, ())


def test_shutdown_reaches_all_members_until_the_group_is_empty(rig: StreamsRig) -> None:
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    settle([first, second])
    assert codes(first.heartbeat(is_shutdown=True)) == [StreamsStatusCode.SHUTDOWN_APPLICATION]
    (status,) = second.heartbeat().statuses
    assert status.detail == (
        "Streams group member a encountered a fatal error and requested a shutdown for the entire application."
    )
    first.leave()
    second.leave()
    assert codes(HonestStreamsMember(rig, "c").heartbeat()) == []


def test_shutdown_at_leaving_reaches_the_others(rig: StreamsRig) -> None:
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    settle([first, second])
    result = rig.group.heartbeat(
        StreamsHeartbeat(member_id="a", member_epoch=-1, is_shutdown=True), rig.now_ms
    )
    assert (result.member_epoch, result.statuses) == (-1, ())
    (status,) = second.heartbeat().statuses
    assert (status.code, status.detail.split()[3]) == (StreamsStatusCode.SHUTDOWN_APPLICATION, "a")


@pytest.mark.parametrize("is_empty", [True, False])
def test_shutdown_by_removed_member_stops_only_present_members(rig: StreamsRig, *, is_empty: bool) -> None:
    """The last member of an application dies after its session. A later start of the application must work."""
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    settle([first, second])
    first.leave()
    if is_empty:
        second.leave()
    late = StreamsHeartbeat(member_id="a", member_epoch=-1, is_shutdown=True)
    with rejected(ErrorCode.UNKNOWN_MEMBER_ID):
        rig.group.heartbeat(late, rig.now_ms)
    expected = [] if is_empty else [StreamsStatusCode.SHUTDOWN_APPLICATION]
    assert codes(HonestStreamsMember(rig, "c").heartbeat()) == expected


def test_member_without_wanted_tags_gets_a_status(rig: StreamsRig) -> None:
    rig.settings["streams.rack.aware.assignment.tags"] = "zone,rack"
    member = HonestStreamsMember(rig, "a", tags=(KeyValue("zone", "z"),))
    (status,) = member.heartbeat().statuses
    assert status.code == StreamsStatusCode.MISSING_CLIENT_TAGS
    assert "standby assignment: [rack]." in status.detail
    assert member.heartbeat(knows_missing_tags=False).statuses == ()


def test_member_with_older_topology_gets_a_status(rig: StreamsRig) -> None:
    HonestStreamsMember(rig, "a", Topology(3, COUNT.subtopologies)).heartbeat()
    result = HonestStreamsMember(rig, "b").heartbeat()
    assert [status.detail for status in result.statuses] == [
        "The member's topology epoch 1 is behind the group's topology epoch 3."
    ]
