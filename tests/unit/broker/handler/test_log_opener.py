"""LogOpener: logs are opened at first touch, a bounded number in each duty cycle, and only their requests wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.calls.cleaner_calls import ENFORCE_RETENTION, Deleted, PartitionRequest
from kproc.broker.cluster.image import PartitionImage
from kproc.broker.handler import deferred_openings
from kproc.broker.handler.owned_partition import OwnedPartition
from kproc.broker.handler.partitions import Partitions
from kproc.broker.request.context import PartitionMoving
from kproc.broker.storage import timestamp_search
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.logs import dated
from tests.support.raw import batch, fetch_fields, list_offsets_fields, produce_fields, values_of

Start = Callable[..., HandlerRig]
NO_ID = bytes(16)
PARTITIONS = 6


@pytest.fixture
def rig(start: Start, monkeypatch: pytest.MonkeyPatch) -> HandlerRig:
    """One log in each duty cycle."""
    monkeypatch.setattr(deferred_openings, "_OPENING_NS", 0)
    rig = start()
    rig.create_topic("t", partitions=PARTITIONS)
    return rig


def test_duty_cycle_opens_some_logs_and_sleeps_after_last(rig: HandlerRig) -> None:
    processor, handler = rig.processors[0], rig.handler()
    wanted = list_offsets_fields("t", [(index, -1) for index in range(PARTITIONS)])
    processor.send(ApiKey.LIST_OFFSETS, 7, wanted)
    for opened in range(1, PARTITIONS + 1):
        handler.do_work(0)
        assert len(rig.partitions()) == opened
        assert handler.next_deadline_ms() == 0
        assert len(processor.answers(settles=False)) == (opened == PARTITIONS)
    rig.settle()
    assert handler.next_deadline_ms() > 0


def test_produces_stay_in_order_and_other_requests_run(rig: HandlerRig) -> None:
    processor, handler = rig.processors[0], rig.handler()
    everywhere = produce_fields([("t", NO_ID, [(index, batch(b"1")) for index in range(PARTITIONS)])], acks=1)
    processor.send(ApiKey.PRODUCE, 9, everywhere)
    handler.do_work(0)
    last = PARTITIONS - 1
    assert rig.partitions().find(("t", last)) is None
    processor.send(
        ApiKey.PRODUCE, 9, produce_fields([("t", NO_ID, [(last, batch(b"2"))])], acks=1), connection=2
    )
    processor.send(
        ApiKey.PRODUCE, 9, produce_fields([("t", NO_ID, [(0, batch(b"2"))])], acks=1), connection=3
    )
    handler.do_work(0)
    (early,) = processor.answers(settles=False)
    assert early.connection_id == 3, "its log is open"
    assert sorted(answer.connection_id for answer in processor.answers()) == [1, 2]
    fields = fetch_fields([("t", NO_ID, [(last, 0)])])
    answer = processor.ask(ApiKey.FETCH, 12, fields)
    (row,) = answer["responses"][0]["partitions"]
    assert values_of(row["records"]) == [(0, b"1"), (1, b"2")]


def test_a_fetch_waits_for_its_log_and_hears_of_a_deletion(rig: HandlerRig) -> None:
    processor, handler = rig.processors[0], rig.handler()
    wanted = list_offsets_fields("t", [(index, -1) for index in range(PARTITIONS)])
    processor.send(ApiKey.LIST_OFFSETS, 7, wanted, connection=1)
    fields = fetch_fields([("t", NO_ID, [(PARTITIONS - 1, 0)])], max_wait_ms=60_000)
    processor.send(ApiKey.FETCH, 12, fields, connection=2)
    handler.do_work(0)
    assert not processor.answers(settles=False)
    rig.delete_topic("t")
    assert sorted(answer.connection_id for answer in processor.answers()) == [1, 2]
    assert parts_of(handler).transfers.is_idle


@pytest.mark.parametrize("handlers", [1, 2])
def test_fetch_without_wait_still_waits_for_its_log(
    start: Start, monkeypatch: pytest.MonkeyPatch, handlers: int
) -> None:
    """As in Kafka, where a topic's logs are open before anybody can ask for it."""
    monkeypatch.setattr(deferred_openings, "_OPENING_NS", 0)
    rig = start(handlers=handlers)
    rig.create_topic("t", partitions=PARTITIONS)
    wanted = [("t", NO_ID, [(index, 0) for index in range(PARTITIONS)])]
    rig.processors[0].send(ApiKey.FETCH, 12, fetch_fields(wanted, min_bytes=0))
    found = rig.processors[0].answers()
    for _ in range(PARTITIONS):
        rig.advance_ms(21)
        found += rig.processors[0].answers()
    (answer,) = found
    rows = answer.fields(ApiKey.FETCH, 12)["responses"][0]["partitions"]
    assert [(row["error_code"], row["high_watermark"]) for row in rows] == [(0, 0)] * PARTITIONS


def test_a_fetch_waits_for_its_log_a_second_at_most(rig: HandlerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    def get(_self: Partitions, name: str, partition: PartitionImage) -> OwnedPartition:
        raise PartitionMoving((name, partition.index), -1, -1)

    monkeypatch.setattr(Partitions, "get", get)
    rig.processors[0].send(ApiKey.FETCH, 12, fetch_fields([("t", NO_ID, [(0, 0)])], min_bytes=0))
    for _ in range(9):
        assert not rig.processors[0].answers()
        rig.advance_ms(100)
    rig.advance_ms(101)
    (answer,) = rig.processors[0].answers()
    (row,) = answer.fields(ApiKey.FETCH, 12)["responses"][0]["partitions"]
    assert row["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_retention_waits_too(rig: HandlerRig) -> None:
    handler = rig.handler()
    replies: list[Any] = []
    for index in range(PARTITIONS):
        parts_of(handler).owner_calls.handle(
            ENFORCE_RETENTION.name,
            PartitionRequest(0, "t", index),
            memoryview(b""),
            replies.append,
            lambda: False,
        )
    assert len(replies) == 1
    rig.settle()
    assert replies == [Deleted(0)] * PARTITIONS
    assert len(rig.partitions()) == PARTITIONS


@pytest.mark.parametrize("handlers", [1, 2])
def test_timestamp_search_runs_in_slices_between_requests(
    start: Start, monkeypatch: pytest.MonkeyPatch, handlers: int
) -> None:
    monkeypatch.setattr(deferred_openings, "_OPENING_NS", 0)
    monkeypatch.setattr(timestamp_search, "SLICE_RECORDS", 2)
    rig = start(handlers=handlers)
    rig.create_topic("t", partitions=2)
    for index in range(2):
        log = rig.open("t", index).log
        log.append([dated(0, 1, base=1_000, largest=5_000) for _ in range(5)])
        log.append([dated(0, base=6_000 + index, largest=6_000 + index)])
        rig.settle()
    processor = rig.processors[0]
    wanted = list_offsets_fields("t", [(0, 4_000), (1, 4_000)])
    processor.send(ApiKey.LIST_OFFSETS, 7, wanted, connection=1)
    for index in range(handlers):
        for _ in range(2):
            rig.handler(index).do_work(0)
            assert rig.handler(index).next_deadline_ms() == 0
    processor.send(ApiKey.LIST_OFFSETS, 7, list_offsets_fields("t", [(0, -1)]), connection=2)
    for index in range(handlers):
        rig.handler(index).do_work(0)
    assert [answer.connection_id for answer in processor.answers(settles=False)][:1] in ([2], [])
    answers = {answer.connection_id: answer for answer in processor.answers()}
    rows = answers[1].fields(ApiKey.LIST_OFFSETS, 7)["topics"][0]["partitions"]
    assert [(row["offset"], row["timestamp"]) for row in rows] == [(10, 6_000), (10, 6_001)]
    assert rig.handler().next_deadline_ms() > 0
