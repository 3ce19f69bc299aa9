"""Partitions that are not compacted because their log has a batch that cannot be read.

The cleaner remembers them until the broker's next start, as Kafka does, and reports them to the controller. `kproc
status`, `kproc doctor` and the metrics show them. At most SHOWN_MAX are named; counts are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from kproc.broker.calls.calls import Call, Reply

SHOWN_MAX: Final = 20
_REASON_MAX: Final = 300


class Uncleanable(NamedTuple):
    """The reason why a partition is not compacted, and the size of its log."""

    reason: str
    size_bytes: int


class UncleanableReport(msgspec.Struct, array_like=True):
    """The number of uncleanable partitions, their bytes, and the first of them as (topic, index, reason)."""

    count: int
    size_bytes: int
    first: list[tuple[str, int, str]]


class UncleanableNoted(Reply):
    """The reply to an UncleanableReport: the controller has stored it."""


REPORT_UNCLEANABLE: Final = Call("uncleanable_partitions", UncleanableReport, UncleanableNoted)


def make_report(found: Mapping[tuple[str, int], Uncleanable]) -> UncleanableReport:
    """Make the cleaner's report from its uncleanable partitions, which `found` has by topic and index."""
    first = [(*key, found[key].reason[:_REASON_MAX]) for key in sorted(found)[:SHOWN_MAX]]
    return UncleanableReport(len(found), sum(each.size_bytes for each in found.values()), first)


class UncleanablePartitions:
    """The partitions that the cleaner cannot compact, at the controller: the cleaner's last report."""

    def __init__(self) -> None:
        self._report = UncleanableReport(0, 0, [])

    def update(self, report: UncleanableReport) -> None:
        """Replace the stored report by the cleaner's new one."""
        self._report = report

    def describe(self) -> dict[str, Any]:
        """Return the count, the bytes and the first partitions by name, for the status."""
        return {
            "count": self._report.count,
            "bytes": self._report.size_bytes,
            "first": [
                {"topic": topic, "partition": index, "reason": reason}
                for topic, index, reason in self._report.first
            ],
        }

    @property
    def problem(self) -> str | None:
        """One line for the status, or None if the cleaner can compact every log."""
        count = self._report.count
        if not count:
            return None
        return f"{count} partition{' is' if count == 1 else 's are'} not compacted: a batch cannot be read"
