"""ClassicGroups: groups without members, requests to unknown groups, and the pace of responses."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.group.messages import LeavingMember, SyncRequest
from kproc.broker.group.paced_responses import RESPONSES_AT_ONCE
from kproc.common.errors import ErrorCode
from tests.support.coordinators import run_steps
from tests.support.group_coordinator_rig import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_unknown_group_has_no_members(rig: Rig) -> None:
    results: list[Any] = []
    assert rig.coordinator.heartbeat("g", "m", None, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    rig.coordinator.sync("g", SyncRequest(member_id="m", generation=1), results.append)
    rig.coordinator.leave("g", [LeavingMember("m")], results.append)
    assert [result.error_code for result in results] == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]
    assert [member.error_code for member in results[1].members] == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert rig.states() == {}


def test_offsets_of_empty_group_id_make_no_joinable_group(rig: Rig) -> None:
    rig.commit(5, group="")
    rig.log.sync()
    assert rig.offset(group="") == 5
    assert rig.coordinator.heartbeat("", "m", None, 1) == ErrorCode.INVALID_GROUP_ID
    results: list[Any] = []
    rig.coordinator.sync("", SyncRequest(member_id="m", generation=1), results.append)
    assert [result.error_code for result in results] == [ErrorCode.INVALID_GROUP_ID]


def test_unwritten_group_is_deleted_without_tombstone(rig: Rig) -> None:
    (joined,) = rig.join()
    rig.pass_ms(60_000)
    rig.log.sync()
    before = len(rig.log.records)
    rig.sweep()
    assert "g" not in rig.states()
    assert joined.error_code == 0
    rig.make()
    assert rig.states() == {}
    assert before <= len(rig.log.records)


def joined_by_many(rig: Rig) -> list[list[Any]]:
    """The answers to the joins of two slices of new members, when the first member has joined again."""
    (leader,) = rig.join()
    answers = [rig.join() for _ in range(2 * RESPONSES_AT_ONCE)]
    assert not any(answers)
    rig.join(member_id=leader.member_id)
    return answers


def test_join_responses_of_large_group_take_several_ticks(rig: Rig) -> None:
    """10,000 responses in one duty cycle stopped the Handler for a second."""
    answers = joined_by_many(rig)
    sent = [sum(map(len, answers))]
    for _ in range(4):
        rig.pass_ms(0)
        sent.append(sum(map(len, answers)))
    first = RESPONSES_AT_ONCE - 1  # The leader's is the first one.
    assert sent == [0, first, first + RESPONSES_AT_ONCE, len(answers), len(answers)]
    assert {answer[0].generation for answer in answers} == {2}


def test_join_responses_of_large_group_are_sent_on_resignation(rig: Rig) -> None:
    answers = joined_by_many(rig)
    rig.coordinator.resign()
    run_steps(rig.coordinator)
    assert {len(answer) for answer in answers} == {1}
    rig.pass_ms(0)
