"""Metrics of the network layer: exact counts, times, Prometheus' text by its own parser, `status`, `clients`."""

from __future__ import annotations

import gzip
import os
import platform
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

import kproc
from kproc.broker.metrics.requests import TIMINGS
from kproc.client import ClientError
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest, EmbeddedBroker, forked_broker
from tests.support.cases import in_one_test
from tests.support.groups import commit, find_coordinator
from tests.support.promlint import problems_of
from tests.support.raw import RawClient, batch
from tests.support.status import connect, health, processes, scraped, wait_replaced
from tests.support.status import status as status_of
from tests.support.topics import fresh_name
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.own_broker

SETTINGS = {
    "num.io.threads": 2,
    "num.network.threads": 2,
    "kproc.metrics.listener": "127.0.0.1:0",
    "kproc.control.listener": "127.0.0.1:0",
}
REQUESTS = "kafka_network_requestmetrics_requests"


@pytest.fixture(scope="module")
def measured(transport: str) -> Iterator[BrokerUnderTest]:
    """One broker with a metrics listener, for all tests of a transport."""
    with EmbeddedBroker(transport=transport, settings=SETTINGS) as running:
        yield running


def status(broker: BrokerUnderTest) -> dict[str, Any]:
    return status_of(broker.bootstrap)


def api(broker: BrokerUnderTest, name: str) -> dict[str, Any]:
    empty = {"requests_total": 0, "versions": {}, "errors": {}, "timed": 0}
    return next((row for row in status(broker)["apis"] if row["request"] == name), empty)


def scrape(broker: BrokerUnderTest) -> dict[str, Metric]:
    """The families by name, of a rendering that is no older than this call."""
    address = status(broker)["metrics"]
    text = ""

    def is_fresh() -> bool:
        nonlocal text
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_SECONDS) as response:
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            now = response.read().decode()
        is_new, text = bool(text) and now != text, now
        return is_new

    wait_until(is_fresh, what="a new rendering")  # One serves a second of scrapes.
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families: dict[str, Metric], family: str, sample: str = "", **labels: str) -> float:
    found = [
        each.value
        for each in families[family].samples
        if each.name == (sample or each.name) and labels.items() <= each.labels.items()
    ]
    assert len(found) == 1, (family, labels, found)
    return float(found[0])


def test_first_request_of_a_client_is_the_first_that_is_counted(transport: str) -> None:
    """What the broker asks itself at its start is in no figure of its clients."""
    with forked_broker()({"kproc.metrics.listener": "127.0.0.1:0"}, transport=transport) as broker:

        def figures() -> dict[str, float]:
            lines = scraped(broker.ready["metrics"]).splitlines()
            samples = [line.rpartition(" ") for line in lines if not line.startswith("#")]
            return {name: float(number) for name, _, number in samples if float(number)}

        with RawClient(broker.bootstrap) as client:
            client.call(ApiKey.API_VERSIONS, 0, {})
            own = f'{REQUESTS}_total{{request="ApiVersions",version="0"}}'
            # Taken by the Processor and the Handler, answered by the Processor: each publishes in its own time.
            totals = {f'kproc_requests_total{{index="0",role="{role}"}}' for role in ("processor", "handler")}
            totals.add('kproc_responses_total{index="0",role="processor"}')
            wait_until(
                lambda: {own, *totals} <= figures().keys(), what="the client's request to be seen by all"
            )
            found = figures()
    assert {name: number for name, number in found.items() if name.startswith(REQUESTS)} == {own: 1}
    assert not [name for name in found if "error" in name.lower()]
    counted = ("kproc_requests_total", "kproc_responses_total")
    assert {name: number for name, number in found.items() if name.startswith(counted)} == dict.fromkeys(
        totals, 1
    )


def test_requests_and_errors_are_counted_by_api_and_version(measured: BrokerUnderTest) -> None:
    """Kafka's testRequestPerSecAndDeprecatedRequestsPerSecMetrics."""
    name = fresh_name("counted")
    with RawClient(measured.bootstrap) as client:
        client.create_topic(name)
        before = {each: api(measured, each) for each in ("Produce", "Metadata")}
        for _ in range(30):  # The first goes the general way, the others the fast path.
            assert client.produce(name, batch(b"x"), version=9)["error_code"] == 0
        for _ in range(3):
            assert client.produce(name, batch(b"x"), version=8)["error_code"] == 0
        missing = client.produce("missing", batch(b"x"), version=9)
        assert missing["error_code"] != 0
        for _ in range(4):
            client.call(
                ApiKey.METADATA, 6, {"topics": [{"name": "not a name!"}], "allow_auto_topic_creation": False}
            )

    def is_counted() -> bool:
        produce, metadata = api(measured, "Produce"), api(measured, "Metadata")
        assert grown(produce, before["Produce"], "9") == 31
        assert grown(produce, before["Produce"], "8") == 3
        assert produce["errors"]["UNKNOWN_TOPIC_OR_PARTITION"] >= 1
        assert grown(metadata, before["Metadata"], "6") == 4
        assert metadata["errors"]["INVALID_TOPIC_EXCEPTION"] == 4
        return True

    wait_until(is_counted, what="every request is counted")


def grown(now: dict[str, Any], before: dict[str, Any], version: str) -> int:
    return int(now["versions"].get(version, 0)) - int(before["versions"].get(version, 0))


def test_request_time_metrics_add_up(measured: BrokerUnderTest) -> None:
    with RawClient(measured.bootstrap) as client:
        client.call(ApiKey.DESCRIBE_CLUSTER, 0, {})
    wait_until(lambda: api(measured, "DescribeCluster")["timed"] == 1, what="it was timed")
    times = api(measured, "DescribeCluster")["times"]
    assert set(times) == set(TIMINGS) - {"RequestBytes"}
    parts = sum(times[name]["mean"] for name in times if name not in ("TotalTimeMs", "ThrottleTimeMs"))
    assert parts == pytest.approx(times["TotalTimeMs"]["mean"], abs=0.01)
    assert times["TotalTimeMs"]["max"] > 0


def test_parked_fetch_time_is_remote_time(measured: BrokerUnderTest) -> None:
    name = fresh_name("parked")
    with RawClient(measured.bootstrap) as client:
        client.create_topic(name)
        client.fetch(name, 0, max_wait_ms=300, min_bytes=1)
    wait_until(lambda: api(measured, "Fetch")["timed"] >= 1, what="it was timed")
    assert api(measured, "Fetch")["times"]["RemoteTimeMs"]["max"] >= 290


@pytest.mark.every_transport
def test_prometheus_scrape_parses_and_agrees_with_status(measured: BrokerUnderTest) -> None:
    name = fresh_name("scraped")
    with RawClient(measured.bootstrap) as client:
        client.create_topic(name)
        for _ in range(10):
            client.produce(name, batch(b"x"), version=9)
        families = wait_until(
            lambda: found if (found := scrape(measured)) and _agrees(measured, found) else None,
            what="both say the same",
        )
        assert families[REQUESTS].type == "counter"
        total = families["kafka_network_requestmetrics_totaltime_seconds"]
        assert total.type == "histogram"
        buckets = [
            sample.value
            for sample in total.samples
            if sample.name.endswith("_bucket") and sample.labels["request"] == "Produce"
        ]
        assert buckets == sorted(buckets)
        assert buckets[-1] == value(families, total.name, f"{total.name}_count", request="Produce"), (
            "the last bucket holds all"
        )
        assert families["kproc_connections"].type == "gauge"
        assert (
            value(families, "kafka_server_socket_server_metrics_connection_count", listener="PLAINTEXT") >= 1
        )
        assert value(families, "kafka_network_requestchannel_requestqueuesize") >= 0
        for role in ("handler", "processor", "controller", "cleaner", "acceptor"):
            assert value(families, "kproc_role_running", role=role, index="0") == 1
            assert value(families, "kproc_role_heartbeat_age_seconds", role=role, index="0") < 60
        before = value(families, REQUESTS, request="Produce", version="9")
        for _ in range(5):
            client.produce(name, batch(b"x"), version=9)
        again = scrape(measured)
        assert again.keys() >= families.keys()
        assert value(again, REQUESTS, request="Produce", version="9") >= before
        for family in families.values():
            if family.type == "counter":
                seen = {
                    (each.name, *sorted(each.labels.items())): each.value
                    for each in again[family.name].samples
                }
                for sample in family.samples:
                    assert seen[(sample.name, *sorted(sample.labels.items()))] >= sample.value, sample


@pytest.mark.transports("process")
def test_scrape_follows_prometheus_conventions(measured: BrokerUnderTest) -> None:
    """The rules of promtool, which is asked, too, where it is installed."""
    name = fresh_name("linted")
    with RawClient(measured.bootstrap) as client:
        client.create_topic(name)
        client.produce(name, batch(b"x"), version=9)
        client.fetch(name, 0)
        find_coordinator(client, name)
        commit(client, name, name, {0: 1})
    text = scraped(status(measured)["metrics"])
    assert problems_of(text) == []
    assert f'kproc_build_info{{python="{platform.python_version()}",version="{kproc.__version__}"}} 1' in text
    if promtool := shutil.which("promtool"):
        done = subprocess.run([promtool, "check", "metrics"], input=text, text=True, capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.transports("process")
def test_scrape_of_broker_with_one_topic_is_small() -> None:
    """Below 60 KB after the usual requests of a producer and a group, and a sixth of that compressed."""
    settings = {"num.io.threads": 2, "num.network.threads": 2, "kproc.metrics.listener": "127.0.0.1:0"}
    with forked_broker()(settings) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("one", partitions=3)
            for partition in range(3):
                client.produce("one", batch(b"x"), partition=partition, version=9)
                client.fetch("one", 0, partition=partition)
            client.call(ApiKey.METADATA, 0, {"topics": []})
            for api in (ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_CLUSTER, ApiKey.API_VERSIONS):
                client.call(api, 0, {})
            find_coordinator(client, "readers")
            commit(client, "readers", "one", {0: 1})
        url = f"http://{broker.ready['metrics']}/metrics"

        def is_counted() -> str | None:
            found = scraped(broker.ready["metrics"])
            return found if 'totaltime_seconds_count{request="OffsetCommit"}' in found else None

        text = wait_until(is_counted, what="the timed requests are stored")
        assert 10_000 < len(text) < 60_000
        request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            compressed = response.read()
        assert len(compressed) < len(text) / 5
        assert b"kproc_build_info" in gzip.decompress(compressed)


@in_one_test(
    ("name", "kind", "problem"),
    [
        ("kproc_wait_ms", "gauge", "ms is an abbreviated unit"),
        ("kproc_wait_milliseconds", "gauge", "milliseconds is no base unit"),
        ("kproc_things", "counter", "_total is for counters"),
        ("kproc_things_total", "gauge", "_total is for counters"),
        ("kproc_things_count", "gauge", "a suffix of histograms"),
        ("kproc:things", "gauge", "a colon"),
        ("kproc_someThings", "gauge", "camelCase"),
        ("kproc_gauge_things", "gauge", "gauge is a type"),
    ],
)
def test_name_against_conventions_is_found(name: str, kind: str, problem: str) -> None:
    assert problems_of(f"# HELP {name} Things.\n# TYPE {name} {kind}\n") == [f"{name}: {problem}"]


def _agrees(broker: BrokerUnderTest, families: dict[str, Metric]) -> bool:
    shown = next(row for row in status(broker)["apis"] if row["request"] == "Produce")
    for version, count in shown["versions"].items():
        assert value(families, REQUESTS, request="Produce", version=version) == count
    total = "kafka_network_requestmetrics_totaltime_seconds"
    assert value(families, total, f"{total}_count", request="Produce") == shown["timed"]
    return True


def test_idle_ratio_metrics_appear(measured: BrokerUnderTest) -> None:
    def are_known() -> bool:
        network = status(measured)["network"]
        return all(
            0 <= (network[name] if network[name] is not None else -1) <= 1
            for name in ("network_processor_avg_idle", "request_handler_avg_idle")
        )

    wait_until(are_known, what="idle shares")


def test_connections_are_counted_by_listener(measured: BrokerUnderTest) -> None:
    before = status(measured)["network"]["listeners"]
    clients = [RawClient(measured.bootstrap) for _ in range(5)]

    def open_now() -> int:
        return int(status(measured)["network"]["listeners"]["PLAINTEXT"]["connections"])

    # Who asks may be there as well, and who asked before.
    wait_until(lambda: open_now() >= 5, what="five more")
    for client in clients:
        client.close()
    wait_until(lambda: open_now() <= 2, what="they are gone")
    after = status(measured)["network"]["listeners"]
    for counter in ("created_total", "closed_total"):
        assert after["PLAINTEXT"][counter] >= before["PLAINTEXT"][counter] + 5


def test_clients_operation_lists_and_closes_connections(measured: BrokerUnderTest) -> None:
    with connect(status(measured)["control"]) as admin, RawClient(measured.bootstrap) as client:
        client.call(ApiKey.API_VERSIONS, 0, {})

        def rows_of(listener: str) -> list[dict[str, Any]]:
            rows = admin.operate("clients")["clients"]
            return [row for row in rows if row["listener_name"] == listener]

        (own,) = rows_of("CONTROL")
        # Who asked for the status before may not have left yet.
        (seen,) = wait_until(lambda: len(rows := rows_of("PLAINTEXT")) == 1 and rows, what="one client")
        assert 0 <= seen["age_ms"] < 600_000
        assert seen["requests"] == 1
        assert admin.operate("kill-client", id=seen["id"])["is_killed"]
        assert client.is_closed_by_broker()
        with pytest.raises(ClientError):
            admin.operate("kill-client", id=own["id"])


@pytest.mark.no_leak_guard  # The roles that were killed have successors.
@pytest.mark.transports("process")
def test_metrics_survive_role_death_on_the_same_port(measured: BrokerUnderTest) -> None:
    name = fresh_name("dies")
    wanted = produced(measured) + 5
    with RawClient(measured.bootstrap) as client:
        client.create_topic(name)
        for _ in range(5):
            client.produce(name, batch(b"x"), version=9)
    address = status(measured)["metrics"]
    wait_until(lambda: produced(measured) == wanted, what="they are stored")
    for role in (("handler", 0), ("handler", 1), ("cleaner", 0)):
        pid = processes(measured.bootstrap)[role]
        os.kill(pid, signal.SIGKILL)
        wait_replaced(measured.bootstrap, role, pid)
    assert status(measured)["metrics"] == address
    wait_until(
        lambda: value(scrape(measured), REQUESTS, request="Produce", version="9") == wanted, what="counts"
    )


def produced(measured: BrokerUnderTest) -> int:
    """Produce requests of version 9 that are counted by now."""
    counted: int = api(measured, "Produce")["versions"].get("9", 0)
    return counted


def test_health_of_running_broker_is_live_and_ready(measured: BrokerUnderTest) -> None:
    address = status(measured)["metrics"]
    wait_until(lambda: health(address, "ready")[0] == 200, what="it is ready")
    assert health(address, "live")[0] == 200
    assert health(address, "ready")[1]["phase"] == "running"


def test_topic_metrics_show_traffic_log_size_and_lag(measured: BrokerUnderTest) -> None:
    name, group = fresh_name("figures"), fresh_name("readers")
    record = batch(b"x" * 100)
    with RawClient(measured.bootstrap) as client:
        client.create_topic(name, partitions=3)  # Of both Handlers.
        for partition in range(3):
            for _ in range(4):
                assert client.produce(name, record, partition=partition, version=9)["error_code"] == 0
        topic_id = client.topic_id(name)
        # The first goes the general way, the next the fast path; the last names the topic by its id.
        fetched = [client.fetch(name, 0, version=version, topic_id=topic_id) for version in (12, 12, 12, 16)]
        sent = sum(len(each["records"] or b"") for each in fetched)
        find_coordinator(client, group)
        commit(client, group, name, {0: 1, 1: 4, 2: 0})
    families = scrape(measured)
    topics = "kafka_server_brokertopicmetrics_"
    assert value(families, topics + "messagesin", topic=name) == 12
    assert value(families, topics + "bytesin", topic=name) == 12 * len(record)
    assert value(families, topics + "bytesout", topic=name) == sent
    assert value(families, "kproc_topic_fetches", topic=name) == len(fetched)
    assert value(families, "kproc_topic_log_bytes", topic=name) == 12 * len(record)
    for partition in range(3):
        assert value(families, "kafka_log_log_logendoffset", topic=name, partition=str(partition)) == 4
        assert value(families, "kafka_log_log_size", topic=name, partition=str(partition)) == 4 * len(record)
    lags = [
        value(families, "kafka_consumergroup_lag", consumergroup=group, topic=name, partition=str(partition))
        for partition in range(3)
    ]
    assert lags == [3, 0, 4]
    assert value(families, "kafka_consumergroup_lag_sum", consumergroup=group, topic=name) == 7
    assert value(families, "kproc_metrics_silent_handlers") == 0
