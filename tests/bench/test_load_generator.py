"""The load generator: one second of each mode, and that it notices a broker that is wrong."""

from __future__ import annotations

import itertools
import ssl
from typing import Any

import pytest

from kproc.tools.load.build import CompilerMissing, build, compiler
from kproc.tools.load.run import LoadFailed, run_load
from tests.bench.fake_broker import FakeBroker
from tests.support.broker import BrokerUnderTest
from tests.support.certificates import Certificates
from tests.support.short_load import SHORT, run_short_load
from tests.support.topics import fresh_name

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH to build it with"),
]

# In an open loop the number of requests is the rate times the seconds.
AT_A_RATE: dict[str, Any] = {"seconds": 0.3, "warmup": 0.1}
on_processes = pytest.mark.transports("process")


def complain(fault: str | None, **options: Any) -> LoadFailed:
    """What the generator says of a faulty broker in a closed loop of one connection."""
    with FakeBroker(fault) as fake, pytest.raises(LoadFailed) as caught:
        run_load("produce", fake.bootstrap, seconds=0.2, warmup=0, drain=1.0, **options)
    return caught.value


def test_right_answers_are_counted_and_timed() -> None:
    with FakeBroker() as fake:
        result = run_load("produce", fake.bootstrap, seconds=0.3, warmup=0)
    assert result["errors"] == result["lost"] == result["duplicates"] == 0
    assert result["requests"] > 0
    latency = result["latency_us"]
    assert 0 < latency["min"] <= latency["p50"] <= latency["p99"] <= latency["max"]
    # One connection and one request at a time: by Little's law the product is 1. It is less if the generator waits for
    # the processor between two requests.
    assert 0 < result["requests_per_second"] * latency["mean"] / 1e6 <= 1.05


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    try:
        build(with_tls=True)
    except CompilerMissing as reason:
        pytest.skip(str(reason))
    return Certificates(tmp_path_factory.mktemp("certificates"))


def tls_of(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server)
    return context


@pytest.mark.parametrize("options", [{"connections": 4}, {"record_bytes": 100_000, "in_flight": 3}])
def test_load_runs_over_tls(certificates: Certificates, options: dict[str, Any]) -> None:
    with FakeBroker(tls=tls_of(certificates)) as fake:
        result = run_load("produce", fake.bootstrap, tls=certificates.ca, **SHORT, **options)
    assert result["errors"] == result["lost"] == result["duplicates"] == 0
    assert result["requests"] > 0


def test_broker_with_another_authoritys_certificate_is_refused(certificates: Certificates) -> None:
    with (
        FakeBroker(tls=tls_of(certificates)) as fake,
        pytest.raises(LoadFailed, match="certificate verify failed"),
    ):
        run_load("produce", fake.bootstrap, tls=certificates.stranger_ca, **SHORT)


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


def test_load_generator_counts_unanswered_requests() -> None:
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
def test_single_records_in_every_produce_version(broker: BrokerUnderTest) -> None:
    topic = fresh_name("load")
    for version in (3, 7, 8, 9, 12):
        result = run_short_load(
            "produce", broker.bootstrap, topic=topic, connections=4, produce_version=version
        )
        assert result["requests"] > 0, version


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
    result = run_short_load("produce", broker.bootstrap, topic=fresh_name("load"), **options)
    assert result["requests"] > 0
    assert result["bytes"] > 0


@on_processes
def test_fetch_run_reads_a_prepared_topic(broker: BrokerUnderTest) -> None:
    """Each way of reading with each size of an answer: less than a batch, some of them, and all."""
    topic = fresh_name("load")
    filled = run_load("prepare", broker.bootstrap, topic=topic, batch_bytes=16_000, fill_bytes=1 << 20)
    assert filled["bytes"] >= 1 << 20
    cases = itertools.product(("skip", "copy", "crc"), (10_000, 65_536, 50 << 20))
    for (read, fetch_bytes), version in zip(cases, itertools.cycle((11, 12)), strict=False):
        options = {"fetch_bytes": fetch_bytes, "read": read, "fetch_version": version, "connections": 2}
        result = run_short_load("fetch", broker.bootstrap, counted="records", topic=topic, **options)
        assert result["records"] > 0, (read, fetch_bytes, version)
    run_load("delete", broker.bootstrap, topic=topic)


@on_processes
@pytest.mark.parametrize(
    "options", [{}, {"partitions": 3, "acks": -1, "fetch_version": 12, "produce_version": 9}]
)
def test_every_produced_record_is_consumed_and_timed(
    broker: BrokerUnderTest, options: dict[str, Any]
) -> None:
    result = run_load("latency", broker.bootstrap, topic=fresh_name("load"), rate=500, **AT_A_RATE, **options)
    assert result["requests"] == pytest.approx(150, abs=2)
    assert result["latency_us"]["p50"] >= result["late_us"]["p50"]


@on_processes
def test_load_generator_opens_closes_and_keeps_connections(broker: BrokerUnderTest) -> None:
    held: list[bool] = []
    assert run_short_load("churn", broker.bootstrap, connections=4)["requests"] > 0
    idle = run_load("idle", broker.bootstrap, connections=50, on_held=lambda: held.append(True), **SHORT)
    assert idle["requests"] == 50
    assert held == [True]


@on_processes
def test_every_consumer_at_the_tail_gets_every_batch(broker: BrokerUnderTest) -> None:
    options: dict[str, Any] = {"consumers": 3, "partitions": 2, "batch_bytes": 16_000}
    result = run_short_load("tail", broker.bootstrap, topic=fresh_name("load"), **options)
    assert result["loop"] == "closed"
    assert result["records"] == result["requests"] * result["batch_records"] > 0


@on_processes
def test_one_record_reaches_all_consumers_and_each_is_timed(broker: BrokerUnderTest) -> None:
    result = run_load("latency", broker.bootstrap, topic=fresh_name("load"), rate=100, consumers=20, **AT_A_RATE)
    assert result["requests"] == pytest.approx(20 * 30, abs=40)


def test_backlog_of_a_broker_that_stopped_answering_is_reported() -> None:
    """The third of 100 requests a second is never answered: after 0.2 s 18 are due and open, or more."""
    problem = complain("silence", rate=100)
    assert problem.result is not None
    assert problem.result["backlog_begin"] == 0
    assert problem.result["backlog_end"] >= 16
    assert "not answered in time" in str(problem)


@on_processes
def test_load_generator_fetch_run_reads_the_log_once(broker: BrokerUnderTest) -> None:
    topic, held = fresh_name("load"), []
    filled = run_load("prepare", broker.bootstrap, topic=topic, batch_bytes=100_000, fill_bytes=4 << 20)
    options: dict[str, Any] = {"hold": "yes", "once": "yes", "warmup": 0, "seconds": 60, "topic": topic}
    result = run_load("fetch", broker.bootstrap, on_held=lambda: held.append(True), **options)
    assert held == [True]
    assert result["records"] == filled["records"]
    assert result["seconds"] < 60


@on_processes
def test_every_partition_is_touched_and_none_twice_in_a_run(broker: BrokerUnderTest) -> None:
    topic = fresh_name("load")
    for _ in range(2):
        result = run_load("touch", broker.bootstrap, topic=topic, partitions=20)
        assert (result["requests"], result["lost"]) == (20, 0)
        assert result["metadata_us"]["count"] > 0


@on_processes
def test_histogram_holds_every_sample(broker: BrokerUnderTest) -> None:
    result = run_short_load("produce", broker.bootstrap, topic=fresh_name("load"))
    latency = result["latency_us"]
    assert sum(count for _, count in latency["buckets_ns"]) == latency["count"] == result["requests"]
    tops = [top for top, _ in latency["buckets_ns"]]
    assert tops == sorted(tops)
    assert tops[-1] * 1.01 >= latency["max"] * 1000
