"""ClassicRebalance: the join phase and the sync phase in time, and the order of generations."""

from __future__ import annotations

import logging

import pytest

from kproc.common.errors import ErrorCode
from tests.support.group_rig import INITIAL_DELAY_MS, REBALANCE_MS, SESSION_MS, GroupRig

REMOVED_AT_ONCE = "kproc.broker.group.classic.rebalance._REMOVED_AT_ONCE"

# The first rebalance of an empty group (KIP-134).


def test_the_first_rebalance_waits_for_the_initial_delay(rig: GroupRig) -> None:
    join = rig.join()
    rig.pass_ms(INITIAL_DELAY_MS - 1)
    assert join.is_open
    assert rig.state == "PreparingRebalance"
    rig.pass_ms(1)
    assert join.value.generation == 1


def test_every_newcomer_prolongs_it_by_another_delay(rig: GroupRig) -> None:
    joins = [rig.join()]
    for _ in range(3):
        rig.pass_ms(INITIAL_DELAY_MS - 1)
        joins.append(rig.join())
        rig.pass_ms(1)
    assert all(join.is_open for join in joins)
    rig.pass_ms(INITIAL_DELAY_MS)
    assert {join.value.generation for join in joins} == {1}


def test_but_not_beyond_the_rebalance_timeout(rig: GroupRig) -> None:
    first = rig.join(rebalance_timeout_ms=10_000)
    rig.pass_ms(9_999, before=rig.join, every_ms=500)
    assert first.is_open
    rig.pass_ms(1)
    assert first.code == ErrorCode.NONE


def test_without_a_delay_the_first_join_is_answered_at_once() -> None:
    rig = GroupRig(group_initial_rebalance_delay_ms=0)
    assert rig.join().value.generation == 1
    assert rig.state == "CompletingRebalance"


def test_the_delay_holds_again_after_the_group_was_empty(rig: GroupRig) -> None:
    rig.leave(*rig.make_stable(1))
    join = rig.join()
    rig.pass_ms(INITIAL_DELAY_MS - 1)
    assert join.is_open
    rig.pass_ms(1)
    assert join.value.generation == 3


def test_all_leave_during_the_delay(rig: GroupRig) -> None:
    join = rig.join(requires_known_member_id=True)
    member = join.value.member_id
    waiting = rig.join(member)
    leave = rig.leave(member)
    assert leave.code == ErrorCode.NONE
    assert (waiting.code, waiting.value.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")
    rig.pass_ms(INITIAL_DELAY_MS)
    assert (rig.state, rig.group.generation) == ("Empty", 1)


# Later ones.


def test_the_join_phase_ends_when_all_have_joined(rig: GroupRig) -> None:
    members = rig.make_stable(3)
    joins = rig.rejoin_all(members)
    assert [join.value.generation for join in joins] == [2, 2, 2]


def test_the_longest_rebalance_timeout_counts(rig: GroupRig) -> None:
    joins = [rig.join(rebalance_timeout_ms=20_000), rig.join(rebalance_timeout_ms=40_000)]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    members = [join.value.member_id for join in joins]
    rig.sync_all(members)
    waiting = rig.join(members[0], rebalance_timeout_ms=20_000)
    rig.pass_ms(39_999, before=lambda: rig.heartbeat(members[1]))
    assert waiting.is_open
    rig.pass_ms(1)
    assert waiting.value.generation == 2
    assert list(rig.group.roster.members) == members[:1]


def test_dynamic_members_that_do_not_rejoin_in_time_are_out(rig: GroupRig) -> None:
    members = rig.make_stable(3)
    joins = rig.rejoin_all(members[:2])
    rig.pass_ms(REBALANCE_MS, before=lambda: rig.heartbeat(members[2]))
    assert [each.member_id for each in joins[0].value.members] == members[:2]
    assert rig.heartbeat(members[2]) == ErrorCode.UNKNOWN_MEMBER_ID


def test_another_leads_when_the_leader_does_not_rejoin(rig: GroupRig) -> None:
    members = rig.make_stable(3)
    rig.join()
    joins = rig.rejoin_all(members[1:])
    rig.pass_ms(REBALANCE_MS, before=lambda: rig.heartbeat(members[0]))
    assert joins[0].value.leader == members[1]
    assert len(joins[0].value.members) == 3


def test_the_next_member_leads_when_the_leader_leaves(rig: GroupRig) -> None:
    members = rig.make_stable(3)
    rig.leave(members[0])
    joins = rig.rejoin_all(members[1:])
    assert {join.value.leader for join in joins} == {members[1]}


def test_rebalance_without_rejoins_empties_the_group(rig: GroupRig) -> None:
    members = rig.make_stable(3)
    rig.join(members[0], rebalance_timeout_ms=30_000)
    rig.leave(members[0])
    rig.pass_ms(SESSION_MS)
    assert (rig.state, rig.group.generation) == ("Empty", 2)
    assert rig.log[-1].members == ()


def test_generations_only_grow(rig: GroupRig) -> None:
    members = rig.make_stable()
    for generation in range(2, 6):
        joins = rig.rejoin_all(members)
        assert {join.value.generation for join in joins} == {generation}
        rig.sync_all(members)
    rig.leave(*members)
    assert rig.group.generation == 6


def test_an_empty_group_is_written_with_its_generation(rig: GroupRig) -> None:
    rig.leave(*rig.make_stable(2))
    written = rig.log[-1]
    assert (written.generation, written.protocol_type) == (2, "consumer")
    assert (written.protocol_name, written.leader, written.members) == (None, None, ())


def test_cooperative_members_rebalance_twice(rig: GroupRig) -> None:
    """KIP-429: the first round takes partitions away, upon which those who gave some join again at once."""
    cooperative = (("cooperative-sticky", b"owned: 0 1"),)
    (leader,) = rig.make_stable(1, protocols=cooperative)
    new = rig.join(protocols=(("cooperative-sticky", b"owned:"),))
    assert rig.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    assert rig.can_commit(leader) == ErrorCode.NONE  # What it goes on reading meanwhile.
    rig.join(leader, protocols=cooperative)
    member = new.value.member_id
    waiting = rig.sync(member)
    rig.sync(leader, assignments=((leader, b"0"), (member, b"")))
    assert waiting.value.assignment == b""
    again = rig.join(leader, protocols=(("cooperative-sticky", b"owned: 0"),))
    assert rig.heartbeat(member, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    follow = rig.join(member, protocols=(("cooperative-sticky", b"owned:"),))
    assert (again.value.generation, follow.value.generation) == (3, 3)
    rig.sync_all([leader, member])
    assert rig.group.generation == 3


# The sync phase in time (DelayedSync, KAFKA-12890).


def test_members_that_do_not_sync_in_time_are_out(rig: GroupRig) -> None:
    joins = [rig.join(), rig.join(), rig.join()]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    members = [join.value.member_id for join in joins]
    begun_ms = rig.now_ms
    waiting = [rig.sync(members[0]), rig.sync(members[1])]
    assert [sync.code for sync in waiting] == [ErrorCode.NONE, ErrorCode.NONE]

    def beat() -> None:
        for member in members:
            rig.heartbeat(member, 1)

    rig.pass_ms(begun_ms + REBALANCE_MS - 1 - rig.now_ms, before=beat)
    assert rig.state == "Stable"
    rig.pass_ms(1)
    assert rig.state == "PreparingRebalance"
    assert rig.heartbeat(members[2], 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_leader_without_sync_is_removed_and_others_rejoin(rig: GroupRig) -> None:
    joins = [rig.join(), rig.join()]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    leader, follower = (join.value.member_id for join in joins)
    waiting = rig.sync(follower)
    rig.pass_ms(REBALANCE_MS, before=lambda: rig.heartbeat(leader, 1))
    assert waiting.code == ErrorCode.REBALANCE_IN_PROGRESS
    again = rig.join(follower)
    assert (again.value.leader, again.value.generation) == (follower, 2)


def test_the_sync_phase_has_no_end_left_when_all_synced(rig: GroupRig) -> None:
    members = rig.make_stable()
    rig.pass_ms(2 * REBALANCE_MS, before=lambda: [rig.heartbeat(each) for each in members])
    assert (rig.state, rig.group.generation) == ("Stable", 1)


def test_a_waiting_sync_does_not_end_by_session(rig: GroupRig) -> None:
    joins = [rig.join(), rig.join()]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    leader, follower = (join.value.member_id for join in joins)
    waiting = rig.sync(follower)
    rig.pass_ms(2 * SESSION_MS, before=lambda: rig.heartbeat(leader))
    assert waiting.is_open
    rig.sync(leader, assignments=((follower, b"x"),))
    assert waiting.value.assignment == b"x"
    rig.pass_ms(SESSION_MS - 1, before=lambda: rig.heartbeat(leader))
    assert follower in rig.group.roster.members


# Sessions.


def test_member_without_heartbeats_is_removed_and_rebalances(rig: GroupRig) -> None:
    members = rig.make_stable()
    rig.pass_ms(SESSION_MS - 1, before=lambda: rig.heartbeat(members[0]))
    assert rig.state == "Stable"
    rig.pass_ms(1)
    assert rig.state == "PreparingRebalance"
    assert rig.join(members[0]).value.generation == 2


def test_the_last_session_ends(rig: GroupRig) -> None:
    rig.make_stable()
    rig.pass_ms(SESSION_MS)
    assert (rig.state, rig.group.generation) == ("Empty", 2)
    assert rig.group.next_deadline_ms() is None


def test_a_session_that_ends_in_the_join_phase_may_end_the_phase(rig: GroupRig) -> None:
    members = rig.make_stable()
    join = rig.join(members[0])
    rig.pass_ms(SESSION_MS - 1)
    assert join.is_open
    rig.pass_ms(1)
    assert join.value.generation == 2


def test_a_session_that_ends_in_the_sync_phase_begins_anew(rig: GroupRig) -> None:
    joins = [rig.join(), rig.join()]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    leader, follower = (join.value.member_id for join in joins)
    waiting = rig.sync(follower)
    rig.pass_ms(SESSION_MS)
    assert waiting.code == ErrorCode.REBALANCE_IN_PROGRESS
    assert rig.join(follower).value.leader == follower
    assert leader not in rig.group.roster.members


def test_each_member_has_its_own_session_timeout(rig: GroupRig) -> None:
    joins = [rig.join(session_timeout_ms=6_000), rig.join(session_timeout_ms=12_000)]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    members = [join.value.member_id for join in joins]
    rig.sync_all(members)
    rig.pass_ms(6_000)
    assert list(rig.group.roster.members) == members[1:]
    rig.pass_ms(6_000)
    assert rig.state == "Empty"


def test_overdue_timers_after_a_pause_run_in_order(rig: GroupRig) -> None:
    """One tick, long after: the join phase ended before the sessions of those it began anew."""
    members = rig.make_stable(2, rebalance_timeout_ms=5_000)
    join = rig.join(members[0], rebalance_timeout_ms=5_000)
    rig.clock.advance_ms(1_000_000)
    rig.group.tick(rig.now_ms)
    assert join.value.generation == 2
    assert list(rig.group.roster.members) == members[:1]


def test_absent_static_member_survives_long_pause(rig: GroupRig) -> None:
    """The join phase ended first, and began its session anew."""
    members = rig.make_stable(2, static=True, rebalance_timeout_ms=5_000)
    join = rig.join(members[0], rebalance_timeout_ms=5_000)
    rig.clock.advance_ms(1_000_000)
    rig.group.tick(rig.now_ms)
    assert [each.member_id for each in join.value.members] == members


# The answer to next_deadline_ms.


def test_heartbeats_never_bring_the_next_deadline_forward(rig: GroupRig) -> None:
    members = rig.make_stable()
    before = rig.group.next_deadline_ms()
    rig.clock.advance_ms(SESSION_MS // 2)
    for member in members:
        rig.heartbeat(member)
    assert rig.group.next_deadline_ms() == before
    assert before is not None
    rig.clock.advance_ms(before - rig.now_ms)
    rig.group.tick(rig.now_ms)
    assert rig.group.next_deadline_ms() == before + SESSION_MS // 2


def test_an_early_tick_does_nothing(rig: GroupRig) -> None:
    rig.make_stable()
    before = rig.group.next_deadline_ms()
    rig.group.tick(rig.now_ms)
    assert (rig.state, rig.group.next_deadline_ms()) == ("Stable", before)


# Many members miss the same deadline.


def tick_until_nothing_is_due(rig: GroupRig) -> int:
    """Tick as the duty cycles do; return the number of ticks."""
    count = 0
    while (rig.group.next_deadline_ms() or rig.now_ms + 1) <= rig.now_ms:
        rig.group.tick(rig.now_ms)
        count += 1
        assert count < 20, "it does not end"
    return count


def test_many_ended_sessions_take_several_ticks(rig: GroupRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REMOVED_AT_ONCE, 2)
    rig.make_stable(5)
    rig.clock.advance_ms(SESSION_MS)
    assert tick_until_nothing_is_due(rig) == 3
    assert (rig.state, rig.group.generation, len(rig.group.roster)) == ("Empty", 2, 0)


def test_many_members_that_do_not_rejoin_take_several_ticks(
    rig: GroupRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(REMOVED_AT_ONCE, 2)
    members = rig.make_stable(6)
    join = rig.join(members[0])
    for _ in range(REBALANCE_MS // 5_000):
        rig.clock.advance_ms(5_000)
        for member in members[1:]:
            rig.heartbeat(member)
    rig.group.tick(rig.now_ms)
    late = rig.join(members[5])
    assert join.is_open
    assert tick_until_nothing_is_due(rig) >= 1
    assert [each.member_id for each in join.value.members] == [members[0], members[5]]
    assert late.code == ErrorCode.NONE


def test_many_members_that_do_not_sync_take_several_ticks(
    rig: GroupRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(REMOVED_AT_ONCE, 2)
    members = rig.make_stable(5)
    rig.rejoin_all(members)
    for _ in range(REBALANCE_MS // 5_000):
        rig.clock.advance_ms(5_000)
        for member in members:
            rig.heartbeat(member)
    rig.group.tick(rig.now_ms)
    assert len(rig.group.roster) == 3
    for member in list(rig.group.roster.members):
        rig.sync(member)  # All others send it between two ticks. The group must rebalance all the same.
    tick_until_nothing_is_due(rig)
    assert rig.state == "PreparingRebalance"


# The log.


def test_members_that_do_not_rejoin_leave_one_log_line(
    rig: GroupRig, caplog: pytest.LogCaptureFixture
) -> None:
    members = rig.make_stable(3)
    rig.join(members[0])
    caplog.clear()
    with caplog.at_level(logging.INFO, "kproc.broker.group.classic.rebalance"):
        rig.pass_ms(REBALANCE_MS, before=lambda: [rig.heartbeat(each) for each in members[1:]])
    assert caplog.messages == [
        f"group={rig.group.group_id} generation=1 state=PreparingRebalance removed 2 members: no JoinGroup in time: "
        + ", ".join(members[1:])
    ]


def test_sessions_that_expire_in_a_join_phase_leave_one_log_line(
    rig: GroupRig, caplog: pytest.LogCaptureFixture
) -> None:
    members = rig.make_stable(8)
    caplog.clear()
    with caplog.at_level(logging.INFO, "kproc.broker.group.classic.rebalance"):
        rig.pass_ms(SESSION_MS)
    prefix = f"group={rig.group.group_id} generation=1 state="
    assert caplog.messages == [
        f"{prefix}Stable rebalances: the session of {members[0]} expired",
        f"{prefix}PreparingRebalance removed 7 members: session expired: {', '.join(members[1:6])}, ...",
    ]
