"""Kafka Streams in several instances: they join, die, hang, restart and see their topic grow, in either protocol.

Each task runs once when the group has come to rest, and the results are those of a batch computation, each once.
The same scenes run against Apache Kafka (`-k kafka`): a scene that fails there is wrong itself.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka.admin import AdminClient, NewPartitions

from tests.support.adapters.transactional import read_messages
from tests.support.configs import set_config
from tests.support.either_broker import EitherBroker, either_broker
from tests.support.kafka_jars import KAFKA_VERSION, streams_missing_reason
from tests.support.raw import RawClient
from tests.support.share_scene import GROUP_RESOURCE
from tests.support.streams_application import (
    COUNTS,
    ORDERS,
    PAYMENTS,
    STREAMS_SETTINGS,
    PaidOrders,
    StreamsApplication,
    committed_counts,
)
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.own_broker,
    pytest.mark.transports("process"),
    pytest.mark.skipif(streams_missing_reason() is not None, reason=streams_missing_reason() or ""),
]

PARTITIONS = 4
TASKS = 2 * PARTITIONS
Starter = Callable[..., StreamsApplication]


@pytest.fixture(params=["kproc", "kafka"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EitherBroker]:
    with either_broker(request.param, tmp_path, STREAMS_SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            for name in (ORDERS, PAYMENTS, COUNTS):
                client.create_topic(name, partitions=PARTITIONS)
        yield broker


@pytest.fixture(params=["classic", "streams"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def under_load(broker: EitherBroker, application: StreamsApplication) -> Iterator[None]:
    """Let orders flow while the block lasts. Their results must be those of a batch computation."""
    load = PaidOrders(broker.bootstrap, 1)
    load.start()
    try:
        yield
    finally:
        load.stop()
    wanted = load.counts()
    total = sum(map(len, wanted.values()))
    wait_until(
        lambda: sum(map(len, committed_counts(broker.bootstrap, PARTITIONS).values())) >= total,
        seconds=60,
        what=f"{total} results",
    )
    assert committed_counts(broker.bootstrap, PARTITIONS) == wanted
    application.close()


def test_streams_instances_join_hang_and_die(either: EitherBroker, tmp_path: Path, protocol: str) -> None:
    with StreamsApplication(either.bootstrap, tmp_path, protocol, threads=2) as application:
        first = application.start(0)
        with under_load(either, application):
            application.wait_settled(TASKS)
            application.start(1)
            application.wait_settled(TASKS)
            first.signal(signal.SIGSTOP)
            application.wait_settled(TASKS, among=[1])
            first.signal(signal.SIGCONT)
            # It finds itself thrown out, and joins again.
            application.wait_settled(TASKS)
            application.kill(1)
            application.wait_settled(TASKS)


def test_four_streams_instances_of_two_members_each(
    either: EitherBroker, tmp_path: Path, protocol: str
) -> None:
    with StreamsApplication(either.bootstrap, tmp_path, protocol, threads=2) as application:
        for slot in range(4):
            application.start(slot)
        with under_load(either, application):
            application.wait_settled(TASKS)
            for slot in range(2):
                application.kill(slot)
                application.start(slot)
                application.wait_settled(TASKS)


def test_static_streams_instance_returns_to_its_tasks(
    either: EitherBroker, tmp_path: Path, protocol: str
) -> None:
    """Its session outlives the restart, so that nobody else gets its tasks."""
    if protocol == "streams" and KAFKA_VERSION < "4.4":
        pytest.skip(f"Kafka Streams {KAFKA_VERSION} has no static members in the streams protocol")
    with StreamsApplication(either.bootstrap, tmp_path, protocol) as application:
        with RawClient(either.bootstrap) as client:
            # A classic member brings its session timeout, a member of a streams group has the group's.
            assert set_config(
                client, "streams.session.timeout.ms", "30000", kind=GROUP_RESOURCE, resource=application.name
            ) == (0, None)

        def start(slot: int) -> None:
            application.start(slot, group_instance_id=f"instance-{slot}", consumer_session_timeout_ms="30000")

        start(0)
        start(1)
        application.wait_settled(TASKS)
        owned = {slot: each.tasks for slot, each in application.instances.items()}
        with under_load(either, application):
            # In a streams group, one that was killed cannot return before its session ends.
            application.stop(1)
            start(1)
            application.wait_settled(TASKS)
            assert {slot: each.tasks for slot, each in application.instances.items()} == owned


def test_streams_application_follows_growth_of_its_topic(
    either: EitherBroker, tmp_path: Path, protocol: str
) -> None:
    """The application has no state: Kafka Streams cannot repartition what it has counted."""
    with StreamsApplication(either.bootstrap, tmp_path, protocol, topology="copy") as application:
        for slot in range(2):
            application.start(slot)
        application.wait_settled(PARTITIONS)
        admin = AdminClient({"bootstrap.servers": either.bootstrap})
        admin.create_partitions([NewPartitions(ORDERS, 2 * PARTITIONS)])[ORDERS].result(
            timeout=PATIENCE_SECONDS
        )
        application.wait_settled(2 * PARTITIONS)
        load = PaidOrders(either.bootstrap, 1, orders=200)
        load.start()
        load.stop()

        def copied() -> int:
            found = read_messages(either.bootstrap, COUNTS, PARTITIONS, isolation="read_committed")
            return len(found)

        wait_until(lambda: copied() == 200, seconds=60, what="200 copies")
        application.close()
