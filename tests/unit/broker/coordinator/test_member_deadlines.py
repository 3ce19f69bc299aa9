"""MemberDeadlines: sessions, rebalance timeouts and the next assignment of a group."""

from __future__ import annotations

from kproc.broker.coordinator.member_deadlines import TRY_AGAIN_MS, MemberDeadlines, TimedMember

SESSION_MS, REBALANCE_MS = 45_000, 10_000


def deadlines() -> MemberDeadlines[TimedMember]:
    return MemberDeadlines()


def test_renewed_session_is_found_at_its_new_end_only() -> None:
    found, one = deadlines(), TimedMember("m")
    found.renew_session(one, 0, SESSION_MS)
    found.renew_session(one, 1_000, SESSION_MS)
    assert found.first_ms == SESSION_MS, "the entry of the heap stays"
    assert found.pop_due({"m": one}, SESSION_MS, 10) == ([], False)
    assert found.first_ms == SESSION_MS + 1_000
    assert found.pop_due({"m": one}, SESSION_MS + 1_000, 10) == ([one], False)


def test_expired_member_is_tried_again_until_it_is_discarded() -> None:
    found, one = deadlines(), TimedMember("m")
    found.renew_session(one, 0, SESSION_MS)
    assert found.pop_due({"m": one}, SESSION_MS, 10) == ([one], False)
    assert found.first_ms == SESSION_MS + TRY_AGAIN_MS
    found.discard("m")
    assert found.first_ms is None


def test_rebalance_timeout_is_not_prolonged_by_heartbeats() -> None:
    found, one = deadlines(), TimedMember("m")
    found.renew_session(one, 0, SESSION_MS)
    found.start_rebalance_timeout(one, 0, REBALANCE_MS)
    found.renew_session(one, 9_000, SESSION_MS)
    found.start_rebalance_timeout(one, 9_000, REBALANCE_MS)
    assert found.pop_due({"m": one}, 10_000, 10) == ([one], False)


def test_assignment_is_due_once_and_members_up_to_the_limit() -> None:
    found = deadlines()
    members = {name: TimedMember(name) for name in "abc"}
    for each in members.values():
        found.renew_session(each, 0, SESSION_MS)
    found.schedule_assignment(10)
    assert found.pop_due(members, 10, 10) == ([], True)
    expired, is_due = found.pop_due(members, SESSION_MS, 2)
    assert (len(expired), is_due) == (2, False)
    found.schedule_assignment(20)
    found.discard_assignment()
    assert found.pop_due({}, SESSION_MS, 10) == ([], False), "of a member that has left"
