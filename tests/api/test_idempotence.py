"""Idempotent producers (KIP-98) in a pipeline, and sequences of several producers and partitions."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.idempotence import Producer
from tests.support.raw import RawClient, produce_fields, values_of
from tests.support.topics import fresh_name

Log = tuple[str, bytes]


@pytest.fixture
def producer(client: RawClient, log: Log) -> Producer:
    return Producer(client, log[0])


def test_sequences_are_per_producer_and_partition(client: RawClient) -> None:
    name = fresh_name()
    client.create_topic(name, partitions=2)
    first, second = Producer(client, name), Producer(client, name)
    assert first.send(0) == (ErrorCode.NONE, 0)
    assert second.send(0) == (ErrorCode.NONE, 1)
    row = client.produce(name, first.make(0), partition=1)
    assert (row["error_code"], row["base_offset"]) == (ErrorCode.NONE, 0)
    assert second.send(1) == (ErrorCode.NONE, 2)


@pytest.mark.every_transport
def test_pipelined_idempotent_retry_returns_same_offsets(producer: Producer) -> None:
    for _ in range(2):
        for number in range(5):
            fields = produce_fields([(producer.topic, b"", [(0, producer.make(number))])])
            producer.client.send(ApiKey.PRODUCE, 9, fields)
        for number in range(5):
            _, answer = producer.client.receive(ApiKey.PRODUCE, 9)
            row = answer["responses"][0]["partition_responses"][0]
            assert (row["error_code"], row["base_offset"]) == (ErrorCode.NONE, number)
    stored = values_of(producer.client.fetch(producer.topic, 0)["records"])
    assert stored == [(number, b"%d" % number) for number in range(5)]


def test_sequence_gap_in_pipeline_rejects_all_that_follow(producer: Producer) -> None:
    codes = []
    for number in (0, 2, 3):
        producer.client.send(
            ApiKey.PRODUCE, 9, produce_fields([(producer.topic, b"", [(0, producer.make(number))])])
        )
    for _ in range(3):
        _, answer = producer.client.receive(ApiKey.PRODUCE, 9)
        codes.append(answer["responses"][0]["partition_responses"][0]["error_code"])
    gap = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert codes == [ErrorCode.NONE, gap, gap]
    assert producer.client.end_offset(producer.topic) == 1
