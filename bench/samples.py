"""Raw samples and their home: a Parquet file, one row for each number of each run.

Whatever a report needs is in the rows (title, unit, goal, machine, commit), so old files stay readable when cells
change. `SCHEMA` is the documentation: every column says what it holds.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.cells import Cell
from bench.machine import cpu_times
from bench.workloads import CELLS

if TYPE_CHECKING:
    import pyarrow

FILE_NAME: Final = "samples.parquet"
SCHEMA_VERSION: Final = "1"

# (column, type, meaning). Types: s text, i int64, f float64, b bool, h histogram, l list of text.
COLUMNS: Final = (
    ("run_id", "s", "one call of `kproc bench compare`"),
    ("time", "s", "when it began, UTC, ISO 8601"),
    ("commit", "s", "of the checkout, 12 digits"),
    ("has_local_changes", "b", "kproc/ or bench/ differed from that commit"),
    ("cpu", "s", "the processor's model name"),
    ("cores", "i", "CPUs that the process may use"),
    ("memory_gb", "f", "of the machine"),
    ("kernel", "s", "Linux release"),
    ("python", "s", "version and build of the interpreter that ran kproc"),
    ("java", "s", "version of the Java that ran Kafka"),
    ("arguments", "l", "of the command"),
    ("note", "s", "what the person wrote with --note"),
    ("load_before", "f", "load average when it began"),
    ("is_quiet", "b", "that load was low: figures may be quoted"),
    ("is_quick", "b", "--quick"),
    ("workload", "s", "footprint, produce, consume, small, ..."),
    ("cell", "s", "the question's name"),
    ("title", "s", "the question"),
    ("cell_place", "i", "where the cell stands among all"),
    ("loop", "s", "open or closed; empty where there is no loop"),
    ("parameters", "s", "JSON: the options of the cell"),
    ("peer", "s", "the broker"),
    ("round", "i", "ratios are taken between peers of one run_id and round only"),
    ("stolen", "f", "share of the CPU time wanted since the sample before that the host gave to others"),
    ("sequence", "i", "order in which the runs of this run_id were made"),
    (
        "metric",
        "s",
        "name of the number; `result`: the whole answer in `detail`; `latency`: only a histogram",
    ),
    ("metric_place", "i", "where the metric stands in its cell"),
    ("unit", "s", "of the value"),
    ("is_higher_better", "b", "direction"),
    ("value", "f", "null for failures, empty cells, `result` and histograms"),
    ("goal_ratio", "f", "to kafka in the same round, null where there is none"),
    ("goal_absolute", "f", "bound in the metric's unit, null where there is none"),
    ("failed", "s", "why this run has no figures: a wrong answer, a broker that did not start"),
    ("empty", "s", "why this peer cannot be asked: no such interpreter, no such setting"),
    (
        "histogram",
        "h",
        "[(highest ns of the bucket, count)], 128 buckets an octave: a value is kept within 0.8 %",
    ),
    ("detail", "s", "JSON: everything that the run reported, without buckets"),
)
PLACES: Final = {cell.name: place for place, cell in enumerate(CELLS)}
BUCKETS: Final = ("latency_us", "ack_latency_us", "metadata_us")


@dataclass(frozen=True)
class Sample:
    """One broker in one cell in one round: a result, or why there is none."""

    cell: Cell
    peer: str
    round: int
    result: dict[str, Any] | None = None
    failed: str | None = None
    empty: str | None = None
    stolen: float | None = None


@dataclass
class Samples:
    """All samples of one comparison, kept after every round, so that whatever ends it loses no round."""

    about: dict[str, Any]
    is_quick: bool = False
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    kept: list[Sample] = field(default_factory=list)
    _times: tuple[int, int] = field(default_factory=cpu_times)

    def add(self, sample: Sample) -> None:
        times, before = cpu_times(), self._times
        self._times = times
        wanted = times[1] - before[1]
        self.kept.append(replace(sample, stolen=(times[0] - before[0]) / wanted if wanted else 0.0))

    def rows(self) -> Iterator[dict[str, Any]]:
        about = {name: self.about.get(name) for name, *_ in COLUMNS if name in self.about}
        head = {**about, "run_id": self.run_id, "is_quick": self.is_quick}
        for sequence, sample in enumerate(self.kept):
            for row in rows_of(sample):
                yield {**head, "sequence": sequence, **row}

    def write(self, directory: Path) -> Path:
        """The Parquet file, replaced as a whole."""
        import pyarrow
        import pyarrow.parquet

        directory.mkdir(parents=True, exist_ok=True)
        table = pyarrow.Table.from_pylist(list(self.rows()), schema=schema())
        fresh, path = directory / f".{FILE_NAME}", directory / FILE_NAME
        pyarrow.parquet.write_table(table, fresh, compression="zstd")
        fresh.rename(path)
        return path


def rows_of(sample: Sample) -> Iterable[dict[str, Any]]:
    """A row for each metric, histogram and the whole answer; a single one for what has no figures."""
    cell, result = sample.cell, sample.result
    head: dict[str, Any] = {
        "workload": cell.workload,
        "cell": cell.name,
        "title": cell.title,
        "loop": cell.loop,
    }
    head["cell_place"] = PLACES.get(cell.name)
    head |= {
        "parameters": json.dumps(cell.options, sort_keys=True),
        "peer": sample.peer,
        "round": sample.round,
        "stolen": sample.stolen,
    }
    if result is None:
        return [{**head, "metric": "result", "failed": sample.failed, "empty": sample.empty}]
    rows = []
    for place, metric in enumerate(cell.metrics):
        wanted = metric.wanted
        row: dict[str, Any] = {"metric_place": place}
        row |= {"metric": metric.name, "unit": metric.unit, "is_higher_better": metric.is_higher_better}
        row |= {"goal_ratio": wanted and wanted.ratio, "goal_absolute": wanted and wanted.absolute}
        rows.append({**head, **row, "value": metric.read(result)})
    for key in BUCKETS:
        if (found := result.get(key)) and found.get("buckets_ns"):
            buckets = [{"upper_ns": top, "count": count} for top, count in found["buckets_ns"]]
            name = key.removesuffix("_us").replace("_", " ")
            rows.append(
                {**head, "metric": name, "unit": "ns", "is_higher_better": False, "histogram": buckets}
            )
    rows.append({**head, "metric": "result", "detail": json.dumps(_without_buckets(result), default=str)})
    return rows


def _without_buckets(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_buckets(inner) for key, inner in value.items() if key != "buckets_ns"}
    return value


def schema() -> pyarrow.Schema:
    """COLUMNS as Arrow knows them, each with its meaning as metadata."""
    import pyarrow as pa

    bucket = pa.struct([("upper_ns", pa.int64()), ("count", pa.int64())])
    types = {"s": pa.string(), "i": pa.int64(), "f": pa.float64(), "b": pa.bool_(), "h": pa.list_(bucket)}
    types["l"] = pa.list_(pa.string())
    fields = [pa.field(name, types[kind], metadata={"meaning": meaning}) for name, kind, meaning in COLUMNS]
    return pa.schema(fields, metadata={"kproc.bench.schema": SCHEMA_VERSION})
