"""Transactions of confluent-kafka, kafka-python and aiokafka: commit, abort, fencing, offsets, timeouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.adapters.transactional import (
    MAKES,
    Confluent,
    Fenced,
    Transactional,
    committed_offset,
    read_all,
)
from tests.support.broker import BrokerUnderTest
from tests.support.raw import RawClient
from tests.support.topics import TopicFactory, fresh_name
from tests.support.wait import stretched, wait_until

pytest.importorskip("confluent_kafka", reason="confluent is not installed: it reads what the others write")
pytestmark = [pytest.mark.clients, pytest.mark.transports("process")]

PARTITIONS = 3
SHORT_MS = 1_000
Make = Callable[..., Transactional]


@pytest.fixture(params=MAKES)
def make(request: pytest.FixtureRequest) -> Make:
    pytest.importorskip(request.param)
    return MAKES[request.param]


def values(number: int, count: int = 6) -> list[bytes]:
    return [b"%d-%d" % (number, at) for at in range(count)]


def send(producer: Transactional, topic: str, number: int) -> None:
    for at, value in enumerate(values(number)):
        producer.send(topic, at % PARTITIONS, value)


def test_read_committed_returns_committed_transactions_only(
    broker: BrokerUnderTest, topic: TopicFactory, make: Make
) -> None:
    name = topic(partitions=PARTITIONS)
    ends = [True, False, True, True, False, True]
    with make(broker.bootstrap, fresh_name("tx")) as producer:
        for number, commits in enumerate(ends):
            producer.begin()
            send(producer, name, number)
            if commits:
                producer.commit()
            else:
                producer.abort()
    committed = sorted(value for number, commits in enumerate(ends) if commits for value in values(number))
    assert sorted(read_all(broker.bootstrap, name, PARTITIONS, isolation="read_committed")) == committed
    everything = read_all(broker.bootstrap, name, PARTITIONS, isolation="read_uncommitted")
    assert set(everything) >= set(committed)


def test_init_transactions_fences_former_producer(
    broker: BrokerUnderTest, topic: TopicFactory, make: Make
) -> None:
    name, tx = topic(partitions=PARTITIONS), fresh_name("tx")
    with make(broker.bootstrap, tx) as first:
        first.begin()
        send(first, name, 0)
        first.commit()
        first.begin()
        send(first, name, 1)
        first.flush()
        with make(broker.bootstrap, tx) as second:
            second.begin()
            send(second, name, 2)
            second.commit()
        with pytest.raises(Fenced):
            first.commit()
    expected = sorted(values(0) + values(2))
    assert sorted(read_all(broker.bootstrap, name, PARTITIONS, isolation="read_committed")) == expected


def test_group_offsets_take_effect_when_transaction_commits(
    broker: BrokerUnderTest, topic: TopicFactory, make: Make
) -> None:
    name, group = topic(partitions=PARTITIONS), fresh_name("group")
    with make(broker.bootstrap, fresh_name("tx")) as producer:
        for offset, commits in ((3, True), (5, False), (7, True), (9, False)):
            producer.begin()
            send(producer, name, offset)
            producer.send_offsets(group, name, 1, offset)
            if commits:
                producer.commit()
            else:
                producer.abort()
            expected = offset if commits else offset - 2
            assert committed_offset(broker.bootstrap, group, name, 1) == expected


def test_abandoned_transaction_is_aborted_after_timeout(
    start_broker: Callable[..., BrokerUnderTest],
) -> None:
    settings: dict[str, Any] = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}
    broker = start_broker(settings)
    name = "abandoned"
    with RawClient(broker.bootstrap) as client:
        client.create_topic(name, partitions=PARTITIONS)
    with (
        Confluent(broker.bootstrap, "left-alone", stretched(SHORT_MS)) as first,
        Confluent(broker.bootstrap, "other") as other,
    ):
        first.begin()
        send(first, name, 0)
        first.flush()
        other.begin()
        send(other, name, 1)
        other.commit()

        def is_aborted() -> bool:
            seen = read_all(broker.bootstrap, name, PARTITIONS, isolation="read_committed")
            assert not set(seen) & set(values(0))
            return sorted(seen) == sorted(values(1))

        wait_until(is_aborted, what="the last stable offset went on")
        with pytest.raises(Fenced):
            first.commit()
