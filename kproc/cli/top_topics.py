"""The page `topics` of `kproc top`: traffic of each topic, and its size from the last survey of all logs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from kproc.cli.common import topic_metadata
from kproc.cli.human import format_bytes
from kproc.cli.top_links import Links
from kproc.cli.top_page import (
    Column,
    Line,
    PageSnapshot,
    Row,
    Source,
    StyledText,
    TopPage,
    counted,
    per_second,
    show_age,
    show_count,
    show_rate,
    total,
)
from kproc.cli.topic_usage import Gaps, LogFigures, Rates, TrafficMeter, log_sizes, surveyed_logs
from kproc.cli.unserved import Partition
from kproc.common.clock import SystemClock


class _Topics:
    """The topics of a broker, with the sizes and times of their logs from the last survey."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._gaps = Gaps()
        self._topics: list[dict[str, Any]] = []
        self._sizes: dict[str, int] = {}
        self._surveyed_s = 0.0
        self._newest_ms: dict[str, int] = {}
        self._meter: TrafficMeter | None = None
        self._rates: dict[str, Rates] | None = None
        self._offline: dict[Partition, str] = {}
        self._is_counted = True  # The broker counts the traffic, unless the first update finds the contrary.
        self._may_ask = True  # The broker has not denied the sizes of logs.

    def survey(self) -> None:
        """Read names, sizes and times of the last write of all topics."""
        client = self._links.client
        self._topics = topic_metadata(client, None)
        if not self._may_ask:
            return
        self._gaps, self._offline = Gaps(), {}
        local = self._links.local
        logs = surveyed_logs(local, self._offline) if local is not None else None
        if logs is None:
            sizes = log_sizes(client, self._gaps, None)
            # Do not repeat a denied request for sizes, because each one causes a line in the broker's log.
            self._may_ask = bool(sizes) or self._gaps.text() is None
            logs = {partition: LogFigures(size, -1, -1) for partition, size in sizes.items()}
            reason = (
                "only a kproc broker on this host tells them"
                if local is None
                else "the broker does not tell them"
            )
            self._gaps.add("last writes", reason)
        before, self._sizes, self._newest_ms = self._sizes, {}, {}
        for (name, _), log in logs.items():
            if log.bytes is not None:
                self._sizes[name] = self._sizes.get(name, 0) + log.bytes
            if log.newest_ms >= 0:
                self._newest_ms[name] = max(log.newest_ms, self._newest_ms.get(name, -1))
        now_s = time.monotonic()
        if not self._is_counted:
            # Without counters use the growth of the logs as incoming traffic. If retention has made a log smaller, the
            # traffic is unknown.
            seconds = now_s - self._surveyed_s
            self._rates = {
                name: Rates(per_second(size, before.get(name), seconds)) for name, size in self._sizes.items()
            }
        self._surveyed_s = now_s

    def update(self, _names: Sequence[str] | None) -> PageSnapshot:
        """Return the topics with their traffic since the last update."""
        if self._is_counted:
            self._count()
        if not self._is_counted:
            self._gaps.add("traffic out", "only a kproc broker on this host counts it")
        now_ms = SystemClock().wall_ms()
        rows = [self._row(topic, now_ms) for topic in self._topics]
        return topics_snapshot(rows, self._gaps.text(), self._offline)

    def _count(self) -> None:
        """Read the broker's traffic counters, if it is a kproc broker on this host."""
        if self._meter is not None:
            self._rates = self._meter.advance([topic["name"] for topic in self._topics])
        elif self._links.local is None:
            self._is_counted = False
        else:
            self._meter = TrafficMeter(self._links.client, self._links.local, self._gaps)
            self._is_counted = self._meter.is_counted

    def _row(self, topic: dict[str, Any], now_ms: int) -> dict[str, Any]:
        name = topic["name"]
        rates = (self._rates or {}).get(name, Rates())
        # A topic with incoming traffic was written just now, even if the last survey is older.
        newest_ms = now_ms if rates.bytes_in else self._newest_ms.get(name)
        return {
            "topic": name,
            "is_internal": bool(topic.get("is_internal")),
            "partitions": len(topic["partitions"]),
            "size_bytes": self._sizes.get(name),
            "bytes_in_per_s": rates.bytes_in,
            "records_in_per_s": rates.records_in,
            "bytes_out_per_s": rates.bytes_out,
            "last_write_ms": newest_ms,
            "last_write_age_ms": None if newest_ms is None else max(0, now_ms - newest_ms),
        }


def topics_snapshot(
    rows: list[dict[str, Any]], gaps: str | None = None, offline: dict[Partition, str] | None = None
) -> PageSnapshot:
    """Return the snapshot of the page: the rows, and a line with sums.

    gaps: a line about values that cannot be shown, or None. offline: the partitions that are not served, with their
    reasons.
    """
    internal = sum(row["is_internal"] for row in rows)
    count = counted(len(rows) - internal, "topic") + (f" and {internal} internal" if internal else "")
    size = total(row["size_bytes"] for row in rows)
    rates = [total(row[key] for row in rows) for key in ("bytes_in_per_s", "bytes_out_per_s")]
    shown = ["-" if each is None else format_bytes(each) for each in (size, *rates)]
    partitions = counted(sum(row["partitions"] for row in rows), "partition")
    head: list[Line] = [[StyledText(f"{count}, {partitions}, {shown[0]}, in {shown[1]}/s out {shown[2]}/s")]]
    if offline:
        names = [f"{topic}-{number}" for topic, number in sorted(offline)]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        head.append(
            [StyledText("not served ", "bold red"), StyledText(f"{', '.join(names[:3])}{more}: kproc status")]
        )
    if gaps is not None:
        head.append([StyledText(gaps, "dim")])
    return PageSnapshot(rows, head, {})


def _style(row: Row) -> str:
    is_idle = not row["bytes_in_per_s"] and not row["bytes_out_per_s"]
    return "dim" if is_idle and row["bytes_in_per_s"] is not None else ""


def _open(links: Links) -> Source:
    topics = _Topics(links)
    return Source(topics.update, topics.survey)


TOPICS: Final = TopPage(
    name="topics",
    name_key="topic",
    columns=(
        Column("TOPIC", "topic", 24, is_text=True),
        Column("PARTS", "partitions", 5, show_count),
        Column("SIZE", "size_bytes", 8, format_bytes),
        Column("IN/S", "bytes_in_per_s", 8, show_rate),
        Column("REC/S", "records_in_per_s", 8, show_count),
        Column("OUT/S", "bytes_out_per_s", 8, show_rate),
        Column("WRITTEN", "last_write_age_ms", 7, show_age),
    ),
    dropped=("PARTS", "REC/S", "WRITTEN", "OUT/S"),
    sort="IN/S",
    open=_open,
    style=_style,
    legend=(
        ("SIZE", "bytes of the records on the disk"),
        ("IN/S", "bytes per second from producers"),
        ("REC/S", "records per second from producers"),
        ("OUT/S", "bytes per second to consumers"),
        ("WRITTEN", "time since the newest record"),
        ("", "Names and sizes are read less often than rates, as the second time"),
        ("", "at the top right says. kproc topic list shows the retention, too."),
    ),
)
