"""Offline partitions: Handlers report them, and the controller shows them."""

from __future__ import annotations

from typing import Any

from kproc.broker.observe.offline_partitions import (
    REPORT_OFFLINE,
    SHOWN_MAX,
    OfflineNews,
    OfflinePartitions,
    OfflineReport,
)

REASON = "the disk is broken"


class Told:
    """A Handler's news, as they come to the controller."""

    def __init__(self, shown: OfflinePartitions, handler: int = 0) -> None:
        self.count = 0
        self._shown = shown
        self.news = OfflineNews(handler, self._take)

    def _take(self, call: Any, body: Any, _on_reply: object) -> None:
        assert call is REPORT_OFFLINE
        assert isinstance(body, OfflineReport)
        self.count += 1
        self._shown.update(body)


def test_offline_partitions_are_reported_once_sorted_by_name() -> None:
    shown = OfflinePartitions()
    first, second = Told(shown, 0), Told(shown, 1)
    first.news.report({})
    assert (first.count, shown.describe(), shown.problem) == (0, {"count": 0, "first": []}, None)
    for _ in range(2):
        first.news.report({("t", 1): REASON})
        second.news.report({("a", 0): REASON, ("t", 0): REASON})
    assert (first.count, second.count) == (1, 1)
    rows = [(row["topic"], row["partition"], row["handler"]) for row in shown.describe()["first"]]
    assert rows == [("a", 0, 1), ("t", 0, 1), ("t", 1, 0)]
    assert shown.describe()["first"][0]["reason"] == REASON
    assert shown.problem == "3 partitions are offline"
    second.news.report({})
    assert shown.problem == "1 partition is offline"


def test_names_and_reasons_are_bounded_and_the_count_is_exact() -> None:
    shown = OfflinePartitions()
    for handler in range(3):
        Told(shown, handler).news.report({(f"t{handler}", index): "x" * 10_000 for index in range(100)})
    found = shown.describe()
    assert (found["count"], len(found["first"])) == (300, SHOWN_MAX)
    assert all(len(row["reason"]) <= 300 for row in found["first"])


def test_offline_partitions_reach_a_new_controller() -> None:
    before, after = OfflinePartitions(), OfflinePartitions()
    told = Told(before)
    told.news.report({("t", 0): REASON})
    told._shown = after
    told.news.controller_is_new()
    told.news.report({("t", 0): REASON})
    assert after.describe() == before.describe()
    after.remove(0)
    after.remove(7)
    assert after.problem is None
