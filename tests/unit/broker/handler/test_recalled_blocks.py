"""Requests that wait in a Handler do not need the arena block in which they came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kproc.wire.header import ApiKey
from kproc.wire.record_batch import decode_records
from tests.support.handler_rig import HandlerRig
from tests.support.raw import batch, fetch_fields, produce_fields

Start = Callable[..., HandlerRig]
NO_ID = bytes(16)


def recall_and_scramble(rig: HandlerRig) -> None:
    """Take the blocks of all waiting requests back, and use the memory for something else."""
    processor = rig.processors[0]
    rig.settle()
    assert processor.answers() == []
    assert rig.arena.lent_count() == 1
    processor.recall_blocks()
    assert processor.answers() == []
    assert rig.arena.lent_count() == 0
    offset = rig.arena.allocate(1 << 20)
    assert offset is not None
    with rig.arena.view(offset, 1 << 20) as view:
        view[:] = b"\xff" * (1 << 20)
    rig.arena.free(offset)


def test_parked_fetch_answers_after_its_block_is_recalled(start: Start) -> None:
    rig = start()
    rig.create_topic("t", partitions=2)
    fields = fetch_fields([("t", NO_ID, [(0, 0)])], max_wait_ms=60_000)
    fields["rack_id"] = "r" * 20_000
    processor = rig.processors[0]
    processor.send(ApiKey.FETCH, 12, fields)
    recall_and_scramble(rig)
    processor.send(ApiKey.PRODUCE, 9, produce_fields([("t", NO_ID, [(0, batch(b"value"))])]), connection=2)
    answers: list[Any] = [each for each in processor.answers() if each.connection_id == 1]
    (topic,) = answers[0].fields(ApiKey.FETCH, 12)["responses"]
    assert topic["topic"] == "t"
    assert b"value" in topic["partitions"][0]["records"]


def test_parked_join_answers_after_its_block_is_recalled(start: Start) -> None:
    rig = start(settings={"offsets.topic.num.partitions": 1, "group.initial.rebalance.delay.ms": 3000})
    rig.cluster.do("auto_create_topics", names=["__consumer_offsets"])
    rig.tell()
    metadata = bytes(range(256)) * 100
    fields = {
        "group_id": "g",
        "session_timeout": 30_000,
        "rebalance_timeout": 60_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }
    processor = rig.processors[0]
    processor.send(ApiKey.JOIN_GROUP, 3, fields)
    recall_and_scramble(rig)
    rig.advance_ms(3000)
    rig.advance_ms(3000)
    (answer,) = processor.answers()
    (member,) = answer.fields(ApiKey.JOIN_GROUP, 3)["members"]
    assert member["metadata"] == metadata


def test_produce_is_stored_after_its_block_is_recalled(start: Start) -> None:
    """The records are appended, and their sync is under way."""
    rig = start(settings={"kproc.flush": "group"})
    rig.create_topic("t")
    value = bytes(range(256)) * 200
    processor = rig.processors[0]
    processor.send(ApiKey.PRODUCE, 9, produce_fields([("t", NO_ID, [(0, batch(value))])], acks=-1))
    recall_and_scramble(rig)
    rig.syncers[0].end_round()
    (answer,) = processor.answers()
    (topic,) = answer.fields(ApiKey.PRODUCE, 9)["responses"]
    assert topic["partition_responses"][0]["error_code"] == 0
    answer = processor.ask(ApiKey.FETCH, 12, fetch_fields([("t", NO_ID, [(0, 0)])]), connection=2)
    stored = decode_records(answer["responses"][0]["partitions"][0]["records"])
    assert [record.value for record in stored] == [value]
