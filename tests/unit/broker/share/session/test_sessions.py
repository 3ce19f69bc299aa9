"""Share sessions: epochs, partitions, limits and the end of a connection."""

from __future__ import annotations

import pytest

from kproc.broker.share.partition.messages import ShareKey
from kproc.broker.share.session import sessions as module
from kproc.broker.share.session.sessions import ShareSession, ShareSessions
from kproc.common.errors import ErrorCode, KafkaError

A, B, C = (b"a" * 16, 0), (b"a" * 16, 1), (b"c" * 16, 0)
HOME = 3


@pytest.fixture
def sessions() -> ShareSessions:
    return ShareSessions(HOME, 2)


def opened(
    sessions: ShareSessions, member: str = "m", *keys: ShareKey, connection: int = 1, now_ns: int = 5
) -> ShareSession:
    assert sessions.make_room("g", member, keys) is not None
    return sessions.open("g", member, connection, keys, now_ns)[0]


def code_of(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return error.value.code


def test_first_request_after_open_has_epoch_one(sessions: ShareSessions) -> None:
    session = opened(sessions, "m", A)
    sessions.proceed(session, 1, [B], [])
    assert list(session.targets) == [A, B]
    with pytest.raises(KafkaError) as error:
        sessions.proceed(session, 1, [C], [])
    assert code_of(error) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert list(session.targets) == [A, B]
    sessions.proceed(session, 2, [C], [A, C])
    assert list(session.targets) == [B]


def test_epoch_wraps_to_one(sessions: ShareSessions) -> None:
    session = opened(sessions)
    session.epoch = 2**31 - 1
    sessions.proceed(session, 2**31 - 1, [], [])
    assert session.epoch == 1


def test_unknown_session_is_not_found(sessions: ShareSessions) -> None:
    opened(sessions)
    for group, member in (("g", "other"), ("other", "m")):
        with pytest.raises(KafkaError) as error:
            sessions.find(group, member)
        assert code_of(error) == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_limit_does_not_count_the_session_that_is_replaced(sessions: ShareSessions) -> None:
    opened(sessions, "m", connection=1)
    opened(sessions, "n", connection=2)
    assert sessions.make_room("g", "o", [A]) is None
    assert sessions.make_room("g", "m", [A]) == ()
    sessions.close(sessions.find("g", "n"))
    assert sessions.make_room("g", "o", [A]) == ()


def test_group_cannot_use_up_the_sessions() -> None:
    sessions = ShareSessions(HOME, 4)

    def open_session(group: str, member: str) -> str | None:
        """Open a session in a full table. Return the member whose session was closed, or None."""
        victims = sessions.make_room(group, member, [A])
        if victims is None:
            return "rejected"
        sessions.open(group, member, ord(member), [A], 5)
        assert len(sessions) <= 4
        return next((each.holder.member_id for each in victims), None)

    assert [open_session("large", member) for member in "abcd"] == [None] * 4
    sessions.proceed(sessions.find("large", "a"), 1, [], [])
    open_session("large", "b")
    assert open_session("large", "e") == "rejected"
    # The session that was not used for the longest time makes room.
    assert open_session("small", "x") == "c"
    assert open_session("other", "y") == "d"
    # A group may take sessions until it has nearly as many as the largest one.
    assert open_session("small", "z") == "rejected"
    assert open_session("small", "x") is None
    assert [sessions.find("large", each).is_closed for each in "ab"] == [False, False]
    assert sessions.close_connection(ord("a"))
    assert open_session("small", "z") is None


def test_limits_of_partitions(sessions: ShareSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSION_PARTITIONS_MAX", 2)
    monkeypatch.setattr(module, "PARTITIONS_MAX", 3)
    assert sessions.make_room("g", "m", [A, B, C]) is None
    session = opened(sessions, "m", A, B)
    assert sessions.make_room("g", "n", [A, B]) is None
    assert sessions.make_room("g", "n", [A]) == ()
    assert sessions.make_room("g", "m", [B, C]) == ()
    with pytest.raises(KafkaError) as error:
        sessions.proceed(session, 1, [C], [])
    assert code_of(error) == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    # A rejected request changes nothing: many of them would add partitions without a limit.
    assert (list(session.targets), sessions.partition_count, session.epoch) == ([A, B], 2, 1)
    sessions.proceed(session, 1, [B, C], [A])
    assert (list(session.targets), sessions.partition_count, session.epoch) == ([B, C], 2, 2)


def test_group_cannot_use_up_the_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARTITIONS_MAX", 10)
    sessions = ShareSessions(HOME, 100)
    keys = [(b"a" * 16, index) for index in range(10)]

    def open_session(group: str, member: str, count: int) -> str:
        """Open a session with some partitions. Return the members whose sessions were closed."""
        victims = sessions.make_room(group, member, keys[:count])
        if victims is None:
            return "rejected"
        sessions.open(group, member, ord(member), keys[:count], 5)
        assert sessions.partition_count <= 10
        return "".join(each.holder.member_id for each in victims)

    assert [open_session("large", *each) for each in (("a", 1), ("b", 2), ("c", 3), ("d", 3), ("e", 1))] == [""] * 5
    # The group itself cannot have more. Its largest session makes room for another group, the oldest one first.
    assert open_session("large", "f", 1) == "rejected"
    assert open_session("small", "x", 2) == "c"
    assert open_session("small", "y", 1) == ""
    # Another 3 would leave the large group with fewer partitions than the small one.
    assert open_session("small", "z", 3) == "rejected"
    assert [open_session("other", *each) for each in (("p", 3), ("q", 1))] == ["d", "rejected"]
    # The partitions that a request adds to a session count, too.
    assert (sessions.partition_count, len(sessions)) == (10, 6)
    with pytest.raises(KafkaError) as error:
        sessions.proceed(sessions.find("small", "y"), 1, keys[:2], [])
    assert code_of(error) == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    sessions.close_connection(ord("p"))
    sessions.proceed(sessions.find("large", "b"), 1, keys[:5], [])
    new = sessions.open("new", "n", ord("n"), [], 5)[0]
    assert [each.holder.member_id for each in sessions.proceed(new, 1, keys[:2], [])] == ["b"]
    assert sessions.partition_count == 7


def test_reopened_session_keeps_its_holder_on_its_connection(sessions: ShareSessions) -> None:
    session = opened(sessions, "m", A)
    sessions.proceed(session, 1, [B], [])
    again, replaced = sessions.open("g", "m", 1, [C], 6)
    assert again is session
    assert replaced is None
    assert (again.epoch, list(again.targets), len(sessions), sessions.partition_count) == (1, [C], 1, 1)


def test_session_of_another_connection_replaces_the_former_one(sessions: ShareSessions) -> None:
    before = opened(sessions, "m", A, connection=1)
    after, replaced = sessions.open("g", "m", 2, [A], 5)
    assert replaced is before
    assert before.is_closed
    assert after.holder.session > before.holder.session
    assert sessions.close_connection(1) == []
    assert sessions.find("g", "m") is after


def test_end_of_connection_ends_all_its_sessions(sessions: ShareSessions) -> None:
    of_it = [opened(sessions, member, A, B) for member in "mn"]
    assert sessions.close_connection(1) == of_it
    assert (len(sessions), sessions.partition_count) == (0, 0)
    assert sessions.close_connection(1) == []


def test_holders_of_a_restarted_home_differ(sessions: ShareSessions) -> None:
    first = opened(sessions, "m", now_ns=100)
    second = opened(sessions, "n", now_ns=100)
    successor = ShareSessions(HOME, 2)
    third, _ = successor.open("g", "m", 9, [], 10_000)
    assert len({each.holder.session for each in (first, second, third)}) == 3
    assert {each.holder.home for each in (first, second, third)} == {HOME}


def test_rows_of_new_and_recovered_partitions_are_sent_once(sessions: ShareSessions) -> None:
    session = opened(sessions, "m", A)
    assert not session.needs_row(A, has_records=False, has_error=False)
    sessions.proceed(session, 1, [B], [])
    assert session.needs_row(B, has_records=False, has_error=False)
    assert not session.needs_row(B, has_records=False, has_error=False)
    assert session.needs_row(A, has_records=False, has_error=True)
    assert session.needs_row(A, has_records=False, has_error=False)
    assert not session.needs_row(A, has_records=False, has_error=False)


def test_partition_with_records_moves_behind_the_others(sessions: ShareSessions) -> None:
    session = opened(sessions, "m", A, B, C)
    assert session.needs_row(A, has_records=True, has_error=False)
    assert list(session.targets) == [B, C, A]
