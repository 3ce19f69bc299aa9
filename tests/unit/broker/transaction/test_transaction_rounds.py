"""Rounds of sync that a transaction waits for, one after the other, with kproc.flush=group: four, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.cluster.internal_topics import TRANSACTION_STATE_TOPIC
from kproc.broker.coordinator.topic_coordinators import partition_for
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import TRANSACTIONAL
from tests.support.handler_rig import HandlerRig
from tests.support.handler_transactions import PARTITIONS, SETTINGS, TOPIC, Producer
from tests.support.raw import batch, produce_fields

Start = Callable[..., HandlerRig]
NAME = "payments"


class Rounds:
    """One Handler whose rounds end when they are told to; how many logs each had."""

    def __init__(self, start: Start) -> None:
        self.rig = start(settings={**SETTINGS, "kproc.flush": "group"})
        self.rig.controller_serves |= {"raise_leader_epochs", "allocate_producer_ids", "auto_create_topics"}
        self.rig.create_topic(TOPIC, partitions=PARTITIONS)
        self.syncer = self.rig.syncers[0]

    def send(self, key: ApiKey, version: int, fields: dict[str, Any]) -> None:
        self.rig.processors[0].send(key, version, fields, connection=1)
        self.rig.settle()

    def answers(self) -> int:
        return len(self.rig.processors[0].answers())

    def end(self) -> int:
        """End the round in work; how many logs it had."""
        (count,) = [len(each) for each in self.syncer.rounds]
        self.syncer.end_round()
        self.rig.settle()
        return count

    @property
    def is_quiet(self) -> bool:
        return not self.syncer.rounds

    def end_all(self) -> None:
        while not self.is_quiet:
            self.end()


@pytest.fixture
def rounds(start: Start) -> Rounds:
    return Rounds(start)


def begun(rounds: Rounds) -> Producer:
    """A producer whose init is durable."""
    rig, producer = rounds.rig, Producer(rounds.rig, NAME)
    producer.find()
    fields = {
        "transactional_id": NAME,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    rounds.send(ApiKey.INIT_PRODUCER_ID, 5, fields)
    for _ in range(4):
        rounds.end_all()
        rig.advance_ms(100)
    (answer,) = rig.processors[0].answers()
    granted = answer.fields(ApiKey.INIT_PRODUCER_ID, 5)
    producer.producer_id, producer.epoch = granted["producer_id"], granted["producer_epoch"]
    assert granted["error_code"] == 0
    return producer


@pytest.mark.parametrize("adds_by_producing", [False, True], ids=["added before", "added by producing"])
def test_transaction_waits_for_four_rounds_not_for_last_state(
    rounds: Rounds, adds_by_producing: bool
) -> None:
    producer = begun(rounds)
    for number in range(3):
        ask = {
            "transactional_id": NAME,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
        }
        if not adds_by_producing:
            names = {f"v3_and_below_{name}": value for name, value in ask.items()}
            topics = [{"name": TOPIC, "partitions": [0, 1, 2]}]
            rounds.send(ApiKey.ADD_PARTITIONS_TO_TXN, 3, {**names, "v3_and_below_topics": topics})
            assert rounds.end() == 1, "the state Ongoing"
            assert rounds.answers() == 1
        sequence = 0 if adds_by_producing else number
        record = batch(
            b"v",
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            flags=TRANSACTIONAL,
        )
        parts = [(index, record) for index in range(3)]
        fields = {**produce_fields([(TOPIC, bytes(16), parts)], acks=-1), "transactional_id": NAME}
        version = 12 if adds_by_producing else 11
        rounds.send(ApiKey.PRODUCE, version, fields)
        if adds_by_producing:
            assert rounds.end() == 1, "the state Ongoing"
            assert rounds.answers() == 0
        assert rounds.end() == 3, "the data"
        assert rounds.answers() == 1
        version = 5 if adds_by_producing else 4
        rounds.send(ApiKey.END_TXN, version, {**ask, "committed": True})
        assert rounds.answers() == 0
        assert rounds.end() == 1, "the decision"
        (answer,) = rounds.rig.processors[0].answers()
        if adds_by_producing:
            producer.epoch = answer.fields(ApiKey.END_TXN, 5)["producer_epoch"]
        assert rounds.end() == 3, "the markers"
        rounds.rig.advance_ms(10)
        assert rounds.is_quiet, "the last state is synced with the next one"
        rounds.send(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [NAME]})
        assert rounds.end() == 1, "the last state, because a description is durable"
        (answer,) = rounds.rig.processors[0].answers()
        (row,) = answer.fields(ApiKey.DESCRIBE_TRANSACTIONS, 0)["transaction_states"]
        assert row["transaction_state"] == "CompleteCommit"


def test_unsynced_decision_of_dead_coordinator_precedes_markers(rounds: Rounds) -> None:
    producer = begun(rounds)
    names = {"transactional_id": NAME, "producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    topics = [{"name": TOPIC, "partitions": [0, 1]}]
    added = {f"v3_and_below_{name}": value for name, value in names.items()}
    rounds.send(ApiKey.ADD_PARTITIONS_TO_TXN, 3, {**added, "v3_and_below_topics": topics})
    rounds.end()
    rounds.send(ApiKey.END_TXN, 4, {**names, "committed": True})
    rounds.rig.kill(0)
    rounds.rig.start_handler(0, is_restart=True)
    rounds.rig.advance_ms(200)
    state = rounds.rig.open(TRANSACTION_STATE_TOPIC, partition_for(NAME, 4)).log
    logs = [rounds.rig.open(TOPIC, index).log for index in (0, 1)]
    assert state.state.recovery_point < state.state.end_offset
    assert [log.state.end_offset for log in logs] == [0, 0]
    assert rounds.end() == 1, "the decision"
    assert state.state.recovery_point == state.state.end_offset
    assert [log.state.end_offset for log in logs] == [1, 1]
    assert rounds.end() == 2, "the markers"
