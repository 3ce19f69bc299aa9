"""The text of a family of metrics is what prometheus-client makes of it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import CollectorRegistry

from kproc.broker.metrics.spec import METRICS, SLOT
from kproc.broker.observe.prometheus import _roles, exposed, text_of
from tests.support.cases import in_one_test

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


@in_one_test(
    "family",
    [
        counter(),
        gauge(),
        histogram(),
        GaugeMetricFamily("kproc_one", "One.", value=3),
        Metric("m", "None.", "gauge"),
        untyped(),
    ],
)
def test_text_of_a_family_is_that_of_the_library(family: Metric) -> None:
    class Collector:
        def collect(self) -> Iterator[Metric]:
            yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    assert text_of(family) == generate_latest(registry).decode()


@in_one_test(
    ("name", "expected"),
    [
        ("bytes_in", ("kproc_bytes_in", 1)),
        ("slept_ns", ("kproc_slept_seconds", 1e9)),
        ("compaction_swap_us_max", ("kproc_compaction_swap_max_seconds", 1e6)),
        ("compaction_last_run_ms", ("kproc_compaction_last_run_seconds", 1e3)),
        ("compaction_dirty_percent_max", ("kproc_compaction_dirty_max_ratio", 100)),
    ],
)
def test_declared_metrics_are_exposed_in_base_units(name: str, expected: tuple[str, float]) -> None:
    assert exposed(METRICS[SLOT[name]]) == expected


def test_series_of_a_role_appears_with_its_first_value_and_stays() -> None:
    moved: set[tuple[str, str, int]] = set()

    def shown(**counters: int) -> set[str]:
        row = {
            "role": "handler", "index": 0, "cpu_seconds": 0.0, "restarts": 0, "pss_bytes": 0, "state": "running",
            "heartbeat_age_ms": None, "counters": dict.fromkeys(SLOT, 0) | counters,
        }  # fmt: skip
        families = [each for each in _roles([row], moved) if not each.name.startswith("kproc_role_")]
        return {each.name for each in families if each.samples}

    always = {"kproc_contained_failures", "kproc_hanging_transactions", "kproc_wakeups_rescued"}
    assert shown() == always
    assert shown(parked=3) == always | {"kproc_parked"}
    assert shown() == always | {"kproc_parked"}, "a gauge that falls to 0 goes on"
