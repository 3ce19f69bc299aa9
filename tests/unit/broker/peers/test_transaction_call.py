"""Transactions over several Handlers: requests, markers, deaths and transfers."""

from __future__ import annotations

import pytest

from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kproc.broker.coordinator.partitioning import partition_for
from kproc.broker.peers.transaction_call import TxnProducer, request_join
from kproc.common.errors import ErrorCode
from kproc.wire.batch_header import HEADER_BYTES
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import decode_records, parse_header
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.handler_transactions import (
    PARTITIONS,
    TOPIC,
    Fields,
    Producer,
    Start,
    begun,
    cluster,
    home_of,
    settled,
)


def markers_of(rig: HandlerRig, index: int, topic: str = TOPIC) -> list[tuple[int, bool, int]]:
    """(producer's epoch, is commit, coordinator's epoch) of each in a partition's log."""
    log = rig.open(topic, index).log
    found = []
    data = log.reader.read_bytes(0, 1 << 20) if log.state.end_offset else b""
    position = 0
    while position + HEADER_BYTES <= len(data):
        header = parse_header(memoryview(data), position)
        batch = memoryview(data)[position : position + header.total_bytes]
        position += header.total_bytes
        if header.is_control:
            (record,) = decode_records(batch)
            assert record.key is not None
            assert record.value is not None
            found.append(
                (header.producer_epoch, record.key[3] == 1, int.from_bytes(record.value[2:6], "big"))
            )
    return found


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


def test_the_first_to_look_for_a_coordinator_makes_its_topic(start: Start) -> None:
    rig = cluster(start)
    producer = Producer(rig)
    assert producer.describe()["error_code"] == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert producer.init() == ErrorCode.NOT_COORDINATOR
    assert producer.find()["error_code"] == ErrorCode.NONE
    made = rig.cluster.image.topics_by_name[TRANSACTION_STATE_TOPIC]
    assert len(made.partitions) == 4
    assert made.configs["cleanup.policy"] == "compact"
    assert made.configs["compression.type"] == "uncompressed"
    assert producer.init() == ErrorCode.NONE


def test_a_decision_outlives_the_coordinators_handler(start: Start) -> None:
    rig = cluster(start)
    home = home_of(rig)
    producer = begun(rig, at=1 - home)
    producer.add(*range(PARTITIONS))
    owned = [index for index in range(PARTITIONS) if rig.owner(TOPIC, index) == 1 - home]
    # The decision is written, and no marker has been sent.
    coordinator = parts_of(rig.handler(home)).coordinators.by_topic[TRANSACTION_STATE_TOPIC].loaded()[0]
    coordinator._markers.send_due = lambda: None  # type: ignore[method-assign]
    producer.end()
    assert not markers_of(rig, owned[0])
    rig.kill(home)
    rig.start_handler(home, is_restart=True)
    settled(rig)
    for index in range(PARTITIONS):
        assert markers_of(rig, index) == [(1, True, 2)], "by the next coordinator, with a higher epoch"
    assert producer.describe()["transaction_state"] == "CompleteCommit"


def test_transaction_continues_after_coordinator_transfer(start: Start) -> None:
    rig = cluster(start)
    names = [f"p{number}" for number in range(8)]
    producers = [begun(rig, name) for name in names]
    assert {home_of(rig, name) for name in names} == {0, 1}
    for producer in producers:
        assert producer.add(0, 1) == [0, 0]
    rig.set_handler_count(1)
    settled(rig)
    for producer in producers:
        assert producer.describe()["transaction_state"] == "Ongoing"
        assert producer.end() == ErrorCode.NONE
    rig.set_handler_count(2)
    settled(rig)
    for producer in producers:
        assert producer.describe()["transaction_state"] == "CompleteCommit"
        assert producer.add(2) == [0]


def test_dead_partition_owner_gets_marker_when_back(start: Start) -> None:
    rig = cluster(start)
    home = home_of(rig)
    producer = begun(rig, at=home)
    producer.add(*range(PARTITIONS))
    rig.kill(1 - home)
    assert producer.end() == ErrorCode.NONE
    settled(rig)
    assert producer.describe()["transaction_state"] == "PrepareCommit"
    rig.start_handler(1 - home, is_restart=True)
    rig.advance_ms(2_000)
    settled(rig)
    assert producer.describe()["transaction_state"] == "CompleteCommit"
    assert all(markers_of(rig, index)[-1][:2] == (1, True) for index in range(PARTITIONS))


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


def test_all_partitions_join_or_none(start: Start) -> None:
    rig = cluster(start)
    producer = begun(rig)
    unknown, other = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    assert producer.add(0, 99, 1) == [other, unknown, other]
    assert producer.describe()["transaction_state"] == "Empty"
    producer.epoch += 5
    assert producer.add(0) == [ErrorCode.PRODUCER_FENCED]
    assert producer.add(0, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]


def test_unknown_partitions_precede_empty_transactional_id(start: Start) -> None:
    rig = cluster(start)
    producer = begun(rig)
    producer.name = ""
    assert producer.add(0, 1) == [ErrorCode.INVALID_REQUEST] * 2
    assert producer.add(0, 7) == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    codes: list[int] = []
    services, nobody = parts_of(rig.handler(0)).services, TxnProducer("", producer.producer_id, 0)
    request_join(services, nobody, [(TOPIC, 0)], adds=True, on_code=codes.append)
    assert codes == [ErrorCode.INVALID_REQUEST]


def test_brokers_add_and_verify_several_transactions(start: Start) -> None:
    rig = cluster(start)
    producers = [begun(rig, name) for name in ("a", "b")]
    producers[0].add(0)

    def ask(*, verifies: bool) -> list[list[int]]:
        answer = producers[0].ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            5,
            transactions=[
                {
                    "transactional_id": each.name,
                    "producer_id": each.producer_id,
                    "producer_epoch": each.epoch,
                    "verify_only": verifies,
                    "topics": [{"name": TOPIC, "partitions": [0, 1]}],
                }
                for each in producers
            ],
        )
        rows = answer["results_by_transaction"]
        assert [row["transactional_id"] for row in rows] == ["a", "b"]
        results = [row["topic_results"][0]["results_by_partition"] for row in rows]
        return [[each["partition_error_code"] for each in result] for result in results]

    abortable = int(ErrorCode.TRANSACTION_ABORTABLE)
    assert ask(verifies=True) == [[0, abortable], [abortable] * 2]
    assert ask(verifies=False) == [[0, 0], [0, 0]]
    assert ask(verifies=True) == [[0, 0], [0, 0]]


def test_owner_verifies_partition_and_is_answered_once(start: Start) -> None:
    rig = cluster(start)
    producer = begun(rig)
    for at in (0, 1):
        services = parts_of(rig.handler(at)).services
        codes: list[int] = []

        def join(txn: TxnProducer, index: int, *, adds: bool) -> int:
            codes.clear()  # noqa: B023
            request_join(services, txn, [(TOPIC, index)], adds=adds, on_code=codes.append)  # noqa: B023
            rig.settle()
            (code,) = codes  # noqa: B023
            return code

        txn = TxnProducer(producer.name, producer.producer_id, producer.epoch)
        assert join(txn, at, adds=False) == ErrorCode.TRANSACTION_ABORTABLE
        assert join(txn, at, adds=True) == ErrorCode.NONE
        assert join(txn, at, adds=False) == ErrorCode.NONE
        stranger = txn._replace(producer_id=txn.producer_id + 1)
        assert join(stranger, at, adds=True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert join(txn._replace(epoch=9), at, adds=False) == ErrorCode.PRODUCER_FENCED
    assert producer.describe()["topics"] == [{"topic": TOPIC, "partitions": [0, 1]}]


def test_group_offsets_join_transaction_by_groups_partition(start: Start) -> None:
    rig = cluster(start)
    producer = begun(rig)
    answer = producer.ask(
        ApiKey.ADD_OFFSETS_TO_TXN,
        3,
        transactional_id=producer.name,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id="readers",
    )
    assert answer["error_code"] == ErrorCode.NONE
    expected = {"topic": GROUP_METADATA_TOPIC, "partitions": [partition_for("readers", 2)]}
    assert producer.describe()["topics"] == [expected]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transaction_timeout": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 5}, ErrorCode.INVALID_REQUEST),
        ({"producer_id": 77, "producer_epoch": 5}, ErrorCode.PRODUCER_FENCED),
    ],
)
def test_a_producer_that_cannot_begin_is_told_why(start: Start, fields: Fields, code: ErrorCode) -> None:
    rig = cluster(start)
    producer = begun(rig)
    asked = {
        "transactional_id": producer.name,
        "transaction_timeout": 1_000,
        "producer_id": -1,
        "producer_epoch": -1,
        **fields,
    }
    assert producer.ask(ApiKey.INIT_PRODUCER_ID, 5, **asked)["error_code"] == code
    if code == ErrorCode.PRODUCER_FENCED:
        older = producer.ask(ApiKey.INIT_PRODUCER_ID, 3, **asked)
        assert older["error_code"] == ErrorCode.INVALID_PRODUCER_EPOCH
