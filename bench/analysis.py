"""From raw samples to what a report says, in PySpark: medians, paired ratios, percentiles, regressions.

A ratio is taken between two brokers in the same run and round and only then summarised: what the machine did in that
round hits both, so the ratio scatters less than either figure. Percentiles come from the merged buckets of all
rounds, never from an average of percentiles. What is returned is small, and plain Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bench.cells import JUDGED, YARDSTICK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]
PERCENTILES: Final = (0.5, 0.9, 0.99, 0.999, 0.9999, 1.0)
WORSE_BY: Final = 0.05
"""Smaller changes between commits are not worth a line, whatever the ranges say."""
_KEY: Final = ("workload", "cell", "peer", "metric")
_RUN: Final = ("run_id", "time", "commit", "has_local_changes", "cpu", "cores", "memory_gb", "kernel", "python", "java",
               "arguments", "note", "load_before", "is_quiet", "is_quick")  # fmt: skip


class NothingThere(Exception):
    """No samples where some were expected; one line."""


@dataclass
class Analysis:
    """All that a report shows; each list is of plain rows."""

    commit: str
    against: str | None
    runs: list[Row]
    cells: list[Row]  # workload, cell, title, loop, in the order in which they are declared
    peers: list[str]
    summary: dict[tuple[str, str, str], Row]  # (cell, metric, peer): median, low, high, count, ...
    to_yardstick: dict[tuple[str, str, str], Row]  # the same key: ratio median, low, high, count
    of_judged: dict[tuple[str, str, str], Row]  # the judged broker's figure divided by this peer's
    failures: dict[tuple[str, str], Row]  # (cell, peer): failed (rounds), rounds, why
    empties: dict[tuple[str, str], str]
    percentiles: dict[
        tuple[str, str, str], list[tuple[float, float]]
    ]  # (cell, histogram, peer): (fraction, us)
    steps: dict[str, list[Row]]  # peer: rates of the search for the collapse
    changes: list[Row] = field(default_factory=list)  # against another commit

    def metrics(self, cell: str) -> list[Row]:
        """The metrics of a cell, one row each, in the order of their declaration."""
        found: dict[str, Row] = {}
        for (name, metric, _), row in self.summary.items():
            if name == cell:
                found.setdefault(metric, row)
        return sorted(found.values(), key=lambda row: row["place"])

    def verdict(self, row: Row) -> tuple[str, bool | None]:
        """A metric's goal in words, and whether the judged broker's median meets it; None: no figure."""
        key = (row["cell"], row["metric"], JUDGED)
        sign = ">=" if row["is_higher_better"] else "<="
        if row["goal_ratio"] is not None:
            bound, words, found = (
                row["goal_ratio"],
                f"{sign} {row['goal_ratio']:g}x",
                self.to_yardstick.get(key),
            )
        elif row["goal_absolute"] is not None:
            bound, words, found = (
                row["goal_absolute"],
                f"{sign} {row['goal_absolute']:g}",
                self.summary.get(key),
            )
        else:
            return "", None
        if found is None:
            return words, None
        return words, found["median"] >= bound if row["is_higher_better"] else found["median"] <= bound

    def goals(self) -> list[Row]:
        """Every metric with a goal."""
        rows = [row for cell in self.cells for row in self.metrics(cell["cell"])]
        return [row for row in rows if row["goal_ratio"] is not None or row["goal_absolute"] is not None]


def analyse(spark: SparkSession, paths: Sequence[str], against: str | None = None) -> Analysis:
    """Of the newest commit in the files; `against` names another commit in them by its first digits."""
    from pyspark.sql import functions as F

    samples = _read(spark, paths).cache()
    newest = samples.orderBy(F.desc("time")).select("commit").first()
    if newest is None:
        raise NothingThere(f"no samples in {', '.join(paths)}")
    commit = str(newest["commit"])
    current = samples.where(F.col("commit") == commit)
    values = _values(current)
    cells = _collect(_cells(current))
    found = Analysis(
        commit=commit,
        against=against,
        runs=_collect(_runs(current)),
        cells=cells,
        peers=_in_order(_collect(current.groupBy("peer").agg(F.min("round").alias("round")))),
        summary=_by_key(_summarise(values, F.col("value"))),
        to_yardstick=_by_key(_ratios(values, YARDSTICK, is_inverse=False)),
        of_judged=_by_key(_ratios(values, JUDGED, is_inverse=True)),
        failures={(row["cell"], row["peer"]): row for row in _collect(_failures(current))},
        empties=_empties(current),
        percentiles=_percentiles(current),
        steps=_steps(current),
    )
    if against is not None:
        base = samples.where(F.col("commit").startswith(against) & (F.col("commit") != commit))
        if base.isEmpty():
            commits = sorted(row["commit"] for row in samples.select("commit").distinct().collect())
            raise NothingThere(f"no samples of another commit {against}; there are {', '.join(commits)}")
        found.changes = _collect(_changes(values, _values(base)))
    samples.unpersist()
    return found


def _read(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Rows of all files; what a machine measured twice in one file stays two runs."""
    from pyspark.sql import functions as F

    found = spark.read.option("mergeSchema", "true").parquet(*paths)
    if "stolen" not in found.columns:  # Files of before.
        found = found.withColumn("stolen", F.lit(None).cast("double"))
    return found


def _runs(samples: DataFrame) -> DataFrame:
    """Where and when, and the mean and greatest share of CPU time that the host gave to others."""
    from pyspark.sql import functions as F

    stolen = F.when(F.col("empty").isNull() & (F.col("metric") == "result"), F.col("stolen"))
    shares = (F.avg(stolen).alias("stolen"), F.max(stolen).alias("stolen_max"))
    return samples.groupBy(*_RUN).agg(*shares).orderBy("time")


def _values(samples: DataFrame) -> DataFrame:
    """The rows with a number, and where the metric stands in its cell."""
    from pyspark.sql import functions as F

    return samples.where(F.col("value").isNotNull() & ~F.isnan("value"))


def _cells(samples: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    rows = samples.groupBy("workload", "cell").agg(
        F.first("title").alias("title"), F.first("loop").alias("loop"), F.min("cell_place").alias("place")
    )
    return rows.orderBy("place", "cell")


def _summarise(values: DataFrame, column: Any) -> DataFrame:
    """Median, smallest, largest and count of a column by cell, metric and peer."""
    from pyspark.sql import functions as F

    return values.withColumn("figure", column).groupBy(*_KEY).agg(
        F.expr("percentile(figure, 0.5)").alias("median"),
        F.min("figure").alias("low"),
        F.max("figure").alias("high"),
        F.count("figure").alias("count"),
        F.first("unit").alias("unit"),
        F.first("is_higher_better").alias("is_higher_better"),
        F.first("goal_ratio").alias("goal_ratio"),
        F.first("goal_absolute").alias("goal_absolute"),
        F.first("metric_place").alias("place"),
    )  # fmt: skip


def _ratios(values: DataFrame, base: str, *, is_inverse: bool) -> DataFrame:
    """Each peer's figure over the base's (or the base's over the peer's), within one run and round."""
    from pyspark.sql import functions as F

    pair = ["run_id", "round", "cell", "metric"]
    other = values.where(F.col("peer") == base).select(*pair, F.col("value").alias("base_value"))
    joined = values.where(F.col("peer") != base).join(other, pair)
    above, below = ("base_value", "value") if is_inverse else ("value", "base_value")
    return _summarise(joined.where(F.col(below) != 0), F.col(above) / F.col(below))


def _failures(samples: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    runs = samples.where((F.col("metric") == "result") & F.col("empty").isNull())
    rows = runs.groupBy("cell", "peer").agg(
        F.count("failed").alias("failed"), F.count("*").alias("rounds"), F.first("failed", True).alias("why")
    )
    return rows.where(F.col("failed") > 0)


def _empties(samples: DataFrame) -> dict[tuple[str, str], str]:
    from pyspark.sql import functions as F

    rows = samples.where(F.col("empty").isNotNull()).select("cell", "peer", "empty").distinct()
    return {(row["cell"], row["peer"]): row["empty"] for row in _collect(rows)}


def _percentiles(samples: DataFrame) -> dict[tuple[str, str, str], list[tuple[float, float]]]:
    """Of the merged histograms of all rounds: (fraction, us) for each of PERCENTILES."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    key = ["cell", "metric", "peer"]
    buckets = samples.where(F.col("histogram").isNotNull()).select(
        *key, F.explode("histogram").alias("bucket")
    )
    merged = buckets.groupBy(*key, F.col("bucket.upper_ns").alias("upper_ns")).agg(
        F.sum("bucket.count").alias("count")
    )
    whole = Window.partitionBy(*key)
    upto = whole.orderBy("upper_ns").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    counted = merged.withColumn("seen", F.sum("count").over(upto)).withColumn(
        "all", F.sum("count").over(whole)
    )
    wanted = F.explode(F.array(*[F.lit(one) for one in PERCENTILES])).alias("fraction")
    reached = counted.select("*", wanted).where(F.col("seen") >= F.ceil(F.col("fraction") * F.col("all")))
    rows = reached.groupBy(*key, "fraction").agg((F.min("upper_ns") / 1000).alias("us"))
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for row in _collect(rows.orderBy(*key, "fraction")):
        found.setdefault((row["cell"], row["metric"], row["peer"]), []).append((row["fraction"], row["us"]))
    return found


def _steps(samples: DataFrame) -> dict[str, list[Row]]:
    """Return the result of each broker at each rate of the search for the collapse, over all rounds."""
    from pyspark.sql import functions as F

    rows = samples.where((F.col("cell") == "collapse") & F.col("detail").isNotNull()).select("peer", "detail")
    found: dict[str, list[Row]] = {}
    for row in _collect(rows):
        found.setdefault(row["peer"], []).extend(json.loads(row["detail"]).get("steps", []))
    return {peer: sorted(steps, key=lambda step: step["rate"]) for peer, steps in found.items()}


def _changes(values: DataFrame, base: DataFrame) -> DataFrame:
    """Medians of two commits beside each other. A change counts when the ranges do not touch."""
    from pyspark.sql import functions as F

    now, then = _summarise(values, F.col("value")), _summarise(base, F.col("value"))
    before = then.select(
        *_KEY, *[F.col(name).alias(f"{name}_before") for name in ("median", "low", "high", "count")]
    )
    both = now.join(before, list(_KEY)).where(F.col("median_before") != 0)
    change = F.col("median") / F.col("median_before")
    gain = F.when(F.col("is_higher_better"), change - 1).otherwise(1 - change)
    is_apart = (F.col("low") > F.col("high_before")) | (F.col("high") < F.col("low_before"))
    many = (F.col("count") > 1) & (F.col("count_before") > 1)
    word = (
        F.when(~many, "one round only")
        .when(~is_apart | (F.abs(gain) < WORSE_BY), "same")
        .when(gain < 0, "worse")
        .otherwise("better")
    )
    rows = both.withColumn("change", change).withColumn("gain", gain).withColumn("verdict", word)
    return rows.orderBy("gain")


def _collect(frame: DataFrame) -> list[Row]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def _by_key(frame: DataFrame) -> dict[tuple[str, str, str], Row]:
    return {(row["cell"], row["metric"], row["peer"]): row for row in _collect(frame)}


def _in_order(rows: Iterable[Row]) -> list[str]:
    """Peers as the registry has them; others behind."""
    from bench.peers.registry import PEERS

    known = list(PEERS)
    names = [row["peer"] for row in rows]
    return sorted(names, key=lambda name: (known.index(name) if name in known else len(known), name))
