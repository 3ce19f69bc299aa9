"""The pages `processes` and `requests` of `kproc top`.

Their rates are computed from two successive responses of the broker to `status`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kproc.broker.metrics.histogram import Histogram
from kproc.cli.bottleneck import busy_share, find_bottleneck, mean_between, name_of, request_rate
from kproc.cli.human import format_bytes, format_duration
from kproc.cli.status import offline_lines
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
    show_count,
    show_ms,
    total,
)

Status = Mapping[str, Any]
_OFFLINE_MAX: Final = 3
_BUSY: Final = 0.9
# By column of the page `requests`: the phase of a request whose mean time the column shows.
_PARTS: Final = {"queue_ms": "RequestQueueTimeMs", "local_ms": "LocalTimeMs", "remote_ms": "RemoteTimeMs"}


class _Statuses:
    """The last two statuses of a broker, with the time between them."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self.now: Status = {}
        self.before: Status | None = None
        self.seconds = 0.0
        self.host_busy: float | None = None
        self._taken_s = 0.0
        self._host = _host_times()

    def request(self) -> str | None:
        """Request the next status. Return the notice if it came from the supervisor, else None."""
        status, notice = self._links.request_status()
        now_s, host = time.monotonic(), _host_times()
        # If the uptime has become smaller, the broker was restarted. Discard the earlier status, because its counters
        # do not match.
        is_same = bool(self.now) and status["uptime_ms"] >= self.now["uptime_ms"]
        self.before = self.now if is_same else None
        self.now, self.seconds, self._taken_s = status, max(0.001, now_s - self._taken_s), now_s
        self.host_busy = (
            (host[0] - self._host[0]) / (host[1] - self._host[1]) if host[1] > self._host[1] else None
        )
        self._host = host
        return notice


def _host_times() -> tuple[int, int]:
    """Return (used CPU time, total CPU time) of this host in ticks.

    This host is the broker's, because a broker sends its status only to its own host.
    """
    with open("/proc/stat", "rb") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)  # idle and iowait


# -- processes


def _open_processes(links: Links) -> Source:
    statuses = _Statuses(links)

    def update(_names: Sequence[str] | None) -> PageSnapshot:
        notice = statuses.request()
        return processes_snapshot(
            statuses.now, statuses.before, statuses.seconds, statuses.host_busy, notice=notice
        )

    return Source(update)


def processes_snapshot(
    status: Status,
    before: Status | None,
    seconds: float,
    host_busy: float | None = None,
    *,
    notice: str | None = None,
) -> PageSnapshot:
    """Return the roles, with the bottleneck and the broker's problems, from two successive statuses."""
    earlier = {name_of(row): row for row in before["processes"]} if before is not None else {}
    rows = [_process(row, earlier.get(name_of(row)), seconds) for row in status["processes"]]
    stage, reason, is_normal = find_bottleneck(status, before, seconds, host_busy)
    head: list[Line] = [[StyledText(_broker_line(status, before, seconds, rows))]]
    if notice is not None:
        head.append([StyledText("notice ", "bold yellow"), StyledText(notice)])
    style = "bold" if stage == "none" or is_normal else "bold red"
    text = f": {reason}{' (normal)' if is_normal else ''}"
    head.append([StyledText("bottleneck ", "bold"), StyledText(stage, style), StyledText(text)])
    if status.get("problem"):
        head.append([StyledText("problem ", "bold red"), StyledText(status["problem"])])
    head += [[StyledText(line, "red")] for line in _some_offline_lines(status)]
    values = {
        "bottleneck": {"stage": stage, "reason": reason, "is_normal": is_normal},
        "problem": status.get("problem"),
        "notice": notice,
        "uptime_ms": status["uptime_ms"],
    }
    return PageSnapshot(rows, head, values)


def _process(row: Row, before: Row | None, seconds: float) -> dict[str, Any]:
    # A restarted role has a new pid, and its counters start at 0, so do not compute differences.
    if before is not None and before["pid"] != row["pid"]:
        before = None
    busy = busy_share(row, before)
    cpu = per_second(row["cpu_seconds"], _earlier(before, "cpu_seconds"), seconds)
    return {
        "name": name_of(row),
        "role": row["role"],
        "index": row["index"],
        "pid": row["pid"],
        "state": row["state"],
        "cpu_percent": None if cpu is None else round(100 * cpu, 1),
        "idle_percent": None if busy is None or row["role"] == "supervisor" else round(100 - 100 * busy, 1),
        "connections": row["connections"],
        "requests_per_s": per_second(row["requests_total"], _earlier(before, "requests_total"), seconds),
        "bytes_in_per_s": _grown(row, before, "bytes_in", seconds),
        "bytes_out_per_s": _grown(row, before, "bytes_out", seconds),
        "ring_fill_percent": round(100 * row["ring_fill"], 1),
        "queue": row["counters"]["ring_records"],
        "parked": row["parked"],
        "pss_bytes": row["pss_bytes"],
        "heartbeat_age_ms": row["heartbeat_age_ms"],
        "restarts": row["restarts"],
    }


def _earlier(before: Row | None, key: str) -> float | None:
    return None if before is None else float(before[key])


def _grown(row: Row, before: Row | None, counter: str, seconds: float) -> float | None:
    earlier = None if before is None else before["counters"][counter]
    return per_second(row["counters"][counter], earlier, seconds)


def _broker_line(status: Status, before: Status | None, seconds: float, rows: Sequence[Row]) -> str:
    processors = [row for row in rows if row["role"] == "processor"]
    rate = request_rate(status, before, seconds)
    traffic = [total(row[key] for row in processors) for key in ("bytes_in_per_s", "bytes_out_per_s")]
    # Count the CPU time of each pid once, because roles that are threads of one process report the same CPU time.
    cpu = total({row["pid"]: row["cpu_percent"] for row in rows}.values())
    shown = [
        "-" if rate is None else show_count(rate),
        *("-" if each is None else format_bytes(each) for each in traffic),
        "-" if cpu is None else f"{cpu:.0f}",
    ]
    return (
        f"up {format_duration(status['uptime_ms'])}, "
        f"{counted(sum(row['connections'] for row in processors), 'connection')}, "
        "{} requests/s, in {}/s out {}/s, CPU {}%".format(*shown)
    )


def _some_offline_lines(status: Status) -> list[str]:
    """Return the lines of the first few offline partitions, so that the rest of the screen stays visible."""
    lines = offline_lines(status)
    shown = lines[:_OFFLINE_MAX]
    if len(lines) > _OFFLINE_MAX:
        shown.append(f"offline: {status['offline']['count'] - _OFFLINE_MAX} more: kproc status")
    return shown


def _process_style(row: Row) -> str:
    if row["state"] != "running":
        return "red"
    return "yellow" if row["idle_percent"] is not None and row["idle_percent"] < 100 * (1 - _BUSY) else ""


def _show_percent(value: float) -> str:
    return f"{value:.0f}"


PROCESSES: Final = TopPage(
    name="processes",
    name_key="name",
    columns=(
        Column("ROLE", "name", 14, is_text=True),
        Column("STATE", "state", 8, is_text=True),
        Column("CPU%", "cpu_percent", 4, _show_percent),
        Column("IDLE%", "idle_percent", 5, _show_percent),
        Column("CONNS", "connections", 5, show_count),
        Column("REQ/S", "requests_per_s", 7, show_count),
        Column("RING%", "ring_fill_percent", 5, _show_percent),
        Column("QUEUE", "queue", 5, show_count),
        Column("PARKED", "parked", 6, show_count),
        Column("PSS", "pss_bytes", 8, format_bytes),
        Column("BEAT_MS", "heartbeat_age_ms", 7, show_count),
        Column("RESTARTS", "restarts", 8, show_count),
        Column("PID", "pid", 7),
    ),
    dropped=("PID", "BEAT_MS", "RING%", "RESTARTS", "QUEUE", "PSS", "PARKED"),
    sort="ROLE",
    open=_open_processes,
    style=_process_style,
    legend=(
        ("STATE", "red unless running; see kproc status --help"),
        ("CPU%", "of one core"),
        ("IDLE%", "time that it waited for work; near 0 (yellow): it limits the others"),
        ("RING%", "fill of the rings that it writes; near 100: the readers are slow"),
        ("QUEUE", "messages in these rings"),
        ("PARKED", "requests that wait for records, members or time"),
        ("PSS", "memory, shared pages divided among their users"),
        ("BEAT_MS", "time since its last sign of life"),
        ("RESTARTS", "how often the supervisor has started it again"),
    ),
)


# -- requests


def _open_requests(links: Links) -> Source:
    statuses = _Statuses(links)

    def update(_names: Sequence[str] | None) -> PageSnapshot:
        notice = statuses.request()
        return requests_snapshot(statuses.now, statuses.before, statuses.seconds, notice=notice)

    return Source(update)


def requests_snapshot(
    status: Status, before: Status | None, seconds: float, *, notice: str | None = None
) -> PageSnapshot:
    """Return the APIs with their rates and times, from two successive statuses."""
    earlier = {api["key"]: api for api in before["apis"]} if before is not None else None
    rows = [_api(api, earlier, seconds) for api in status["apis"]]
    rates = [total(row[key] for row in rows) for key in ("requests_per_s", "errors_per_s")]
    shown = ["-" if rate is None else show_count(rate) for rate in rates]
    head: list[Line] = [[StyledText(f"{shown[0]} requests/s, {shown[1]} errors/s; times in ms")]]
    if notice is not None:
        head.insert(0, [StyledText("notice ", "bold yellow"), StyledText(notice)])
    return PageSnapshot(rows, head, {"notice": notice})


def _api(api: Row, earlier: Mapping[int, Row] | None, seconds: float) -> dict[str, Any]:
    # The status lists only APIs with requests. An API that is missing in the earlier status had none until then.
    nothing = {"requests_total": 0, "errors_total": 0, "total_time_buckets": [], "timed": 0, "times": {}}
    before = None if earlier is None else earlier.get(api["key"], nothing)
    rate = per_second(api["requests_total"], _earlier(before, "requests_total"), seconds)
    row: dict[str, Any] = {
        "api": api["request"],
        "requests_per_s": rate,
        "errors_per_s": per_second(api["errors_total"], _earlier(before, "errors_total"), seconds),
        "p50_ms": None,
        "p99_ms": None,
        **dict.fromkeys(_PARTS),
        "requests_total": api["requests_total"],
        "errors_total": api["errors_total"],
    }
    if before is None or not rate:
        return row
    whole = Histogram.of_buckets(api["total_time_buckets"])
    recent = whole.since(Histogram.of_buckets(before["total_time_buckets"]))
    # The broker times only some requests. If none was timed in this interval, show the times of all requests since its
    # start.
    if not recent.count:
        recent, before = whole, nothing
    if recent.count:
        row["p50_ms"], row["p99_ms"] = recent.quantile(0.5) / 1000, recent.quantile(0.99) / 1000
        for key, part in _PARTS.items():
            row[key] = mean_between(api, before, part)
    return row


def _api_style(row: Row) -> str:
    if row["errors_per_s"]:
        return "yellow"
    return "dim" if row["requests_per_s"] == 0 else ""


REQUESTS: Final = TopPage(
    name="requests",
    name_key="api",
    columns=(
        Column("API", "api", 20, is_text=True),
        Column("REQ/S", "requests_per_s", 8, show_count),
        Column("ERR/S", "errors_per_s", 6, show_count),
        Column("P50_MS", "p50_ms", 7, show_ms),
        Column("P99_MS", "p99_ms", 7, show_ms),
        Column("QUEUE_MS", "queue_ms", 8, show_ms),
        Column("LOCAL_MS", "local_ms", 8, show_ms),
        Column("REMOTE_MS", "remote_ms", 9, show_ms),
        Column("REQUESTS", "requests_total", 11, show_count),
        Column("ERRORS", "errors_total", 7, show_count),
    ),
    dropped=("ERRORS", "REQUESTS", "ERR/S", "QUEUE_MS", "LOCAL_MS"),
    sort="REQ/S",
    open=_open_requests,
    style=_api_style,
    is_idle=lambda row: row["requests_per_s"] == 0,
    legend=(
        ("ERR/S", "errors in responses, also those that clients expect (yellow)"),
        ("P50_MS", "median of the whole time of a request"),
        ("P99_MS", "99 of 100 requests took at most this long"),
        ("QUEUE_MS", "mean wait for a Handler: it is busy, paused or gets no core"),
        ("LOCAL_MS", "mean work of the Handler"),
        ("REMOTE_MS", "mean wait for others: new records, a sync, members of a group"),
        ("", "Times are of the last interval, or of all if none in it was timed."),
        ("REQUESTS", "since the start of the broker, as ERRORS"),
        ("", "kproc top itself is among them, as KprocOperation."),
    ),
)
