"""Spark's progress reports as figures: sources by name, lag, late and malformed rows; errors in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kproc.pipeline.progress import QueryFigures, add, plain_line, report_of
from kproc.pipeline.spec import parse_spec

SPEC = """
[pipeline]
name = "p"
checkpoint = "state"
[[source]]
name = "clicks"
topic = "c"
[[source]]
name = "views"
topic = "v"
[[source]]
name = "files"
json = "in"
read = "stream"
schema = "a int"
[[sink]]
name = "out"
input = "views"
noop = true
"""
PIPELINE = parse_spec(SPEC, Path("/w/p.toml"))


def source(description: str, end: Any, latest: Any, rows: int = 0) -> dict[str, Any]:
    return {
        "description": description,
        "startOffset": None,
        "endOffset": end,
        "latestOffset": latest,
        "numInputRows": rows,
    }


def progress(batch: int, rows: int, **more: Any) -> dict[str, Any]:
    return {
        "timestamp": "2026-01-01T00:00:01.000Z",
        "batchId": batch,
        "numInputRows": rows,
        "processedRowsPerSecond": 12.34,
        "durationMs": {"triggerExecution": 250},
        "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"},
        "stateOperators": [{"numRowsTotal": 4, "numRowsDroppedByWatermark": 2}, {"numRowsTotal": 1}],
        "sources": [],
        **more,
    }


def test_sources_are_named_by_topic_or_path() -> None:
    rows = [
        source(
            "org.apache.spark.sql.PythonMicroBatchStream@1f",
            {"v": {"0": 5, "1": 5}},
            {"v": {"0": 9, "1": 6}},
            10,
        ),
        source("FileStreamSource[file:/w/in]", {"logOffset": 3}, None, 1),
        source("org.apache.spark.sql.PythonMicroBatchStream@2a", '{"c":{"0":1}}', '{"c":{"0":1}}'),
    ]
    report = report_of(PIPELINE, "out", progress(3, 11, sources=rows))
    assert [(row["source"], row["rows"], row["lag"]) for row in report["sources"]] == [
        ("views", 10, 5),
        ("files", 1, None),
        ("clicks", 0, 0),
    ]
    assert (report["lag"], report["late_rows"], report["state_rows"]) == (5, 2, 5)
    assert (report["rows_per_s"], report["duration_ms"], report["watermark"]) == (12.3, 250, None)


def test_sums_grow_by_batches_and_an_idle_report_only_refreshes() -> None:
    figures = QueryFigures("out")
    metrics = {"malformed clicks": {"malformed": 3}, "of the user": {"x": 1}}
    add(figures, report_of(PIPELINE, "out", progress(0, 100, observedMetrics=metrics)))
    add(
        figures,
        report_of(PIPELINE, "out", progress(1, 50, eventTime={"watermark": "2026-01-01T00:00:00.000Z"})),
    )
    add(figures, report_of(PIPELINE, "out", progress(1, 0, observedMetrics=metrics)))
    assert (figures.rows, figures.late_rows, figures.malformed, figures.batch) == (150, 4, 3, 1)
    assert (figures.rows_per_s, figures.watermark) == (0.0, "2026-01-01T00:00:00.000Z")
    assert plain_line(figures) == (
        "out: batch 1, 150 rows in all, 0/s, 250 ms, watermark 2026-01-01T00:00:00.000Z, 4 late rows dropped, "
        "3 malformed"
    )
