"""DeleteGroups: groups with members, many offsets or share states, and coordinators that resign meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.broker.group.consumer.messages import ConsumerHeartbeat, ConsumerHeartbeatResult
from kproc.broker.share.membership.messages import ShareHeartbeat, ShareHeartbeatResult
from kproc.broker.streams.messages import StreamsHeartbeatResult
from kproc.broker.streams.topology import Topology
from kproc.common.errors import ErrorCode
from tests.support.coordinators import run_steps
from tests.support.group_coordinator_rig import Rig
from tests.support.share_groups import ShareRig


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_deleted_group_stays_deleted_after_reload(rig: Rig) -> None:
    rig.commit(7)
    rig.log.sync()
    codes: list[int] = []
    rig.coordinator.deletion.delete("g", codes.append)
    rig.log.sync()
    rig.coordinator.deletion.delete("g", codes.append)
    assert (codes, rig.states()) == ([0, ErrorCode.GROUP_ID_NOT_FOUND], {})
    rig.make()
    assert (rig.states(), rig.offset()) == ({}, None)


def test_group_deletion_includes_earlier_pending_commits(rig: Rig) -> None:
    rig.commit(1)
    rig.log.sync()
    rig.commit(2, topic="u")
    rig.coordinator.deletion.delete("g", lambda code: None)
    rig.log.sync()
    rig.make()
    assert (rig.offset(), rig.offset("u")) == (None, None)


def test_a_group_with_members_is_not_deleted(rig: Rig) -> None:
    rig.settle()
    codes: list[int] = []
    rig.coordinator.deletion.delete("g", codes.append)
    assert codes == [ErrorCode.NON_EMPTY_GROUP]


def test_group_in_deletion_rejects_commits_and_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    for module in ("deletion", "removal"):
        monkeypatch.setattr(f"kproc.broker.group.{module}.TOMBSTONES_AT_ONCE", 1)
    monkeypatch.setattr("kproc.broker.coordinator.steps.STEP_COST", 1)
    for topic in ("t", "u"):
        rig.commit(7, topic=topic)
    codes: list[int] = []
    rig.coordinator.deletion.delete("g", codes.append)
    in_progress = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for _ in range(2):
        rig.pass_ms(0)
        rig.coordinator.steps.run()
        assert rig.commit(8) == [in_progress]
        assert [each.error_code for each in rig.join()] == [in_progress]
        again: list[int] = []
        rig.coordinator.deletion.delete("g", again.append)
        assert again == [in_progress]
    run_steps(rig.coordinator)
    assert codes == []
    rig.log.sync()
    assert codes == [0]
    assert (rig.offset(), rig.offset("u"), len(rig.coordinator)) == (None, None, 0)
    rig.make()
    assert len(rig.coordinator) == 0


def test_resigning_coordinator_answers_a_deletion_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    for module in ("deletion", "removal"):
        monkeypatch.setattr(f"kproc.broker.group.{module}.TOMBSTONES_AT_ONCE", 1)
    for topic in ("t", "u"):
        rig.commit(7, topic=topic)
    codes: list[int] = []
    rig.coordinator.deletion.delete("g", codes.append)
    rig.coordinator.resign()
    run_steps(rig.coordinator)
    assert codes == [ErrorCode.NOT_COORDINATOR]
    assert len(rig.deadlines) == 0


def test_delete_share_group_deletes_its_states_first() -> None:
    rig = ShareRig()
    rig.add_member("a")
    assert rig.delete_group() == ErrorCode.NON_EMPTY_GROUP
    rig.heartbeat("a", -1)
    rig.states.error = ErrorCode.NOT_COORDINATOR
    assert rig.delete_group() == ErrorCode.NOT_COORDINATOR
    assert rig.group().is_empty
    rig.states.error = 0
    assert rig.delete_group() == 0
    assert not rig.states.states
    rig.make()
    assert len(rig.coordinator) == 0


def test_resignation_answers_a_share_deletion_once() -> None:
    rig = ShareRig()
    rig.add_member("a")
    rig.heartbeat("a", -1)
    codes: list[int] = []
    rig.coordinator.deletion.delete("g", codes.append)
    rig.log.sync()
    rig.coordinator.resign()
    run_steps(rig.coordinator)
    rig.run_all()
    assert codes == [ErrorCode.NOT_COORDINATOR]


Heartbeat = Callable[
    [ShareRig, str, int], ConsumerHeartbeatResult | ShareHeartbeatResult | StreamsHeartbeatResult
]


def consumer_heartbeat(rig: ShareRig, member_id: str, epoch: int) -> ConsumerHeartbeatResult:
    results: list[ConsumerHeartbeatResult] = []
    request = ConsumerHeartbeat(
        member_id=member_id, member_epoch=epoch, topic_names=("t",), owned={}, rebalance_timeout_ms=1_000
    )
    rig.coordinator.consumer_heartbeat("g", request, results.append)
    rig.log.sync()
    return results[0]


def share_heartbeat(rig: ShareRig, member_id: str, epoch: int) -> ShareHeartbeatResult:
    results: list[ShareHeartbeatResult] = []
    request = ShareHeartbeat(member_id=member_id, member_epoch=epoch, client_id="c", topic_names=("t",))
    rig.coordinator.share_requests.heartbeat("g", request, results.append)
    rig.log.sync()
    return results[0]


def streams_heartbeat(rig: ShareRig, member_id: str, epoch: int) -> StreamsHeartbeatResult:
    return rig.streams_heartbeat(member_id, epoch, topology=Topology(1, ()))


@pytest.mark.parametrize("heartbeat", [consumer_heartbeat, share_heartbeat, streams_heartbeat])
def test_member_joins_in_the_duty_cycle_of_the_deletion(heartbeat: Heartbeat) -> None:
    """The group that it creates must not be the deleted one, which no later heartbeat would find."""
    rig = ShareRig()
    assert heartbeat(rig, "a", 0).error_code == ErrorCode.NONE
    assert heartbeat(rig, "a", -1).error_code == ErrorCode.NONE
    codes: list[int] = []
    rig.coordinator.deletion.delete("g", codes.append)
    if heartbeat is share_heartbeat:
        # The share coordinator deletes the states first.
        rig.log.sync()
        rig.states.run()
    joined = heartbeat(rig, "b", 0)
    assert (codes, joined.error_code) == ([ErrorCode.NONE], ErrorCode.NONE)
    assert heartbeat(rig, "b", joined.member_epoch).error_code == ErrorCode.NONE
    rig.make()
    assert heartbeat(rig, "b", joined.member_epoch).error_code == ErrorCode.NONE
