"""Idempotent producers (KIP-98): a retry gets its first offset again, a gap or an old epoch is refused."""

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


def test_retry_of_last_batch_returns_its_offset(producer: Producer) -> None:
    assert producer.send(0, 3) == (ErrorCode.NONE, 0)
    assert producer.send(3, 2) == (ErrorCode.NONE, 3)
    assert producer.send(3, 2) == (ErrorCode.NONE, 3)
    assert producer.client.end_offset(producer.topic) == 5


def test_retry_of_each_of_last_five_batches_is_a_duplicate(producer: Producer) -> None:
    for number in range(8):
        assert producer.send(number) == (ErrorCode.NONE, number)
    for number in range(3, 8):
        assert producer.send(number) == (ErrorCode.NONE, number)
    code, _ = producer.send(1)
    assert code in (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert producer.client.end_offset(producer.topic) == 8


def test_sequence_gap_is_rejected_until_it_is_filled(producer: Producer) -> None:
    assert producer.send(0)[0] == ErrorCode.NONE
    assert producer.send(2)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(1) == (ErrorCode.NONE, 1)
    assert producer.send(2) == (ErrorCode.NONE, 2)


def test_older_producer_epoch_is_rejected(producer: Producer) -> None:
    assert producer.send(0, epoch=3) == (ErrorCode.NONE, 0)
    assert producer.send(1, epoch=2)[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.send(1, epoch=3) == (ErrorCode.NONE, 1)


def test_newer_producer_epoch_starts_at_sequence_0(producer: Producer) -> None:
    assert producer.send(0, 5)[0] == ErrorCode.NONE
    assert producer.send(5, epoch=1)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(0, epoch=1) == (ErrorCode.NONE, 5)
    assert producer.send(5)[0] == ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequence_wraps_after_the_largest_int(producer: Producer) -> None:
    # A producer whose state the broker lost may begin anywhere; so may this one.
    largest = 2**31 - 1
    assert producer.send(largest - 1, 2) == (ErrorCode.NONE, 0)
    assert producer.send(0) == (ErrorCode.NONE, 2)
    assert producer.send(0) == (ErrorCode.NONE, 2)


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
