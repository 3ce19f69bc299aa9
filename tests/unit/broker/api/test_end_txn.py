"""EndTxn: commits and aborts over the partitions of two Handlers."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from tests.support.handler_transactions import PARTITIONS, TOPIC, Start, begun, cluster, markers_of, settled


def test_transaction_over_two_handlers_ends_in_all_partitions(start: Start) -> None:
    rig = cluster(start)
    assert {rig.owner(TOPIC, index) for index in range(PARTITIONS)} == {0, 1}
    for at, commits in ((0, True), (1, False)):
        producer = begun(rig, f"of-{at}", at=at)
        assert producer.add(*range(PARTITIONS)) == [0] * PARTITIONS
        assert producer.describe()["transaction_state"] == "Ongoing"
        assert producer.end(commits=commits) == ErrorCode.NONE
        settled(rig)
        state = producer.describe()
        assert state["transaction_state"] == ("CompleteCommit" if commits else "CompleteAbort")
        assert (state["producer_id"], state["producer_epoch"]) == (producer.producer_id, 1)
        for index in range(PARTITIONS):
            assert markers_of(rig, index)[-1][:2] == (1, commits)


def test_a_transaction_whose_topic_is_deleted_ends(start: Start) -> None:
    rig = cluster(start)
    rig.create_topic("short-lived")
    producer = begun(rig)
    assert producer.add(0, topic="short-lived") == [0]
    assert producer.add(0) == [0]
    rig.delete_topic("short-lived")
    assert producer.end() == ErrorCode.NONE
    settled(rig)
    assert producer.describe()["transaction_state"] == "CompleteCommit"


def test_timed_out_transaction_is_aborted_for_any_client(start: Start) -> None:
    rig = cluster(start)
    producer = begun(rig)
    producer.add(0)
    rig.advance_ms(60_001)
    rig.advance_ms(10_000)
    settled(rig)
    assert markers_of(rig, 0) == [(1, False, 1)]
    # A producer of the older kind is fenced.
    assert producer.end(version=4) == ErrorCode.PRODUCER_FENCED
    assert producer.end(version=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.end(commits=False) == ErrorCode.NONE
    assert producer.epoch == 1
