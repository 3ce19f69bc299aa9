"""Uncleanable partitions: what the cleaner reports, and what status, CLI and metrics show of it."""

from __future__ import annotations

from kproc.broker.observe.prometheus import _broker, text_of
from kproc.broker.observe.uncleanable_partitions import (
    SHOWN_MAX,
    Uncleanable,
    UncleanablePartitions,
    make_report,
)
from kproc.cli.status import problem_lines


def test_report_names_the_first_and_counts_all() -> None:
    found = {("t", index): Uncleanable("why " * 200, 10) for index in range(SHOWN_MAX + 5)}
    partitions = UncleanablePartitions()
    assert (partitions.problem, problem_lines({"uncleanable": partitions.describe()})) == (None, [])
    partitions.update(make_report(found))
    shown = partitions.describe()
    assert (shown["count"], shown["bytes"], len(shown["first"])) == (25, 250, SHOWN_MAX)
    assert max(len(row["reason"]) for row in shown["first"]) == 300
    (lines,) = problem_lines({"uncleanable": shown})
    assert lines[0].startswith("not compacted: t-0: why ")
    assert lines[-1] == "not compacted: 5 more"
    assert partitions.problem == "25 partitions are not compacted: a batch cannot be read"


def test_lines_of_an_answer_without_them_are_empty() -> None:
    """The supervisor answers without them, and so does an older broker."""
    assert problem_lines({"uncleanable": None}) == problem_lines({}) == []


def test_metrics_have_kafkas_names() -> None:

    partitions = UncleanablePartitions()
    partitions.update(make_report({("t", 0): Uncleanable("why", 77)}))
    status = {
        "uptime_ms": 0, "topics": 1, "internal_topics": 0, "partitions": 1, "internal_partitions": 0,
        "shared_memory_unmapped_bytes": 0,
        "disk": {"free_bytes": 1, "used_bytes": 1, "is_full": False, "full_in_s": None},
        "uncleanable": partitions.describe(),
        "faults": {"is_enabled": False, "rules": 0},
        "certificates": {},
    }  # fmt: skip
    text = "".join(text_of(family) for family in _broker(status))
    assert "kafka_log_logcleanermanager_uncleanable_partitions_count 1.0" in text
    assert "kafka_log_logcleanermanager_uncleanable_bytes 77.0" in text
