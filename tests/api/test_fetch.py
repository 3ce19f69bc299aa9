"""Fetch without sessions: every version, the limits, the long poll, several partitions, wrong offsets."""

from __future__ import annotations

import threading
import time

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.raw import RawClient, batch, fetch_fields, split_batches, values_of
from tests.support.topics import fresh_name
from tests.support.wait import pause

Log = tuple[str, bytes]
# Longer than a client of these tests waits for an answer: a Fetch that nothing wakes fails the test.
LONG_WAIT_MS = 600_000


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_returns_records_and_offsets_in_every_version(client: RawClient, log: Log, version: int) -> None:
    name, topic_id = log
    client.produce(name, batch(b"a", b"b"))
    client.produce(name, batch(b"c"))
    row = client.fetch(name, 0, version=version, topic_id=topic_id)
    assert row["error_code"] == ErrorCode.NONE
    assert row["partition_index"] == 0
    assert row["high_watermark"] == 3
    assert row["last_stable_offset"] == 3
    assert row.get("log_start_offset", 0) == 0
    assert values_of(row["records"]) == [(0, b"a"), (1, b"b"), (2, b"c")]


@pytest.mark.parametrize("version", [4, 12, 13, 18])
def test_fetch_offset_inside_a_batch_returns_the_whole_batch(client: RawClient, log: Log, version: int) -> None:
    name, topic_id = log
    client.produce(name, batch(b"a", b"b", b"c"))
    client.produce(name, batch(b"d"))
    row = client.fetch(name, 1, version=version, topic_id=topic_id)
    assert [offset for offset, _ in values_of(row["records"])] == [0, 1, 2, 3]
    assert [
        offset
        for offset, _ in values_of(client.fetch(name, 3, version=version, topic_id=topic_id)["records"])
    ] == [3]


def test_fetch_beyond_log_end_is_offset_out_of_range(client: RawClient, log: Log) -> None:
    name, _ = log
    client.produce(name, batch(b"a"))
    at_end = client.fetch(name, 1)
    assert (at_end["error_code"], bytes(at_end["records"] or b"")) == (ErrorCode.NONE, b"")
    for offset in (2, 1_000_000, -1):
        row = client.fetch(name, offset)
        assert row["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
        assert not row["records"]


def test_fetch_of_unknown_topic_partition_and_id_fails(client: RawClient, log: Log) -> None:
    name, topic_id = log
    assert client.fetch(fresh_name("absent"), 0)["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.fetch(name, 0, partition=5)["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    row = client.fetch("", 0, version=13, topic_id=topic_id, partition=5)
    assert row["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    row = client.fetch("", 0, version=13, topic_id=bytes(range(16)))
    assert row["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID


def test_leader_epoch_of_the_client_is_checked(client: RawClient, log: Log) -> None:
    name, _ = log
    epoch = client.describe_topic(name)["partitions"][0]["leader_epoch"]
    assert client.fetch(name, 0, current_leader_epoch=epoch)["error_code"] == ErrorCode.NONE
    assert (
        client.fetch(name, 0, current_leader_epoch=epoch + 1)["error_code"] == ErrorCode.UNKNOWN_LEADER_EPOCH
    )


def test_fetch_returns_first_batch_above_every_limit(client: RawClient, log: Log) -> None:
    # KIP-74: otherwise a consumer with small limits would never get past a large batch.
    name, _ = log
    client.produce(name, batch(b"x" * 100_000))
    client.produce(name, batch(b"y" * 100_000))
    row = client.fetch(name, 0, partition_max_bytes=1_000, max_bytes=500)
    assert values_of(row["records"]) == [(0, b"x" * 100_000)]
    assert len(row["records"]) < 150_000


def test_partition_max_bytes_applies_after_the_first_batch(client: RawClient, log: Log) -> None:
    name, _ = log
    for number in range(20):
        client.produce(name, batch(b"%02d" % number + bytes(10_000)))
    row = client.fetch(name, 0, partition_max_bytes=35_000)
    assert len(row["records"]) <= 35_000
    assert len(split_batches(row["records"])) == 3


def test_fetch_max_bytes_0_returns_one_batch(client: RawClient) -> None:
    name = fresh_name()
    client.create_topic(name, partitions=3)
    for index in (1, 2):
        client.produce(name, batch(b"x"), partition=index)
    fields = fetch_fields([(name, b"", [(index, 0) for index in range(3)])], max_bytes=0)
    parts = client.call(ApiKey.FETCH, 12, fields)["responses"][0]["partitions"]
    assert [len(split_batches(part["records"] or b"")) for part in parts] == [0, 1, 0]


def test_fetch_max_bytes_limits_the_whole_response(client: RawClient) -> None:
    name = fresh_name()
    client.create_topic(name, partitions=5)
    for index in range(5):
        client.produce(name, batch(bytes(10_000)), partition=index)
    fields = fetch_fields([(name, b"", [(index, 0) for index in range(5)])], max_bytes=25_000)
    parts = client.call(ApiKey.FETCH, 12, fields)["responses"][0]["partitions"]
    sizes = [len(part["records"] or b"") for part in parts]
    assert sum(sizes) <= 25_000
    assert sum(1 for part in parts if split_batches(part["records"])) == 2
    assert {part["error_code"] for part in parts} == {ErrorCode.NONE}


def test_fetch_of_several_topics_and_partitions(client: RawClient) -> None:
    one, two = fresh_name(), fresh_name()
    client.create_topic(one, partitions=3)
    client.create_topic(two, partitions=2)
    for name, count in ((one, 3), (two, 2)):
        for index in range(count):
            client.produce(name, batch(f"{name}/{index}".encode()), partition=index)
    absent = fresh_name("absent")
    topics = [
        (one, b"", [(2, 0), (0, 0), (1, 5)]),
        (two, b"", [(0, 0), (1, 0), (7, 0)]),
        (absent, b"", [(0, 0)]),
    ]
    answer = client.call(ApiKey.FETCH, 12, fetch_fields(topics))
    found = {
        (row["topic"], part["partition_index"]): (
            part["error_code"],
            [value for _, value in values_of(part["records"])],
        )
        for row in answer["responses"]
        for part in row["partitions"]
    }
    assert found == {
        (one, 0): (ErrorCode.NONE, [f"{one}/0".encode()]),
        (one, 1): (ErrorCode.OFFSET_OUT_OF_RANGE, []),
        (one, 2): (ErrorCode.NONE, [f"{one}/2".encode()]),
        (two, 0): (ErrorCode.NONE, [f"{two}/0".encode()]),
        (two, 1): (ErrorCode.NONE, [f"{two}/1".encode()]),
        (two, 7): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
        (absent, 0): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
    }


@pytest.mark.every_transport
def test_empty_fetch_waits_max_wait(client: RawClient, log: Log) -> None:
    started = time.monotonic()
    row = client.fetch(log[0], 0, max_wait_ms=400)
    taken = time.monotonic() - started
    assert not row["records"]
    assert taken >= 0.35, taken


def test_fetch_with_partition_error_does_not_wait(client: RawClient, log: Log) -> None:
    assert client.fetch(log[0], 7, max_wait_ms=LONG_WAIT_MS)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE


def produce_later(bootstrap: str, topic: str, delays_and_sizes: list[tuple[float, int]]) -> threading.Thread:
    def run() -> None:
        with RawClient(bootstrap) as other:
            for delay, size in delays_and_sizes:
                pause(delay)
                assert other.produce(topic, batch(bytes(size)))["error_code"] == ErrorCode.NONE

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.every_transport
def test_append_wakes_parked_fetch(broker: BrokerUnderTest, client: RawClient, log: Log) -> None:
    sender = produce_later(broker.bootstrap, log[0], [(0.3, 10)])
    row = client.fetch(log[0], 0, max_wait_ms=LONG_WAIT_MS)
    sender.join()
    assert len(values_of(row["records"])) == 1


@pytest.mark.every_transport
def test_one_append_wakes_many_parked_fetches(
    broker: BrokerUnderTest, client: RawClient, log: Log
) -> None:
    waiting = [RawClient(broker.bootstrap) for _ in range(20)]
    try:
        for one in waiting:
            one.send(ApiKey.FETCH, 12, fetch_fields([(log[0], b"", [(0, 0)])], max_wait_ms=LONG_WAIT_MS))
        pause(0.1)
        client.produce(log[0], batch(b"for all"))
        for one in waiting:
            _, answer = one.receive(ApiKey.FETCH, 12)
            assert values_of(answer["responses"][0]["partitions"][0]["records"]) == [(0, b"for all")]
    finally:
        for one in waiting:
            one.close()


@pytest.mark.every_transport
def test_disconnect_during_parked_fetch_is_harmless(
    broker: BrokerUnderTest, client: RawClient, log: Log
) -> None:
    for _ in range(10):
        with RawClient(broker.bootstrap) as leaver:
            leaver.send(ApiKey.FETCH, 12, fetch_fields([(log[0], b"", [(0, 0)])], max_wait_ms=LONG_WAIT_MS))
    assert client.produce(log[0], batch(b"x"))["error_code"] == ErrorCode.NONE
    assert values_of(client.fetch(log[0], 0)["records"]) == [(0, b"x")]


@pytest.mark.every_transport
def test_fetch_reads_long_log_in_steps(client: RawClient, log: Log) -> None:
    name, _ = log
    for number in range(50):
        client.produce(name, batch(*[b"%d-%d" % (number, one) + bytes(2_000) for one in range(10)]), acks=1)
    offset, seen = 0, 0
    while offset < 500:
        rows = values_of(client.fetch(name, offset, partition_max_bytes=100_000)["records"])
        fresh = [number for number, _ in rows if number >= offset]
        assert fresh == list(range(offset, fresh[-1] + 1))
        offset, seen = fresh[-1] + 1, seen + len(fresh)
    assert seen == 500
