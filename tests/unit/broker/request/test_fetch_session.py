"""Incremental fetch sessions (KIP-227): their partitions, errors, and which session is evicted."""

from __future__ import annotations

import pytest

from kproc.broker.request import fetch_session
from kproc.broker.request.fetch_session import FINAL_EPOCH, INITIAL_EPOCH, FetchSession, SessionCache
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.hot import FetchPartition, FetchRequest

EPOCH_MAX = 2**31 - 1
MINUTE_NS = 60_000_000_000
Key = tuple[str | bytes | None, int]


def request(
    *partitions: tuple[str, int, int],
    session: tuple[int, int] = (0, INITIAL_EPOCH),
    forgotten: tuple[tuple[str, list[int]], ...] = (),
    by_id: bool = False,
) -> FetchRequest:
    """A Fetch of (topic, partition, offset), in that order."""
    topics = []
    for name, index, offset in partitions:
        wanted = FetchPartition(index, -1, offset, -1, -1, 1000)
        topics.append((None, _id(name), [wanted]) if by_id else (name, None, [wanted]))
    gone = [(None, _id(name), indexes) if by_id else (name, None, indexes) for name, indexes in forgotten]
    return FetchRequest(100, 1, 1 << 20, 0, *session, topics, gone, "")


def _id(name: str) -> bytes:
    return name.encode().ljust(16, b"\0")


def open_session(
    cache: SessionCache, *partitions: tuple[str, int, int], now_ns: int = 0, version: int = 12
) -> FetchSession:
    _, session, is_incremental = cache.resolve(
        request(*partitions, by_id=version >= 13), version, now_ns=now_ns
    )
    assert session is not None
    assert not is_incremental
    return session


def keys(session: FetchSession) -> list[Key]:
    return list(session.targets)


def refusal(cache: SessionCache, wanted: FetchRequest, version: int = 12) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        cache.resolve(wanted, version, now_ns=0)
    return ErrorCode(refused.value.code)


def test_full_request_creates_session_and_next_is_incremental() -> None:
    cache = SessionCache(10)
    session = open_session(cache, ("a", 0, 5), ("b", 1, 6))
    assert (session.epoch, keys(session)) == (1, [("a", 0), ("b", 1)])
    targets, found, is_incremental = cache.resolve(request(session=(session.id, 1)), 12, now_ns=0)
    assert found is session
    assert is_incremental
    assert [(target.key, target.request.fetch_offset) for target in targets] == [(("a", 0), 5), (("b", 1), 6)]
    assert session.epoch == 2


def test_incremental_request_changes_adds_and_forgets() -> None:
    cache = SessionCache(10)
    session = open_session(cache, ("a", 0, 0), ("a", 1, 0), ("b", 0, 0))
    changed = request(
        ("a", 1, 77), ("c", 3, 9), session=(session.id, 1), forgotten=(("b", [0, 5]), ("z", [1]))
    )
    targets, _, _ = cache.resolve(changed, 12, now_ns=0)
    assert {target.key: target.request.fetch_offset for target in targets} == {
        ("a", 0): 0,
        ("a", 1): 77,
        ("c", 3): 9,
    }


def test_reported_state_is_kept_when_offset_changes() -> None:
    cache = SessionCache(10)
    session = open_session(cache, ("a", 0, 0))
    session.targets["a", 0].last_offsets = (0, 42, 42)
    cache.resolve(request(("a", 0, 10), session=(session.id, 1)), 12, now_ns=0)
    assert session.targets["a", 0].last_offsets == (0, 42, 42)


def test_partition_that_is_forgotten_and_added_again_is_news() -> None:
    cache = SessionCache(10)
    session = open_session(cache, ("a", 0, 0), ("b", 0, 0))
    session.targets["a", 0].last_offsets = (0, 42, 42)
    cache.resolve(request(session=(session.id, 1), forgotten=(("a", [0]),)), 12, now_ns=0)
    cache.resolve(request(("a", 0, 7), session=(session.id, 2)), 12, now_ns=0)
    assert session.targets["a", 0].last_offsets == (-1, -1, -1)


def test_session_partitions_with_data_move_to_the_end() -> None:
    session = open_session(SessionCache(10), ("a", 0, 0), ("b", 0, 0), ("c", 0, 0), ("d", 0, 0))
    session.served([("a", 0), ("c", 0), ("gone", 0)])
    assert keys(session) == [("b", 0), ("d", 0), ("a", 0), ("c", 0)]


@pytest.mark.parametrize("epoch", [2, 3, EPOCH_MAX, -2])
def test_unexpected_epoch_is_refused_and_the_session_stays(epoch: int) -> None:
    cache = SessionCache(10)
    session = open_session(cache, ("a", 0, 0))
    assert refusal(cache, request(session=(session.id, epoch))) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert cache.resolve(request(session=(session.id, 1)), 12, now_ns=0)[1] is session


def test_repeated_request_is_refused() -> None:
    cache = SessionCache(10)
    session = open_session(cache, ("a", 0, 0))
    cache.resolve(request(session=(session.id, 1)), 12, now_ns=0)
    assert refusal(cache, request(session=(session.id, 1))) == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_unknown_session_is_refused() -> None:
    assert refusal(SessionCache(10), request(session=(4711, 1))) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refusal(SessionCache(10), request(session=(0, 1))) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_epoch_wraps_to_1_and_never_to_0() -> None:
    cache = SessionCache(10)
    session = open_session(cache, ("a", 0, 0))
    session.epoch = EPOCH_MAX
    cache.resolve(request(session=(session.id, EPOCH_MAX)), 12, now_ns=0)
    assert session.epoch == 1
    assert cache.resolve(request(session=(session.id, 1)), 12, now_ns=0)[1] is session


@pytest.mark.parametrize("epoch", [INITIAL_EPOCH, FINAL_EPOCH])
def test_full_and_final_requests_end_the_session_they_name(epoch: int) -> None:
    cache = SessionCache(10)
    session = open_session(cache, ("a", 0, 0))
    _, successor, _ = cache.resolve(request(("b", 0, 0), session=(session.id, epoch)), 12, now_ns=0)
    assert len(cache) == (1 if epoch == INITIAL_EPOCH else 0)
    assert (successor is not None) == (epoch == INITIAL_EPOCH)
    assert successor is not session
    assert refusal(cache, request(session=(session.id, 1))) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_final_request_is_served_without_a_session() -> None:
    targets, session, is_incremental = SessionCache(10).resolve(
        request(("a", 0, 3), session=(0, FINAL_EPOCH)), 12, now_ns=0
    )
    assert [target.key for target in targets] == [("a", 0)]
    assert (session, is_incremental) == (None, False)


@pytest.mark.parametrize("version", [4, 5, 6])
def test_versions_before_sessions_have_none(version: int) -> None:
    cache = SessionCache(10)
    assert cache.resolve(request(("a", 0, 0), session=(0, -1)), version, now_ns=0)[1] is None
    assert len(cache) == 0


def test_empty_full_request_creates_session_to_extend() -> None:
    cache = SessionCache(10)
    session = open_session(cache)
    wanted = request(("a", 0, 0), session=(session.id, 1))
    targets, same, is_incremental = cache.resolve(wanted, 12, now_ns=0)
    assert ([target.key for target in targets], same, is_incremental) == ([("a", 0)], session, True)


def test_session_whose_last_partition_is_forgotten_ends() -> None:
    cache = SessionCache(10)
    session = open_session(cache, ("a", 0, 0))
    emptied = request(session=(session.id, 1), forgotten=(("a", [0]),))
    assert cache.resolve(emptied, 12, now_ns=0) == ([], None, False)
    assert len(cache) == 0


@pytest.mark.parametrize(("made_by", "used_by"), [(12, 13), (13, 12)])
def test_session_by_names_is_not_one_by_ids(made_by: int, used_by: int) -> None:
    cache = SessionCache(10)
    session = open_session(cache, ("a", 0, 0), version=made_by)
    wanted = request(session=(session.id, 1), by_id=used_by >= 13)
    assert refusal(cache, wanted, used_by) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_an_unexpected_epoch_comes_before_names_and_ids() -> None:
    cache = SessionCache(10)
    session = open_session(cache, ("a", 0, 0))
    wanted = request(session=(session.id, 7), by_id=True)
    assert refusal(cache, wanted, version=13) == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_targets_by_id_are_told_apart_by_id() -> None:
    session = open_session(SessionCache(10), ("a", 0, 0), ("b", 0, 0), version=13)
    assert keys(session) == [(_id("a"), 0), (_id("b"), 0)]


# -- the limit -----------------------------------------------------------------------------------------------


def test_full_session_cache_keeps_active_sessions() -> None:
    cache = SessionCache(2)
    sessions = [open_session(cache, ("a", 0, 0)) for _ in range(2)]
    targets, session, _ = cache.resolve(request(("b", 0, 0)), 12, now_ns=2 * MINUTE_NS - 1)
    assert session is None, "this client goes on with full requests"
    assert len(targets) == 1
    for kept in sessions:
        assert cache.resolve(request(session=(kept.id, 1)), 12, now_ns=0)[1] is kept


def test_full_cache_evicts_session_idle_for_two_minutes() -> None:
    cache = SessionCache(2)
    first = open_session(cache, ("a", 0, 0), now_ns=0)
    second = open_session(cache, ("a", 0, 0), now_ns=1)
    cache.resolve(request(session=(first.id, 1)), 12, now_ns=MINUTE_NS)  # So the second is the oldest.
    third = open_session(cache, ("b", 0, 0), now_ns=2 * MINUTE_NS + 1)
    assert len(cache) == 2
    assert refusal(cache, request(session=(second.id, 1))) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.resolve(request(session=(first.id, 2)), 12, now_ns=0)[1] is first
    assert cache.resolve(request(session=(third.id, 1)), 12, now_ns=0)[1] is third


def test_session_forgetting_all_ends_and_named_is_answered() -> None:
    cache = SessionCache(10)
    session = open_session(cache, ("a", 0, 0), ("b", 0, 0))
    wanted = request(("b", 0, 7), session=(session.id, 1), forgotten=(("a", [0]), ("b", [0])))
    targets, found, is_incremental = cache.resolve(wanted, 12, now_ns=0)
    assert ([(each.key, each.request.fetch_offset) for each in targets], found, is_incremental) == (
        [(("b", 0), 7)],
        None,
        False,
    )
    assert len(cache) == 0


def test_session_cache_without_slots_gives_no_session() -> None:
    cache = SessionCache(0)
    assert cache.resolve(request(("a", 0, 0)), 12, now_ns=10**15)[1] is None


def test_ids_are_positive_and_differ() -> None:
    cache = SessionCache(1000)
    ids = {open_session(cache, ("a", 0, 0)).id for _ in range(500)}
    assert len(ids) == 500
    assert all(0 < session_id <= EPOCH_MAX for session_id in ids)


def test_id_in_use_is_not_given_out_again() -> None:
    class Repeating:
        """Draws the same number twice."""

        def __init__(self) -> None:
            self.numbers = [7, 7, 7, 8]

        def randint(self, _low: int, _high: int) -> int:
            return self.numbers.pop(0)

    cache = SessionCache(10)
    cache._random = Repeating()
    assert [open_session(cache, ("a", 0, 0)).id for _ in range(2)] == [7, 8]


def test_session_that_grows_too_large_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each incremental Fetch walks all partitions of its session."""
    monkeypatch.setattr(fetch_session, "FETCH_ROWS_MAX", 3)
    cache = SessionCache(10)
    session = open_session(cache, ("t", 0, 0), ("t", 1, 0))
    cache.resolve(request(("t", 2, 0), session=(session.id, 1)), 12, now_ns=0)
    grown = request(("t", 3, 0), session=(session.id, 2))
    assert refusal(cache, grown) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(cache) == 0
