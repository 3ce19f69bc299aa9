"""The report's figures, computed by Spark from samples in Parquet as a comparison writes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.analysis import NothingThere, analyse
from bench.samples import Sample, Samples
from bench.workloads import BY_NAME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ABOUT: dict[str, Any] = {
    "time": "2026-01-02T00:00:00+00:00", "commit": "abc", "has_local_changes": False, "cpu": "a cpu", "cores": 2,
    "memory_gb": 24.0, "kernel": "6", "python": "3.11", "java": "17", "arguments": [], "note": "", "load_before": 0.1,
    "is_quiet": True,
}  # fmt: skip
RATE = ("one-64", "rate")


def single(peer: str, number: int, rate: float, *buckets: tuple[int, int]) -> Sample:
    result = {"requests_per_second": rate, "broker_cpu_seconds": 1.0, "requests": 10}
    latency = {"p50": 1.0, "p99": 2.0, "buckets_ns": [list(bucket) for bucket in buckets]}
    return Sample(BY_NAME["one-64"], peer, number, {**result, "latency_us": latency})


def written(directory: Path, *samples: Sample, **changes: Any) -> str:
    kept = Samples({**ABOUT, **changes})
    for sample in samples:
        kept.add(sample)
    return str(kept.write(directory))


@pytest.mark.slow
def test_ratios_are_paired_percentiles_merged_and_failures_kept(spark: SparkSession, tmp_path: Path) -> None:
    """The machine halved its speed in round 2: both figures scatter, the ratio does not."""
    probe = {"rate": 4000, "holds": True, "p50_us": 1.0, "p99_us": 2.0}
    path = written(
        tmp_path,
        single("kafka", 1, 100, (1000, 98), (5000, 1)),
        single("kafka", 2, 50, (1000, 99), (9000, 2)),
        single("process-group", 1, 150),
        single("process-group", 2, 75),
        single("process-group", 3, 900),  # a round that only one broker finished gives no ratio
        single("thread-group", 1, 50),
        Sample(BY_NAME["one-64"], "thread-group", 2, failed="connection lost"),
        Sample(BY_NAME["one-64"], "asyncio-group", 1, empty="no such transport"),
        Sample(BY_NAME["collapse"], "kafka", 1, {"collapse_rate": 4000, "steps": [probe]}),
    )
    found = analyse(spark, [path])
    assert found.peers == ["kafka", "process-group", "thread-group", "asyncio-group"]
    assert [cell["cell"] for cell in found.cells] == ["one-64", "collapse"]
    assert [row["metric"] for row in found.metrics("one-64")] == ["rate", "CPU", "p50", "p99"]
    ratio = found.to_yardstick[(*RATE, "process-group")]
    assert (ratio["median"], ratio["low"], ratio["high"], ratio["count"]) == (1.5, 1.5, 1.5, 2)
    assert found.summary[(*RATE, "process-group")]["median"] == 150
    assert found.of_judged[(*RATE, "thread-group")]["median"] == 3.0
    assert found.verdict(found.summary[(*RATE, "kafka")]) == (">= 1.4x", True)
    assert found.failures["one-64", "thread-group"] == {
        "cell": "one-64", "peer": "thread-group", "failed": 1, "rounds": 2, "why": "connection lost",
    }  # fmt: skip
    assert found.empties == {("one-64", "asyncio-group"): "no such transport"}
    percentiles = dict(found.percentiles["one-64", "latency", "kafka"])
    assert (percentiles[0.5], percentiles[0.99], percentiles[0.999], percentiles[1.0]) == (1.0, 5.0, 9.0, 9.0)
    assert found.steps == {"kafka": [probe]}


@pytest.mark.slow
def test_report_marks_change_when_ranges_do_not_overlap(
    spark: SparkSession, tmp_path: Path
) -> None:
    before, after = (
        [single(*of) for n in (1, 2) for of in (("kafka", n, kafka + n), ("process-group", n, kproc + n))]
        for kafka, kproc in ((100, 200), (101, 150))
    )
    old = written(tmp_path / "old", *before, commit="0ld", time="2026-01-01T00:00:00+00:00")
    new = written(tmp_path / "new", *after)
    found = analyse(spark, [old, new], against="0l")
    verdicts = {row["peer"]: row["verdict"] for row in found.changes if row["metric"] == "rate"}
    assert verdicts == {"kafka": "same", "process-group": "worse"}
    assert found.commit == "abc"
    assert found.summary[(*RATE, "process-group")]["high"] == 152, "the other commit's rounds are not counted"
    with pytest.raises(NothingThere, match="no samples of another commit fff; there are 0ld, abc"):
        analyse(spark, [old, new], against="fff")
