"""The load generator: one second of each mode, and that it notices a broker that is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from bench.load.build import compiler
from bench.load.run import LoadFailed, run_load
from tests.bench.fake_broker import FakeBroker
from tests.support.broker import BrokerUnderTest
from tests.support.topics import fresh_name

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH to build it with")

SHORT: dict[str, Any] = {"seconds": 0.3, "warmup": 0.1}
on_processes = pytest.mark.transports("process")


def complain(fault: str | None, **options: Any) -> LoadFailed:
    """What the generator says of a faulty broker in a closed loop of one connection."""
    with FakeBroker(fault) as fake, pytest.raises(LoadFailed) as caught:
        run_load("produce", fake.bootstrap, seconds=0.2, warmup=0, drain=0.2, **options)
    return caught.value


def test_right_answers_are_counted_and_timed() -> None:
    with FakeBroker() as fake:
        result = run_load("produce", fake.bootstrap, seconds=0.3, warmup=0)
    assert result["errors"] == result["lost"] == result["duplicates"] == 0
    assert result["requests"] > 100
    latency = result["latency_us"]
    assert 0 < latency["min"] <= latency["p50"] <= latency["p99"] <= latency["max"]
    # One connection and one request at a time: Little's law ties rate and mean together.
    assert result["requests_per_second"] * latency["mean"] / 1e6 == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("error", "Produce: error 7"),
        ("duplicate", "base offset"),
        ("correlation", "correlation id"),
        ("close", "closed by the broker"),
        ("lost", "grew by"),
    ],
)
def test_wrong_answer_fails_the_run_and_is_named(fault: str, words: str) -> None:
    assert words in str(complain(fault))


def test_duplicated_and_lost_records_are_counted() -> None:
    duplicated, lost = complain("duplicate").result, complain("lost").result
    assert duplicated is not None
    assert lost is not None
    assert duplicated["duplicates"] == 1
    assert lost["lost"] == 1


def test_request_that_is_never_answered_is_counted_not_waited_for() -> None:
    result = complain("silence").result
    assert result is not None
    assert result["unanswered"] == 1


def test_open_loop_counts_from_the_intended_send() -> None:
    """The third request is never answered and stalls the one connection; what was due meanwhile waits."""
    problem = complain("silence", rate=100)
    assert problem.result is not None
    assert problem.result["requests"] == 2


@pytest.mark.parametrize("address", ["192.0.2.1:9092", "example.org:9092", "0.0.0.0:9092"])
def test_addresses_that_are_not_loopback_are_refused(address: str) -> None:
    with pytest.raises(LoadFailed, match="only loopback"):
        run_load("produce", address, **SHORT)


@on_processes
@pytest.mark.parametrize("version", [3, 7, 8, 9, 12])
def test_single_records_in_every_produce_version(broker: BrokerUnderTest, version: int) -> None:
    result = run_load(
        "produce", broker.bootstrap, topic=fresh_name("load"), connections=4, produce_version=version, **SHORT
    )
    assert result["requests"] > 50


@on_processes
@pytest.mark.parametrize(
    "options",
    [
        {"connections": 3, "in_flight": 5, "partitions": 2},
        {"batch_bytes": 990_000, "partitions": 2, "connections": 2},
        {"acks": -1, "record_bytes": 1000, "batch_records": 10},
        {"acks": 0, "connections": 2},
        {"rate": 500, "connections": 2},
    ],
    ids=["pipelined", "bulk", "acks-all", "acks-0", "open-loop"],
)
def test_produce_run_is_answered_rightly(broker: BrokerUnderTest, options: dict[str, Any]) -> None:
    result = run_load("produce", broker.bootstrap, topic=fresh_name("load"), **SHORT, **options)
    assert result["requests"] > 10
    assert result["bytes"] > 0


@on_processes
@pytest.mark.parametrize("version", [11, 12])
@pytest.mark.parametrize("read", ["skip", "copy", "crc"])
def test_fetch_run_reads_a_prepared_topic(broker: BrokerUnderTest, version: int, read: str) -> None:
    topic = fresh_name("load")
    filled = run_load("prepare", broker.bootstrap, topic=topic, batch_bytes=16_000, fill_bytes=8 << 20)
    assert filled["bytes"] >= 8 << 20
    for fetch_bytes in (10_000, 65_536, 50 << 20):  # less than a batch, some, all
        result = run_load(
            "fetch",
            broker.bootstrap,
            **SHORT,
            topic=topic,
            fetch_bytes=fetch_bytes,
            read=read,
            fetch_version=version,
            connections=2,
        )
        assert result["records"] > 1000
    run_load("delete", broker.bootstrap, topic=topic)


@on_processes
@pytest.mark.parametrize(
    "options", [{}, {"partitions": 3, "acks": -1, "fetch_version": 12, "produce_version": 9}]
)
def test_every_produced_record_is_consumed_and_timed(
    broker: BrokerUnderTest, options: dict[str, Any]
) -> None:
    result = run_load("latency", broker.bootstrap, topic=fresh_name("load"), rate=500, **SHORT, **options)
    assert result["requests"] == pytest.approx(150, abs=2)
    assert result["latency_us"]["p50"] >= result["late_us"]["p50"]


@on_processes
def test_connections_come_go_and_stay(broker: BrokerUnderTest) -> None:
    held: list[bool] = []
    assert run_load("churn", broker.bootstrap, connections=4, **SHORT)["requests"] > 20
    idle = run_load("idle", broker.bootstrap, connections=50, on_held=lambda: held.append(True), **SHORT)
    assert idle["requests"] == 50
    assert held == [True]
