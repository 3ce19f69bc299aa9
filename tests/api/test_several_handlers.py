"""Brokers with several Handlers and Processors: every partition is served over every connection."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest, EmbeddedBroker
from tests.support.raw import (
    NO_TOPIC_ID,
    Fields,
    RawClient,
    batch,
    fetch_fields,
    produce_fields,
    values_of,
)
from tests.support.topics import fresh_name
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [pytest.mark.own_broker, pytest.mark.every_transport]

HANDLERS, PROCESSORS, PARTITIONS = 3, 2, 12
SETTINGS = {
    "num.io.threads": HANDLERS,
    "num.network.threads": PROCESSORS,
    "message.max.bytes": 8 << 20,
    "kproc.flush": "group",
}
PRODUCE_VERSION, FETCH_VERSION = 9, 12
LONG_WAIT_MS = 10_000  # Longer than any test waits for what should wake it.


@pytest.fixture(scope="module")
def several(transport: str) -> Iterator[BrokerUnderTest]:
    """One broker with several Handlers, for all tests of a transport."""
    with EmbeddedBroker(transport=transport, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def client(several: BrokerUnderTest) -> Iterator[RawClient]:
    with RawClient(several.bootstrap) as connected:
        yield connected


@pytest.fixture
def topic(client: RawClient) -> str:
    name = fresh_name("several")
    client.create_topic(name, partitions=PARTITIONS)
    return name


@pytest.fixture
def connect(several: BrokerUnderTest) -> Iterator[Callable[[], RawClient]]:
    """More connections, each at the home of its own."""
    opened: list[RawClient] = []

    def make() -> RawClient:
        opened.append(RawClient(several.bootstrap))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def rows(answer: Fields) -> dict[int, list[bytes | None]]:
    """Partition -> values of a Fetch answer, in its order."""
    (topic,) = answer["responses"]
    assert not [row for row in topic["partitions"] if row["error_code"]], topic
    return {
        row["partition_index"]: [value for _, value in values_of(row["records"])]
        for row in topic["partitions"]
    }


def fetch_all(client: RawClient, topic: str, partitions: list[int], **more: Any) -> dict[int, Any]:
    wanted = [(index, 0) for index in partitions]
    return rows(
        client.call(ApiKey.FETCH, FETCH_VERSION, fetch_fields([(topic, NO_TOPIC_ID, wanted)], **more))
    )


@pytest.mark.parametrize("acks", [1, -1])
def test_every_connection_reaches_every_partition(
    connect: Callable[[], RawClient], topic: str, acks: int
) -> None:
    """More connections than Handlers, so that each Handler is home to some."""
    clients = [connect() for _ in range(2 * HANDLERS * PROCESSORS)]
    for turn, client in enumerate(clients):
        for index in range(PARTITIONS):
            row = client.produce(topic, batch(b"%d/%d" % (turn, index)), partition=index, acks=acks)
            assert (row["error_code"], row["base_offset"]) == (0, turn)
    for client in clients:
        found = fetch_all(client, topic, list(range(PARTITIONS)))
        assert found == {
            index: [b"%d/%d" % (turn, index) for turn in range(len(clients))] for index in range(PARTITIONS)
        }


def test_pipelined_requests_to_several_owners_keep_order(client: RawClient, topic: str) -> None:
    """The Processor sends each to its owner, and must not let a quick owner overtake a slow one."""
    sent = []
    for number in range(60):
        index = number % PARTITIONS
        records = batch(b"%d" % number * (1 + 300 * (number % 7)))
        fields = produce_fields([(topic, NO_TOPIC_ID, [(index, records)])])
        sent.append((client.send(ApiKey.PRODUCE, PRODUCE_VERSION, fields), index, number // PARTITIONS))
    for correlation_id, index, offset in sent:
        got, answer = client.receive(ApiKey.PRODUCE, PRODUCE_VERSION)
        (row,) = answer["responses"][0]["partition_responses"]
        assert (got, row["index"], row["error_code"], row["base_offset"]) == (
            correlation_id,
            index,
            0,
            offset,
        )


def test_append_at_any_handler_wakes_parked_fetch(
    client: RawClient, connect: Callable[[], RawClient], topic: str
) -> None:
    producer = connect()
    for index in range(PARTITIONS):
        offsets = [(each, 1 if each < index else 0) for each in range(PARTITIONS)]
        waiting = fetch_fields([(topic, NO_TOPIC_ID, offsets)], max_wait_ms=LONG_WAIT_MS)
        client.send(ApiKey.FETCH, FETCH_VERSION, waiting)
        producer.produce(topic, batch(b"for %d" % index), partition=index)
        _, answer = client.receive(ApiKey.FETCH, FETCH_VERSION)
        assert {at: values for at, values in rows(answer).items() if values} == {index: [b"for %d" % index]}


def test_large_produce_is_forwarded_to_its_owner(client: RawClient, topic: str) -> None:
    """5 MB, over links whose rings hold 256 KiB."""
    value = random.Random(2).randbytes(5_000_000)
    owners_met = range(PARTITIONS)[:3]
    for index in owners_met:
        row = client.produce(topic, batch(value), partition=index)
        assert (row["error_code"], row["base_offset"]) == (0, 0)
        fields = fetch_fields(
            [(topic, NO_TOPIC_ID, [(index, 0)])], partition_max_bytes=1 << 30, max_bytes=1 << 30
        )
        assert rows(client.call(ApiKey.FETCH, FETCH_VERSION, fields)) == {index: [value]}


def test_produce_acks_0_before_disconnect_is_appended(
    client: RawClient, connect: Callable[[], RawClient], topic: str
) -> None:
    leaving = connect()
    for number in range(40):
        fields = produce_fields(
            [(topic, NO_TOPIC_ID, [(number % PARTITIONS, batch(b"%d" % number))])], acks=0
        )
        leaving.send(ApiKey.PRODUCE, PRODUCE_VERSION, fields)
    leaving.close()
    waiting = fetch_fields(
        [(topic, NO_TOPIC_ID, [(index, 0) for index in range(PARTITIONS)])],
        max_wait_ms=LONG_WAIT_MS,
        min_bytes=sum(len(batch(b"%d" % number)) for number in range(40)),
    )
    found = rows(client.call(ApiKey.FETCH, FETCH_VERSION, waiting))
    assert {index: found[index] for index in sorted(found)} == {
        index: [b"%d" % number for number in range(40) if number % PARTITIONS == index]
        for index in range(PARTITIONS)
    }


def test_idempotent_batch_over_several_connections_writes_once(
    connect: Callable[[], RawClient], topic: str
) -> None:
    for turn in range(2 * HANDLERS):
        client = connect()
        for index in range(HANDLERS):
            records = batch(b"once", producer_id=900, producer_epoch=0, base_sequence=0)
            row = client.produce(topic, records, partition=index)
            assert (row["error_code"], row["base_offset"]) == (0, 0), turn
    assert fetch_all(connect(), topic, list(range(HANDLERS))) == {
        index: [b"once"] for index in range(HANDLERS)
    }


def test_new_topic_is_known_on_every_connection_at_once(
    client: RawClient, connect: Callable[[], RawClient]
) -> None:
    """CreateTopics is answered when every Handler knows the topic."""
    clients = [connect() for _ in range(HANDLERS * PROCESSORS)]
    for _ in range(5):
        name = fresh_name("fresh")
        answer = client.call(
            ApiKey.CREATE_TOPICS,
            7,
            {
                "topics": [
                    {
                        "name": name,
                        "num_partitions": PARTITIONS,
                        "replication_factor": 1,
                        "assignments": [],
                        "configs": [],
                    }
                ],
                "timeout": 10_000,
                "validate_only": False,
            },
        )
        assert answer["topics"][0]["error_code"] == 0
        for turn, each in enumerate(clients):
            assert each.produce(name, batch(b"v"), partition=turn)["error_code"] == 0


def test_concurrent_producers_lose_nothing(connect: Callable[[], RawClient], topic: str) -> None:
    count, each = 8, 30
    problems: list[BaseException] = []

    def run(client: RawClient, turn: int) -> None:
        try:
            for number in range(each):
                row = client.produce(
                    topic, batch(b"%d:%d" % (turn, number)), partition=(turn + number) % PARTITIONS
                )
                assert row["error_code"] == 0, row
        except BaseException as problem:  # noqa: BLE001 - shown by the test's own thread
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(connect(), turn)) for turn in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert not problems
    found = fetch_all(connect(), topic, list(range(PARTITIONS)))
    values = [value for values in found.values() for value in values]
    assert sorted(values) == sorted(
        b"%d:%d" % (turn, number) for turn in range(count) for number in range(each)
    )
