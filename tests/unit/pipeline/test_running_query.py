"""A running query as far as it goes without Spark: how often its reports are fetched."""

from __future__ import annotations

import json
from types import SimpleNamespace

from kproc.pipeline.running_query import RunningQuery


class Progress:
    def __init__(self, number: int) -> None:
        self._row = {"timestamp": f"2026-01-01T00:00:{number:02d}.000Z", "batchId": number}

    def timestamp(self) -> str:
        return str(self._row["timestamp"])

    def json(self) -> str:
        return json.dumps(self._row)


class JavaQuery:
    """Spark's query in the JVM, and how often all of its reports were fetched."""

    def __init__(self) -> None:
        self.reports: list[Progress] = []
        self.fetches = 0

    def lastProgress(self) -> Progress | None:
        return self.reports[-1] if self.reports else None

    def recentProgress(self) -> list[Progress]:
        self.fetches += 1
        return self.reports


def test_reports_are_fetched_once_and_in_order() -> None:
    java = JavaQuery()
    query = RunningQuery(None, None, SimpleNamespace(_jsq=java), None)  # type: ignore[arg-type]
    assert query.new_rows() == []
    java.reports = [Progress(1), Progress(2)]
    assert [row["batchId"] for row in query.new_rows()] == [1, 2]
    assert query.new_rows() == []
    assert java.fetches == 1
    java.reports.append(Progress(3))
    assert [row["batchId"] for row in query.new_rows()] == [3]
