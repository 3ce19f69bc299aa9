"""Markers on their way from a coordinator to the owners of partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC
from kproc.broker.coordinator.rules import Marker
from kproc.broker.peers.markers import MarkerSender, append_marker, send_markers
from kproc.broker.request.context import PartitionKey, PartitionMoving
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.handler_transactions import written
from tests.support.raw import batch, produce_fields

Start = Callable[..., HandlerRig]
PID = 7
COMMIT = Marker(PID, 3, 5, is_commit=True, transaction_version=2)


def sent(rig: HandlerRig, parts: list[tuple[PartitionKey, Marker]], *, by: int = 0) -> list[list[int]]:
    """Where the outcomes come, once."""
    outcomes: list[list[int]] = []
    send_markers(parts_of(rig.handler(by)).services, parts, outcomes.append)
    return outcomes


def entries(rig: HandlerRig, index: int) -> list[tuple[int, int, int]]:
    """(producer id, epoch, coordinator epoch) that a partition knows."""
    found = rig.open("t", index).log.state.producers.entries()
    return [(entry.producer_id, entry.epoch, entry.coordinator_epoch) for entry in found]


def partition_of(rig: HandlerRig, owner: int) -> int:
    return next(n for n in range(4) if rig.owner("t", n) == owner)


def test_each_partition_gets_its_own_wherever_it_is(start: Start) -> None:
    rig = start(handlers=2)
    rig.create_topic("t", partitions=4)
    other = Marker(8, 0, 1, is_commit=False, transaction_version=0)
    outcomes = sent(
        rig,
        [(("t", n), COMMIT) for n in range(4)] + [(("t", 0), other), (("t", 9), other), (("gone", 0), other)],
    )
    assert len(parts_of(rig.handler(0)).calls) == 1  # Though two partitions or more are there.
    rig.settle()
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert outcomes == [[0, 0, 0, 0, 0, gone, gone]]
    assert entries(rig, 1) == [(PID, 3, 5)]
    assert entries(rig, 0) == [(PID, 3, 5), (8, 0, 1)]
    assert written(rig, 1) == [(bytes.fromhex("00000001"), bytes.fromhex("000000000005"))]


def test_marker_is_answered_after_its_sync(start: Start) -> None:
    rig = start(handlers=2, settings={"kproc.flush": "group"})
    rig.create_topic("t", partitions=4)
    for owner in (0, 1):
        outcomes = sent(rig, [(("t", partition_of(rig, owner)), COMMIT)])
        rig.settle()
        assert outcomes == []
        rig.syncers[owner].end_round()
        rig.settle()
        assert outcomes == [[0]]


def test_marker_for_offline_log_returns_storage_error(start: Start) -> None:
    rig = start()
    rig.create_topic("t", partitions=4)
    rig.open("t").log.state.set_offline("on purpose")
    assert sent(rig, [(("t", 0), COMMIT), (("t", 1), COMMIT)]) == [[ErrorCode.KAFKA_STORAGE_ERROR, 0]]


def test_marker_for_moving_log_is_rejected_until_the_log_is_here(start: Start) -> None:
    """The coordinator sends it again after 100 ms."""
    rig = start()
    rig.create_topic("t")
    partitions, services = rig.partitions(), parts_of(rig.handler()).services
    is_here = partitions.before_open

    def is_moving(key: PartitionKey, _row: object) -> None:
        raise PartitionMoving(key, 0, 0)

    partitions.before_open = is_moving
    codes: dict[int, int] = {}
    MarkerSender(services).send([(("t", 0), COMMIT)], codes.__setitem__)
    assert codes == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    partitions.before_open = is_here
    MarkerSender(services).send([(("t", 0), COMMIT)], codes.__setitem__)
    assert codes == {0: 0}


def test_an_owner_that_hangs_holds_up_its_own_markers_alone(start: Start) -> None:
    rig = start(handlers=3)
    rig.create_topic("t", partitions=9)
    keys = {owner: ("t", next(n for n in range(9) if rig.owner("t", n) == owner)) for owner in range(3)}
    codes: dict[int, int] = {}
    sender = MarkerSender(parts_of(rig.handler(0)).services)
    hanging, rig.handlers[2] = rig.handlers[2], None
    sender.send([(keys[owner], COMMIT) for owner in (2, 1, 0)], codes.__setitem__)
    rig.settle()
    assert codes == {1: 0, 2: 0}
    rig.handlers[2] = hanging
    rig.settle()
    assert codes == {0: 0, 1: 0, 2: 0}


def test_an_owner_has_a_bounded_number_of_markers_to_answer(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kproc.broker.peers.markers.IN_FLIGHT_MAX", most := 20)
    rig = start(handlers=2)
    rig.create_topic("t", partitions=4)
    ours, theirs = ("t", partition_of(rig, 0)), ("t", partition_of(rig, 1))
    sender = MarkerSender(parts_of(rig.handler(0)).services)
    left = ErrorCode.NOT_LEADER_OR_FOLLOWER

    def send(count: int) -> dict[int, int]:
        codes: dict[int, int] = {}
        markers = [Marker(pid, 0, 1, is_commit=True, transaction_version=0) for pid in range(count)]
        sender.send([(theirs, marker) for marker in markers] + [(ours, COMMIT)], codes.__setitem__)
        return codes

    first = send(most - 1)
    assert first == {most - 1: 0}, "ours is answered"
    assert send(3) == {1: left, 2: left, 3: 0}
    rig.settle()
    assert set(first.values()) == {0}
    assert len(first) == most
    again = send(most)
    rig.settle()
    assert set(again.values()) == {0}
    rig.kill(1)
    rig.settle()
    lost = send(most)
    rig.settle()
    assert [lost[at] for at in range(most)] == [left] * most
    assert sender._in_flight == {1: 0}


def test_an_owner_that_dies_may_have_it_or_not(start: Start) -> None:
    rig = start(handlers=2)
    rig.create_topic("t", partitions=4)
    outcomes = sent(rig, [(("t", partition_of(rig, 1)), COMMIT)])
    rig.kill(1)
    rig.settle()
    assert outcomes == [[ErrorCode.NOT_LEADER_OR_FOLLOWER]]


def test_a_partition_that_has_moved_meanwhile_is_looked_for(start: Start) -> None:
    rig = start(handlers=2)
    rig.create_topic("t", partitions=4)
    index = partition_of(rig, 1)
    rig.open("t", index)
    outcomes = sent(rig, [(("t", index), COMMIT)])
    rig.set_handler_count(1)
    assert outcomes == [[0]]
    assert rig.owner("t", index) == 0
    assert entries(rig, index) == [(PID, 3, 5)]


def test_late_ones_are_refused(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    services, codes = parts_of(rig.handler()).services, list[int]()
    for marker in (
        COMMIT,
        COMMIT,
        Marker(PID, 2, 5, is_commit=True, transaction_version=2),
        Marker(PID, 4, 4, is_commit=True, transaction_version=2),
    ):
        append_marker(services, ("t", 0), marker, codes.append)
    assert codes == [0, 0, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    assert rig.open("t").log.state.end_offset == 2


@pytest.mark.parametrize("raises", [0, 1])
def test_describe_producers_shows_open_transaction(
    start: Start, raises: int
) -> None:
    """A marker counts as the last that was heard of a producer: else one that only aborts looks idle."""
    rig = start()
    rig.create_topic("t")
    record = batch(b"v", timestamp_ms=77, producer_id=PID, producer_epoch=1, base_sequence=4)
    fields = produce_fields([("t", bytes(16), [(0, record)])], acks=1)
    rig.processors[0].ask(ApiKey.PRODUCE, 9, fields)
    rig.open("t").log.state.producers.record(PID, 1, (5, 1, 0, 78), transactional=True, heard_ms=5)

    def described() -> dict[str, Any]:
        asked = {"topics": [{"name": "t", "partition_indexes": [0]}]}
        answer = rig.processors[0].ask(ApiKey.DESCRIBE_PRODUCERS, 0, asked)
        (producer,) = answer["topics"][0]["partitions"][0]["active_producers"]
        return dict(producer)

    assert described() == {
        "producer_id": PID, "producer_epoch": 1, "last_sequence": 5, "last_timestamp": 78,
        "coordinator_epoch": -1, "current_txn_start_offset": 1,
    }  # fmt: skip
    rig.clock.advance_ms(1000)
    marker = Marker(PID, 1 + raises, 6, is_commit=True, transaction_version=0)
    assert sent(rig, [(("t", 0), marker)]) == [[0]]
    assert described() == {
        "producer_id": PID, "producer_epoch": 1 + raises, "last_sequence": -1 if raises else 5,
        "last_timestamp": rig.clock.wall_ms(), "coordinator_epoch": 6, "current_txn_start_offset": -1,
    }  # fmt: skip


def test_a_coordinators_topic_is_left_to_its_coordinator(start: Start) -> None:
    """Which shows or drops offsets by it. Until it is there the marker is sent again."""
    rig = start(handlers=2, settings={"offsets.topic.num.partitions": "2"})
    rig.cluster.do("auto_create_topics", names=[GROUP_METADATA_TOPIC])
    rig.tell()
    key = (GROUP_METADATA_TOPIC, next(n for n in range(2) if rig.owner(GROUP_METADATA_TOPIC, n) == 0))
    assert sent(rig, [(key, COMMIT)]) == [[0]]
    assert rig.open(*key).log.state.end_offset == 1
    late = Marker(PID, 2, 5, is_commit=True, transaction_version=2)
    assert sent(rig, [(key, late)]) == [[ErrorCode.INVALID_PRODUCER_EPOCH]]
    rig.handler().drain()
    assert sent(rig, [(key, COMMIT)]) == [[ErrorCode.NOT_LEADER_OR_FOLLOWER]]
