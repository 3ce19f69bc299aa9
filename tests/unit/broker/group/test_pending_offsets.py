"""Offsets committed in transactions: pending until a marker in the log, ordered by their place in it."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.coordinator.rules import Producer
from kproc.broker.group.messages import LeavingMember
from kproc.broker.group.records import OffsetKey
from kproc.common.errors import ErrorCode
from tests.support.coordinators import run_steps
from tests.support.group_coordinator_rig import LoggedRecord, Rig

A, B = Producer(7, 0), Producer(8, 3)
HOUR_MS = 3_600_000


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture(params=[False, True], ids=["as it runs", "loaded anew"])
def again(request: pytest.FixtureRequest, rig: Rig) -> Any:
    """What is true of a coordinator is true of the next one, which has the log alone."""
    return rig.make if request.param else lambda: None


def is_pending(rig: Rig, topic: str = "t", group: str = "g") -> bool:
    return rig.coordinator.offsets.pending.has(group, topic, 0)


def test_an_offset_of_a_transaction_counts_when_it_commits(rig: Rig, again: Any) -> None:
    codes = rig.commit(5, producer=A)
    rig.log.sync()
    again()
    assert (codes, rig.offset(), is_pending(rig), rig.states()) == ([0], None, True, {"g": "Empty"})
    rig.end(A.producer_id, is_commit=True)
    again()
    assert (rig.offset(), is_pending(rig)) == (5, False)


def test_an_offset_of_a_transaction_that_aborts_never_was(rig: Rig, again: Any) -> None:
    rig.commit(4)
    rig.commit(5, producer=A)
    rig.end(A.producer_id, is_commit=False)
    again()
    assert (rig.offset(), is_pending(rig)) == (4, False)


def test_a_transactions_last_offset_of_a_partition_is_the_one(rig: Rig, again: Any) -> None:
    rig.commit(5, producer=A)
    rig.commit(6, producer=A)
    rig.end(A.producer_id, is_commit=True)
    again()
    assert rig.offset() == 6


def test_a_commit_outside_that_came_later_holds(rig: Rig, again: Any) -> None:
    rig.commit(5, producer=A)
    rig.commit(9)
    rig.commit(6, topic="u")
    rig.commit(7, topic="u", producer=A)
    again()
    rig.end(A.producer_id, is_commit=True)
    again()
    assert (rig.offset(), rig.offset("u")) == (9, 7)


def test_later_record_of_two_transactions_wins_in_any_end_order(rig: Rig, again: Any) -> None:
    rig.commit(5, producer=A)
    rig.commit(6, producer=B)
    rig.end(B.producer_id, is_commit=True)
    again()
    assert (rig.offset(), is_pending(rig)) == (6, True)
    rig.end(A.producer_id, is_commit=True)
    again()
    assert (rig.offset(), is_pending(rig)) == (6, False)


def test_a_transaction_ends_for_its_producer_alone(rig: Rig, again: Any) -> None:
    rig.commit(5, producer=A)
    rig.commit(6, producer=B, group="h")
    rig.end(A.producer_id, is_commit=True)
    again()
    assert (rig.offset(), rig.offset(group="h"), is_pending(rig, group="h")) == (5, None, True)


def test_a_marker_may_come_twice_and_its_records_may_be_gone(rig: Rig) -> None:
    rig.end(A.producer_id, is_commit=True)
    rig.commit(5, producer=A)
    rig.end(A.producer_id, is_commit=True)
    rig.end(A.producer_id, is_commit=False)
    rig.commit(8, topic="u", producer=A)
    rig.end(A.producer_id, is_commit=False)
    rig.make()
    assert (rig.offset(), rig.offset("u")) == (5, None)
    # Compaction removes the records of an aborted transaction first, then its marker.
    gone = [offset for offset, each in rig.log.entries.items() if isinstance(each, LoggedRecord)][1]
    del rig.log.entries[gone]
    rig.make()
    assert (rig.offset(), rig.offset("u"), is_pending(rig, "u")) == (5, None, False)


def test_a_tombstone_takes_pending_offsets_along(rig: Rig, again: Any) -> None:
    rig.commit(5, producer=A)
    rig.commit(6, producer=B)
    rig.commit(7, topic="u", producer=A)
    told: list[Any] = []
    rig.coordinator.offset_requests.delete_offsets(
        "g", [OffsetKey("g", "t", 0)], lambda code, subscribed: told.append((code, subscribed))
    )
    rig.log.sync()
    again()
    assert (told, is_pending(rig), is_pending(rig, "u")) == ([(0, frozenset())], False, True)
    for producer in (A, B):
        rig.end(producer.producer_id, is_commit=True)
    again()
    assert (rig.offset(), rig.offset("u")) == (None, 7)


def test_a_group_that_is_deleted_takes_pending_offsets_along(rig: Rig, again: Any) -> None:
    rig.commit(4)
    rig.commit(5, producer=A)
    rig.commit(5, topic="u", producer=A)
    codes: list[int] = []
    rig.coordinator.deletion.delete("g", codes.append)
    rig.log.sync()
    rig.end(A.producer_id, is_commit=True)
    again()
    assert (codes, rig.states(), rig.offset(), rig.offset("u")) == ([0], {}, None, None)


def test_a_deleted_topic_takes_pending_offsets_along(rig: Rig, again: Any) -> None:
    rig.commit(5, producer=A)
    rig.commit(5, topic="u", producer=A)
    rig.log.flush()
    rig.delete_topic("t")
    rig.coordinator.topics_deleted(rig.known_topics())
    run_steps(rig.coordinator)
    rig.log.sync()
    again()
    rig.end(A.producer_id, is_commit=True)
    assert (rig.offset(), rig.offset("u")) == (None, 5)


def test_offset_with_pending_transaction_does_not_expire(rig: Rig, again: Any) -> None:
    rig.commit(4)
    rig.commit(4, topic="u")
    rig.commit(5, producer=A)
    rig.log.sync()
    again()
    rig.clock.advance_ms(HOUR_MS)
    rig.sweep()
    assert (rig.offset(), rig.offset("u"), rig.states()) == (4, None, {"g": "Empty"})
    rig.end(A.producer_id, is_commit=False)
    rig.sweep()
    assert (rig.offset(), rig.states()) == (None, {})


def test_a_group_with_an_open_transaction_alone_is_kept(rig: Rig, again: Any) -> None:
    rig.commit(5, producer=A)
    rig.log.sync()
    again()
    rig.clock.advance_ms(HOUR_MS)
    rig.sweep()
    assert rig.states() == {"g": "Empty"}
    rig.end(A.producer_id, is_commit=False)
    rig.sweep()
    assert rig.states() == {}


def test_transactional_commit_needs_member_of_generation(rig: Rig) -> None:
    member_id = rig.settle()
    codes = [
        rig.commit(5, producer=A, member_id=member_id, generation=1),
        rig.commit(5, producer=A, member_id=member_id, generation=2),
        rig.commit(5, producer=A, member_id="other", generation=1),
        rig.commit(5, producer=A),  # Of versions that name no member.
        rig.commit(5),
    ]
    rig.log.sync()
    assert codes == [[0], [ErrorCode.ILLEGAL_GENERATION], [ErrorCode.UNKNOWN_MEMBER_ID], [0], [25]]
    rig.coordinator.leave("g", [LeavingMember(member_id)], lambda result: None)
    rig.log.sync()
    assert rig.commit(5, group="new", producer=A, generation=1, knows_unknown_group=False) == [
        ErrorCode.ILLEGAL_GENERATION
    ]


def test_failed_transactional_commit_is_not_pending(rig: Rig) -> None:
    rig.log.error = ErrorCode.INVALID_PRODUCER_EPOCH
    codes = rig.commit(5, producer=A)
    rig.log.flush()
    assert (codes, is_pending(rig), rig.states()) == ([ErrorCode.INVALID_PRODUCER_EPOCH], False, {})
