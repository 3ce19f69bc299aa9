"""KprocCommitMessage: the totals of a write from the reports of its tasks."""

from __future__ import annotations

import pytest

from kproc.spark.commit_message import KprocCommitMessage, PartitionWritten, query_id_of, summary

pytest.importorskip("pyspark")


def test_summary_adds_tasks_and_leaves_out_missing_reports() -> None:
    first = KprocCommitMessage(
        "q", 3, 0, 0, [PartitionWritten("t", 0, 2, 20, 0, 1), PartitionWritten("u", 0, 1, 5, 7, 7)]
    )
    second = KprocCommitMessage("q", 3, 1, 0, [PartitionWritten("t", 1, 3, 30, 0, 2)])
    assert first.records == 3
    assert summary([first, None, second]) == {
        "query": "q",
        "tasks": 2,
        "topics": {"t": {"records": 5, "bytes": 50}, "u": {"records": 1, "bytes": 5}},
    }
    assert query_id_of([None, second]) == "q"
    assert query_id_of([None]) is None
