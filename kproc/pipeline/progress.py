"""Conversion of Spark's progress reports into numbers for users and programs: rates, lag, watermark, late rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kproc.pipeline.checkpoint import lag_of, topic_offsets
from kproc.pipeline.model import Pipeline, PipelineSource

Report = dict[str, Any]
NO_WATERMARK = "1970-01-01T00:00:00.000Z"


@dataclass
class QueryFigures:
    """Totals of a query's batches, and the numbers of its newest batch."""

    name: str
    state: str = "starting"
    batch: int | None = None
    rows: int = 0
    rows_per_s: float = 0.0
    batch_ms: int = 0
    lag: int | None = None
    watermark: str | None = None
    late_rows: int = 0
    malformed: int = 0
    last: Report = field(default_factory=dict)


def report_of(pipeline: Pipeline, query: str, progress: Mapping[str, Any]) -> Report:
    """Convert Spark's progress report about a batch to a flat dict, which `--json` prints as one line."""
    operators = progress.get("stateOperators") or []
    sources = _sources(pipeline, progress.get("sources") or [])
    lags = [source["lag"] for source in sources if source["lag"] is not None]
    watermark = (progress.get("eventTime") or {}).get("watermark")
    metrics = progress.get("observedMetrics") or {}
    malformed = {
        name.removeprefix("malformed "): int((row or {}).get("malformed") or 0)
        for name, row in metrics.items()
        if name.startswith("malformed ")
    }
    return {
        "time": progress.get("timestamp"),
        "query": query,
        "batch": progress.get("batchId"),
        "rows": progress.get("numInputRows") or 0,
        "rows_per_s": round(progress.get("processedRowsPerSecond") or 0.0, 1),
        "input_rows_per_s": round(progress.get("inputRowsPerSecond") or 0.0, 1),
        "duration_ms": (progress.get("durationMs") or {}).get("triggerExecution", 0),
        "lag": sum(lags) if lags else None,
        "watermark": watermark if watermark != NO_WATERMARK else None,
        "late_rows": sum(operator.get("numRowsDroppedByWatermark") or 0 for operator in operators),
        "state_rows": sum(operator.get("numRowsTotal") or 0 for operator in operators),
        "malformed": malformed,
        "sources": sources,
    }


def add(figures: QueryFigures, report: Report) -> None:
    """Add a batch to the totals. An idle report (no new batch) only updates the rate, the lag and the watermark."""
    is_new = report["batch"] != figures.batch or report["rows"]
    if is_new:
        figures.rows += report["rows"]
        figures.late_rows += report["late_rows"]
        figures.malformed += sum(report["malformed"].values())
        figures.batch = report["batch"]
        figures.batch_ms = report["duration_ms"]
    figures.rows_per_s = report["rows_per_s"] if report["rows"] else 0.0
    figures.lag = report["lag"]
    figures.watermark = report["watermark"] or figures.watermark
    figures.last = report


def _sources(pipeline: Pipeline, reports: Sequence[Mapping[str, Any]]) -> list[Report]:
    """Return the numbers of each source, with the source's name in the specification.

    Spark's reports do not contain these names, and describe a source in Python only as a Java object. So sources of
    topics are found by their topics, files by their path, and other sources by their order.
    """
    streams = [source for source in pipeline.sources if source.is_stream]
    named: dict[int, PipelineSource] = {}
    for matches in (_is_by_offsets, _is_by_description, lambda source, report: True):
        for place, report in enumerate(reports):
            if place in named:
                continue
            free = [source for source in streams if source not in named.values()]
            found = next((source for source in free if matches(source, report)), None)
            if found is not None:
                named[place] = found
    return [
        _source(named[place].name if place in named else "?", report) for place, report in enumerate(reports)
    ]


def _is_by_offsets(source: PipelineSource, report: Mapping[str, Any]) -> bool:
    offsets = topic_offsets(report.get("endOffset"))
    if offsets is None or not source.is_topic:
        return False
    return bool(offsets) and set(offsets) <= set(source.values)


def _is_by_description(source: PipelineSource, report: Mapping[str, Any]) -> bool:
    description = str(report.get("description"))
    return source.values[0] in description if source.is_files else source.kind in description.lower()


def _source(name: str, report: Mapping[str, Any]) -> Report:
    end, latest = topic_offsets(report.get("endOffset")), topic_offsets(report.get("latestOffset"))
    return {
        "source": name,
        "rows": report.get("numInputRows") or 0,
        "start": report.get("startOffset"),
        "end": report.get("endOffset"),
        "latest": report.get("latestOffset"),
        "lag": lag_of(end, latest) if end is not None and latest is not None else None,
    }


def plain_line(figures: QueryFigures) -> str:
    """Format a query's totals as one line, for output that is not a terminal."""
    parts = [
        f"{figures.name}: batch {figures.batch if figures.batch is not None else '-'}",
        f"{figures.rows:,} rows in all",
        f"{figures.rows_per_s:,.0f}/s",
        f"{figures.batch_ms} ms",
    ]
    if figures.lag is not None:
        parts.append(f"lag {figures.lag:,}")
    if figures.watermark is not None:
        parts.append(f"watermark {figures.watermark}")
    if figures.late_rows:
        parts.append(f"{figures.late_rows:,} late rows dropped")
    if figures.malformed:
        parts.append(f"{figures.malformed:,} malformed")
    return ", ".join(parts)


TABLE_HEADER = ("QUERY", "STATE", "BATCH", "ROWS", "ROWS/S", "MS", "LAG", "WATERMARK", "LATE", "MALFORMED")


def table_rows(queries: Iterable[QueryFigures]) -> list[tuple[str, ...]]:
    """Return one row of texts for each query, for the table that a terminal shows during a run."""
    optional: Callable[[object], str] = lambda value: "-" if value is None else str(value)  # noqa: E731
    return [
        (
            figures.name,
            figures.state,
            optional(figures.batch),
            f"{figures.rows:,}",
            f"{figures.rows_per_s:,.0f}",
            str(figures.batch_ms),
            "-" if figures.lag is None else f"{figures.lag:,}",
            optional(figures.watermark and figures.watermark.removesuffix(".000Z").replace("T", " ")),
            f"{figures.late_rows:,}",
            f"{figures.malformed:,}",
        )
        for figures in queries
    ]
