"""Kafka Streams joins and counts exactly once (`exactly_once_v2`) while its instances and roles of kproc are killed.

Its stores, repartition topic, results and positions are in one transaction. A record that is counted twice, or not at
all, shows in the results: the counts of each region and minute are 1, 2, 3 and so on up to what a batch computation
finds. `--rounds 30` is a longer run; the default keeps the test short.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.kafka_jars import streams_missing_reason
from tests.support.raw import RawClient
from tests.support.wait import wait_until

pytest.importorskip("confluent_kafka", reason="confluent is not installed: it reads what Java writes")

from tests.support.either_broker import either_broker
from tests.support.streams_application import (
    COUNTS,
    ORDERS,
    PAYMENTS,
    STREAMS_SETTINGS,
    PaidOrders,
    StreamsApplication,
    committed_counts,
    wait_for_work,
)

pytestmark = [
    pytest.mark.faults,
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.own_broker,
    pytest.mark.transports("process"),
    pytest.mark.skipif(streams_missing_reason() is not None, reason=streams_missing_reason() or ""),
]

PARTITIONS = 3
# One of each partition for the join, and one behind the repartition topic.
TASKS = 2 * PARTITIONS


@pytest.mark.parametrize("protocol", ["classic", "streams"])
@pytest.mark.parametrize("make", ["kproc", "kafka"])
def test_streams_application_is_exactly_once_under_kills(
    tmp_path: Path, pytestconfig: pytest.Config, make: str, protocol: str
) -> None:
    rounds, seed = int(pytestconfig.getoption("rounds")), int(pytestconfig.getoption("seed"))
    source = random.Random(seed)
    with either_broker(make, tmp_path, STREAMS_SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            for name in (ORDERS, PAYMENTS, COUNTS):
                client.create_topic(name, partitions=PARTITIONS)
        load = PaidOrders(broker.bootstrap, seed)
        with StreamsApplication(broker.bootstrap, tmp_path, protocol) as application:
            for slot in range(2):
                application.start(slot)
            application.wait_settled(TASKS)
            load.start()
            try:
                for number in range(rounds):
                    wait_for_work(broker.bootstrap, PARTITIONS)
                    if number % 2 and broker.is_kproc:
                        broker.kill_role(source)
                    else:
                        slot = number // 2 % 2
                        application.kill(slot)
                        application.start(slot)
                wait_for_work(broker.bootstrap, PARTITIONS)
            finally:
                load.stop()
            wanted = load.counts()
            total = sum(map(len, wanted.values()))
            wait_until(
                lambda: sum(map(len, committed_counts(broker.bootstrap, PARTITIONS).values())) >= total,
                seconds=120,
                what=f"{total} results",
            )
            application.close()
        assert committed_counts(broker.bootstrap, PARTITIONS) == wanted
