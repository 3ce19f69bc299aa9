"""MarkerDelivery: markers are sent in bounded pieces, and again until each partition has them."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator.rules import Marker
from kproc.broker.transaction.marker_delivery import MARKERS, MARKERS_PER_CYCLE, RETRY_MS
from kproc.broker.transaction.messages import Granted
from kproc.common.errors import ErrorCode
from tests.support.bytecodes import count_bytecodes
from tests.support.transaction_rig import COMMIT, P0, P1, CoordinatorRig

NONE = int(ErrorCode.NONE)


def ongoing(rig: CoordinatorRig, *, version: int = 2) -> Granted:
    producer = rig.producer()
    assert rig.add(producer, P0, P1, version=version) == [NONE]
    return producer


def codes(answers: list[Granted]) -> list[int]:
    return [answer.error_code for answer in answers]


def test_rejected_markers_are_resent_to_their_partition_only() -> None:
    rig = CoordinatorRig()
    rig.end(ongoing(rig), COMMIT)
    assert len(rig.take_markers(p1=ErrorCode.NOT_LEADER_OR_FOLLOWER)) == 2
    assert rig.take_markers() == []
    for code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT):
        rig.pass_ms(RETRY_MS)
        assert [key for key, _ in rig.take_markers(code)] == [P1]
        assert rig.word == "PrepareCommit"
    rig.pass_ms(RETRY_MS)
    rig.take_markers()
    assert rig.word == "CompleteCommit"


def test_a_partition_that_is_gone_needs_no_marker() -> None:
    rig = CoordinatorRig()
    rig.end(ongoing(rig), COMMIT)
    rig.take_markers(p0=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert rig.word == "CompleteCommit"


def test_coordinator_fenced_by_partition_leaves_rest_to_newer() -> None:
    rig = CoordinatorRig()
    rig.end(ongoing(rig), COMMIT)
    rig.take_markers(p0=ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    rig.pass_ms(60_000)
    assert (rig.word, rig.sent) == ("PrepareCommit", [])
    rig.restart(rig.log.records, epoch=8)
    assert {marker.coordinator_epoch for _, marker in rig.take_markers()} == {8}
    assert rig.word == "CompleteCommit"


def test_the_markers_of_many_transactions_are_sent_together() -> None:
    rig = CoordinatorRig()
    for name in ("a", "b"):
        producer = rig.producer(name)
        rig.add(producer, name=name)
        rig.end(producer, COMMIT, name=name)
    rig.work()
    ((parts, _),) = rig.sent
    assert len({marker.producer_id for _, marker in parts}) == 2


def test_markers_of_large_transactions_take_several_duty_cycles() -> None:
    """An own partition appends its marker at once, so others would wait for all of a transaction's partitions."""
    rig = CoordinatorRig()
    for name in ("a", "b"):
        producer = rig.producer(name)
        rig.add(producer, *((name, index) for index in range(2 * MARKERS_PER_CYCLE)), name=name)
        rig.end(producer, COMMIT, name=name)
    counts = []
    rig.work()
    while rig.sent:
        ((parts, on_code),) = rig.sent
        rig.sent = []
        counts.append(len(parts))
        for at in range(len(parts)):
            on_code(at, NONE)
        rig.work()
    assert counts == [MARKERS_PER_CYCLE] * 4
    assert [rig.state(name).state.word for name in ("a", "b")] == ["CompleteCommit", "CompleteCommit"]


def test_cycle_looks_at_as_many_transactions_as_it_sends_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a load all decided transactions are due. Each of hundreds of cycles looked at all of them."""
    monkeypatch.setattr("kproc.broker.transaction.marker_delivery.MARKERS_PER_CYCLE", 10)
    rig = CoordinatorRig()
    for at in range(300):
        producer = rig.producer(f"id{at}")
        rig.add(producer, P0, name=f"id{at}")
        rig.end(producer, COMMIT, name=f"id{at}")
    rig.restart(rig.log.records)
    for _ in range(2):
        cost = count_bytecodes(lambda: rig.coordinator.tick(MARKERS), unless_in=__file__)
        assert cost < 6_000
    assert [len(parts) for parts, _ in rig.sent] == [10, 10]
    for _ in range(100):
        rig.take_markers()
        rig.pass_ms(1)
    assert all(rig.state(f"id{at}").state.word == "CompleteCommit" for at in range(300))


def test_transaction_end_waits_only_for_its_own_markers() -> None:
    rig = CoordinatorRig()
    names = ("a", "b")
    for name, partition in zip(names, (P0, P1), strict=True):
        producer = rig.producer(name)
        rig.add(producer, partition, name=name)
        rig.end(producer, COMMIT, name=name)
    rig.work()
    ((parts, on_code),) = rig.sent
    assert [key for key, _ in parts] == [P0, P1]
    on_code(0, NONE)
    assert [rig.state(name).state.word for name in names] == ["CompleteCommit", "PrepareCommit"]
    rig.sent = []
    rig.pass_ms(10 * RETRY_MS)
    assert rig.sent == [], "nobody is asked again before the answer is here"
    on_code(1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    rig.pass_ms(RETRY_MS)
    assert [key for key, _ in rig.take_markers()] == [P1]
    assert rig.state("b").state.word == "CompleteCommit"


# ---- loading ----------------------------------------------------------------------------------------------


def test_loaded_decision_resends_markers() -> None:
    rig = CoordinatorRig()
    producer = ongoing(rig)
    rig.end(producer, COMMIT)
    rig.restart(rig.log.records, epoch=8)
    marker = Marker(producer.producer_id, 1, 8, True, 2)
    assert rig.take_markers() == [(P0, marker), (P1, marker)]
    assert rig.word == "CompleteCommit"
    assert codes(rig.end(producer, COMMIT)) == [NONE]


def test_loaded_decision_sends_no_marker_before_durable() -> None:
    rig = CoordinatorRig()
    rig.end(ongoing(rig), COMMIT)
    rig.restart(rig.log.records, holds_syncs=True)
    assert rig.take_markers() == []
    rig.pass_ms(10 * RETRY_MS)
    assert rig.take_markers() == []
    rig.log.sync()
    assert [key for key, _ in rig.take_markers()] == [P0, P1]
    assert rig.word == "CompleteCommit"


def test_retries_of_markers_and_writes_are_counted() -> None:
    rig = CoordinatorRig()
    rig.end(ongoing(rig), COMMIT)
    assert rig.coordinator.count_retries() == (0, 0)
    rig.take_markers(p1=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert rig.coordinator.count_retries() == (1, 0)
    rig.clock.advance_ms(RETRY_MS)
    rig.log.error = ErrorCode.KAFKA_STORAGE_ERROR
    rig.take_markers()
    assert rig.coordinator.count_retries() == (0, 1)
    rig.log.error = ErrorCode.NONE
    rig.pass_ms(RETRY_MS)
    assert rig.coordinator.count_retries() == (0, 0)
    assert rig.word == "CompleteCommit"
