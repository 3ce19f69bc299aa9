"""Transactions over several Handlers: coordinators, deaths and transfers."""

from __future__ import annotations

import pytest

from kproc.broker.cluster.internal_topics import TRANSACTION_STATE_TOPIC
from kproc.broker.peers.transaction_call import TxnProducer, request_join
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import parts_of
from tests.support.handler_transactions import (
    PARTITIONS,
    TOPIC,
    Fields,
    Producer,
    Start,
    begun,
    cluster,
    home_of,
    markers_of,
    settled,
)


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
def test_invalid_init_producer_id_returns_its_error(start: Start, fields: Fields, code: ErrorCode) -> None:
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
