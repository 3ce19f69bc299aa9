"""Offline partitions and the reasons: each Handler reports its own to the controller, which shows them.

A Handler knows the partitions that were used since its start. Both sides store at most SHOWN_MAX names; counts are
exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from kproc.broker.calls.calls import Call, Reply
from kproc.broker.calls.controller_calls import AskController

SHOWN_MAX: Final = 20
_REASON_MAX: Final = 300

Offline = Mapping[tuple[str, int], str]


class OfflineReport(msgspec.Struct, array_like=True):
    """The number of a Handler's offline partitions, and the first of them as (topic, index, reason)."""

    handler: int
    count: int
    first: list[tuple[str, int, str]]


class OfflineNoted(Reply):
    """The reply to an OfflineReport: the controller has stored it."""


REPORT_OFFLINE: Final = Call("offline_partitions", OfflineReport, OfflineNoted)


class OfflineNews:
    """Reports a Handler's offline partitions to the controller. The Handler calls `report` about once a second."""

    __slots__ = ("_ask_controller", "_handler", "_told")

    def __init__(self, handler: int, ask_controller: AskController) -> None:
        self._handler = handler
        self._ask_controller = ask_controller
        self._told: Offline = {}

    def controller_is_new(self) -> None:
        """Report again at the next `report`, because a new controller has no report yet."""
        self._told = {}

    def report(self, offline: Offline) -> None:
        """Report the offline partitions if they differ from the last report."""
        if offline == self._told:
            return
        self._told = dict(offline)
        first = [(*key, offline[key][:_REASON_MAX]) for key in sorted(offline)[:SHOWN_MAX]]
        report = OfflineReport(self._handler, len(offline), first)
        self._ask_controller(REPORT_OFFLINE, report, lambda _reply: None)


class OfflinePartitions:
    """The offline partitions of all Handlers at the controller: the last report of each running Handler."""

    def __init__(self) -> None:
        self._by_handler: dict[int, OfflineReport] = {}

    def update(self, report: OfflineReport) -> None:
        """Replace the stored report of the Handler that has sent this one."""
        self._by_handler[report.handler] = report

    def remove(self, handler: int) -> None:
        """Remove the report of a Handler that has ended. Its successor will send its own."""
        self._by_handler.pop(handler, None)

    def describe(self) -> dict[str, Any]:
        """Return the number of offline partitions, and the first SHOWN_MAX by name."""
        rows = sorted(
            (topic, index, handler, reason)
            for handler, report in self._by_handler.items()
            for topic, index, reason in report.first
        )
        return {
            "count": sum(report.count for report in self._by_handler.values()),
            "first": [
                {"topic": topic, "partition": index, "handler": handler, "reason": reason}
                for topic, index, handler, reason in rows[:SHOWN_MAX]
            ],
        }

    @property
    def problem(self) -> str | None:
        """One line for the status, or None if no partition is offline."""
        count = sum(report.count for report in self._by_handler.values())
        if not count:
            return None
        return f"{count} partition{' is' if count == 1 else 's are'} offline"
