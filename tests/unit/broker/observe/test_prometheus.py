"""The text of a family of metrics is what prometheus-client makes of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import CollectorRegistry

from kproc.broker.observe.prometheus import text_of

NUMBERS = (0, 1, -3, 0.25, 123_456, 1_234_567, 12_345_678.5, 2.0**63, 1e-9, float("inf"), float("nan"))
VALUES = ("plain", "", 'a "quoted" one', "back\\slash", "two\nlines", "größer", "{x}=1,2")


def counter() -> Metric:
    family = CounterMetricFamily("kproc_things", "Things.", labels=["of", "at"])
    for number in NUMBERS:
        family.add_metric(["x", str(number)], number)
    return family


def gauge() -> Metric:
    family = GaugeMetricFamily("kproc_size", "Sizes.", labels=["z", "a"])
    for value in VALUES:
        family.add_metric([value, "1"], 7)
    return family


def histogram() -> Metric:
    family = HistogramMetricFamily("kproc_times", "Times.", labels=["request"])
    family.add_metric(["Fetch"], [("0.016", 1.0), ("1.0", 3.0), ("+Inf", 4.0)], 12.5)
    return family


def untyped() -> Metric:
    family = Metric("kproc_refused_count", "Refused.", "unknown")
    family.add_sample(family.name, {}, 3)
    return family


@pytest.mark.parametrize(
    "family",
    [
        counter(),
        gauge(),
        histogram(),
        GaugeMetricFamily("kproc_one", "One.", value=3),
        Metric("m", "None.", "gauge"),
        untyped(),
    ],
    ids=lambda family: family.name,
)
def test_text_of_a_family_is_that_of_the_library(family: Metric) -> None:
    class Collector:
        def collect(self) -> Iterator[Metric]:
            yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    assert text_of(family) == generate_latest(registry).decode()
