"""The one session, and the marker of whoever uses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support import kafka_jars
from tests.support.java_tools import JVM
from tests.support.spark_home import jvm_variables
from tests.support.spark_session import missing_reason, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bench.peers.kafka import KafkaPeer
    from tests.support.broker import BrokerUnderTest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that reaches the session.

    What Spark forks stays until the session ends, and comes and goes beside the tests here that do without it: no
    leak guard for any of them.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.nodeid.startswith("tests/spark/"):
            item.add_marker(pytest.mark.no_leak_guard)


@pytest.fixture
def own_connections() -> Iterator[None]:
    """The connections that the source keeps for its process end with the test, as they end with Spark's processes."""
    from kproc.spark import brokers

    yield
    for cluster in brokers._clusters.values():
        cluster.close()
    brokers._clusters.clear()


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search for missing topics for 100 ms instead of seconds, in tests of the messages about them."""
    from kproc.spark import brokers, look_up

    monkeypatch.setattr(brokers, "UNKNOWN_TOPIC_MS", 100)
    monkeypatch.setattr(look_up, "SETTLE_MS", 100)


@pytest.fixture(scope="session", autouse=True)
def short_lived_jvms() -> Iterator[None]:
    """For JVMs that tests start by commands as a reader gives them, too."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in jvm_variables().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session of all Spark tests: local[2], two shuffle partitions, every format of kproc registered."""
    reason = missing_reason()
    if reason is not None:
        pytest.skip(reason)
    with spark_session() as session:
        yield session


@pytest.fixture(scope="module")
def bootstrap(broker: BrokerUnderTest) -> str:
    """Where the broker listens that all tests here share. Their topics have names of their own."""
    return broker.bootstrap


@pytest.fixture(scope="session")
def kafka_peer() -> Iterator[KafkaPeer]:
    """The Apache Kafka that the tests of the source and of segment files share."""
    from bench.peers.kafka import KafkaPeer

    if (reason := kafka_jars.missing_reason()) is not None:
        pytest.skip(reason)
    # Small segments and intervals: there are indexes and rolls in a small test.
    settings = {"log.segment.bytes": "1048576", "log.index.interval.bytes": "1024"}
    with KafkaPeer(settings=settings, jvm=JVM) as peer:
        yield peer
