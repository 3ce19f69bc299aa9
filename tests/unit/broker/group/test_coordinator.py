"""One coordinator on a log in memory: what it writes, when its state changes, what it forgets."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.group.messages import CommitRequest, SyncRequest
from kproc.broker.group.paced_responses import RESPONSES_AT_ONCE
from kproc.broker.group.records import OffsetKey, encode_offset_key
from kproc.common.deadlines import NEVER
from kproc.common.errors import Corrupt, ErrorCode
from tests.support.coordinators import run_steps
from tests.support.group_coordinator_rig import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_commit_is_visible_on_append_and_answered_when_durable(rig: Rig) -> None:
    codes = rig.commit(5)
    assert (rig.offset(), codes) == (None, [])
    rig.log.flush()
    assert (rig.offset(), codes) == (5, [])
    rig.log.sync()
    assert codes == [0]


def test_a_read_waits_for_what_it_shows(rig: Rig) -> None:
    told: list[tuple[int, int | None]] = []
    rig.commit(5)
    rig.coordinator.read(rig.offset, lambda code, found: told.append((code, found)))
    assert rig.offset() == 5
    rig.log.flush()
    rig.commit(6)
    assert not told
    writes, rig.log.unsynced = rig.log.unsynced, []
    rig.log.flush()
    for write in writes:  # A round covers what the log held when it began.
        write.on_done(0)
    assert (told, rig.offset()) == ([(0, 5)], 6)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_commit_that_was_not_appended_changes_nothing(rig: Rig, error: ErrorCode, told: ErrorCode) -> None:
    rig.log.error = error
    codes = rig.commit(5)
    rig.log.flush()
    assert (rig.offset(), codes, rig.states()) == (None, [told], {})


def test_offsets_of_empty_group_id_make_no_joinable_group(rig: Rig) -> None:
    rig.commit(5, group="")
    rig.log.sync()
    assert rig.offset(group="") == 5
    assert rig.coordinator.heartbeat("", "m", None, 1) == ErrorCode.INVALID_GROUP_ID
    results: list[Any] = []
    rig.coordinator.sync("", SyncRequest(member_id="m", generation=1), results.append)
    assert [result.error_code for result in results] == [ErrorCode.INVALID_GROUP_ID]


def test_commit_with_no_valid_offset_makes_group_until_sweep(rig: Rig) -> None:
    codes: list[int] = []
    request = CommitRequest(
        group_id="g",
        member_id="",
        group_instance_id=None,
        generation=-1,
        knows_unknown_group=True,
        offsets=[],
    )
    rig.coordinator.commit(request, codes.append)
    assert (codes, rig.states()) == ([0], {"g": "Empty"})
    rig.sweep()
    assert rig.states() == {}


def test_a_successor_goes_on_with_groups_and_offsets(rig: Rig) -> None:
    member_id = rig.settle()
    rig.commit(7, member_id=member_id, generation=1)
    rig.commit(8, group="simple")
    rig.log.sync()
    rig.make()
    assert rig.states() == {"g": "Stable", "simple": "Empty"}
    assert (rig.offset(), rig.offset(group="simple")) == (7, 8)
    assert rig.coordinator.heartbeat("g", member_id, None, 1) == 0
    rig.pass_ms(10_000)
    assert rig.states()["g"] != "Stable"  # Its session began anew, and has ended.


def test_what_was_deleted_stays_deleted(rig: Rig) -> None:
    rig.commit(7)
    rig.log.sync()
    codes: list[int] = []
    rig.coordinator.delete_group("g", codes.append)
    rig.log.sync()
    rig.coordinator.delete_group("g", codes.append)
    assert (codes, rig.states()) == ([0, ErrorCode.GROUP_ID_NOT_FOUND], {})
    rig.make()
    assert (rig.states(), rig.offset()) == ({}, None)


def test_group_deletion_includes_earlier_pending_commits(rig: Rig) -> None:
    rig.commit(1)
    rig.log.sync()
    rig.commit(2, topic="u")
    rig.coordinator.delete_group("g", lambda code: None)
    rig.log.sync()
    rig.make()
    assert (rig.offset(), rig.offset("u")) == (None, None)


def test_a_group_with_members_is_not_deleted(rig: Rig) -> None:
    rig.settle()
    codes: list[int] = []
    rig.coordinator.delete_group("g", codes.append)
    assert codes == [ErrorCode.NON_EMPTY_GROUP]


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


def test_who_waits_is_sent_to_the_next_owner(rig: Rig) -> None:
    rig.settle()
    waiting = rig.join()
    rig.coordinator.resign()
    run_steps(rig.coordinator)
    assert waiting[0].error_code == ErrorCode.NOT_COORDINATOR
    assert rig.deadlines.first == NEVER


def test_unknown_record_types_are_skipped_and_damage_is_not(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        rig.coordinator.replay(b"\0\x63\0\1g", b"\0\0", 0, None)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with pytest.raises(Corrupt):
        rig.coordinator.replay(encode_offset_key(OffsetKey("g", "t", 0)), b"\0\4", 0, None)


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
