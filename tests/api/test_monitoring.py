"""The Grafana board and the alert rules: every metric and label of their expressions is in a scrape under load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.broker import ServedBroker
from tests.support.cases import in_one_test
from tests.support.certificates import Certificates
from tests.support.groups import commit, find_coordinator
from tests.support.monitoring import alerts, board, names_in
from tests.support.raw import RawClient, batch
from tests.support.status import scraped
from tests.support.wait import wait_until

pytestmark = [pytest.mark.own_broker, pytest.mark.transports("process")]

OF_PROMETHEUS = {"up": {"job", "instance"}}  # What a scrape itself brings.
FROM_THE_SCRAPE = {"instance", "job"}
@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """The labels of each sample name of a broker that has worked."""
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    settings = {
        "num.io.threads": 2,
        "kproc.metrics.listener": "127.0.0.1:0",
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.location": certificates.server,
    }
    with ServedBroker(tmp_path_factory.mktemp("monitored") / "data", settings=settings) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("load", partitions=4)
            for partition in range(4):
                for _ in range(20):
                    client.produce("load", batch(b"x" * 1000), partition=partition, version=9)
                client.fetch("load", 0, partition=partition)
            assert client.produce("absent", batch(b"x"), version=9)["error_code"] != 0
            find_coordinator(client, "readers")
            commit(client, "readers", "load", {0: 3})
        yield wait_until(lambda: complete(broker.metrics), what="idle shares and timed requests are known")


def complete(address: str) -> dict[str, set[str]] | None:
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(scraped(address)):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    known = ("networkprocessoravgidle_percent", "totaltime_seconds_bucket", "requesthandleravgidle_percent")
    return found if all(any(name.endswith(end) for name in found) for end in known) else None


@in_one_test("expression", [*alerts(), *board()])
def test_every_alert_metric_is_in_the_scrape(expression: str, labels: dict[str, set[str]]) -> None:
    metrics, grouped = names_in(expression)
    offered: set[str] = set()
    for name, matched in metrics:
        assert name in labels or name in OF_PROMETHEUS, f"{name} is not scraped"
        has = labels.get(name, set()) | OF_PROMETHEUS.get(name, set()) | FROM_THE_SCRAPE
        assert matched <= has, f"{name} has no label {matched - has}"
        offered |= has
    assert grouped <= offered, f"no label {grouped - offered}"


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ('sum by (a) (rate(m{b="x",c=~"y"}[5m])) > 0.5', ([("m", {"b", "c"})], {"a"})),
        ("m and deriv(n[15m]) > 0", ([("m", set()), ("n", set())], set())),
        ("label_values(m, instance)", ([("m", set())], {"instance"})),
    ],
)
def test_metric_names_of_expression(expression: str, found: Any) -> None:
    assert names_in(expression) == found


@pytest.mark.parametrize("expression", ["m{a=", "m ? n", "unknown_function(m)", "1 + 2"])
def test_invalid_alert_expression_is_rejected(expression: str) -> None:
    with pytest.raises(AssertionError):
        names_in(expression)
