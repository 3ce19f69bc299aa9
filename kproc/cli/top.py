"""`kproc top`: a broker as it works: roles, APIs, and which stage holds the others up."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kproc.broker.metrics.histogram import Histogram
from kproc.cli.bottleneck import Finding, busy_share, find_bottleneck, name_of, request_rate
from kproc.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, Failure
from kproc.cli.status import offline_lines
from kproc.cli.status_source import StatusSource
from kproc.common.printable import printable

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

Status = Mapping[str, Any]
_NARROW, _WIDE = 70, 100
_OFFLINE_MAX = 3
_QUIT = b"qQ\x03\x1b"


def top(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    interval: Annotated[
        float,
        typer.Option("--interval", "-i", metavar="S", min=0.2, max=60, help="Seconds between two updates."),
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one update, on any output.")] = False,
) -> None:
    """Watch a broker: processes, queues, APIs with their times, and the bottleneck by name. q ends it."""
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Failure("top needs a terminal; --once does not", exit_code=2)
    with StatusSource(bootstrap) as source:
        first = source.request_status()
        began_s, host = time.monotonic(), _host_times()
        if once:
            time.sleep(min(interval, 1.0))
            status = source.request_status()
            _print_once(View(status, first, time.monotonic() - began_s, _busy_since(host)))
            return
        _watch(source, first, began_s, interval)


class View:
    """The screen for two successive responses to `status`."""

    def __init__(
        self, status: Status, before: Status | None, seconds: float, host_busy: float | None = None
    ) -> None:
        self.status = status
        self.before = before
        self.seconds = max(seconds, 0.001)
        self._host_busy = host_busy
        self._rows = {name_of(row): row for row in before["processes"]} if before is not None else {}
        self._apis = {api["key"]: api for api in before["apis"]} if before is not None else {}

    def bottleneck(self) -> Finding:
        return find_bottleneck(self.status, self.before, self.seconds, self._host_busy)

    def render(self, width: int, height: int) -> Group:
        """Return the head, the roles and the APIs, as many as fit on the screen."""
        from rich.console import Group
        from rich.text import Text

        stage, reason = self.bottleneck()
        lines = [Text(printable(self._head()), no_wrap=True, overflow="ellipsis")]
        color = "bold" if stage == "none" else "bold red"
        lines.append(
            Text.assemble(("bottleneck ", "bold"), (printable(stage), color), printable(f": {reason}"))
        )
        if self.status.get("problem"):
            lines.append(Text.assemble(("problem ", "bold red"), printable(self.status["problem"])))
        lines += self._offline_lines(width)
        used = 1 + sum(-(-len(line) // max(1, width)) for line in lines[1:])
        rows = self.status["processes"]
        room = max(1, height - used - 2)
        shown_roles = rows[: max(1, min(len(rows), room - 3))]
        room -= len(shown_roles) + 2
        return Group(
            *lines, self._roles(shown_roles, width), *([self._api_table(room, width)] if room > 0 else [])
        )

    def _offline_lines(self, width: int) -> list[Text]:
        """Return the lines of the first few offline partitions, so that the rest of the screen stays visible."""
        from rich.text import Text

        lines = offline_lines(self.status)
        shown = lines[:_OFFLINE_MAX]
        if len(lines) > _OFFLINE_MAX:
            more = self.status["offline"]["count"] - _OFFLINE_MAX
            shown.append(f"offline: {more} more: kproc status")
        texts = [Text(printable(line), style="red", no_wrap=True) for line in shown]
        for text in texts:
            text.truncate(width, overflow="ellipsis")
        return texts

    def _head(self) -> str:
        status = self.status
        rate = request_rate(status, self.before, self.seconds)
        connections = sum(row["connections"] for row in status["processes"] if row["role"] == "processor")
        sent = [self._grown(name) / self.seconds / 1e6 for name in ("bytes_in", "bytes_out")]
        cpu = sum({row["pid"]: row["cpu_percent"] for row in status["processes"]}.values())
        return (
            f"{status['transport']}, up {status['uptime_ms'] // 1000} s, {connections} connections, "
            f"{rate or 0:.0f} requests/s, in {sent[0]:.1f} out {sent[1]:.1f} MB/s, CPU {cpu:.0f} %"
        )

    def _grown(self, counter: str) -> int:
        grown = 0
        for row in self.status["processes"]:
            earlier = self._rows.get(name_of(row))
            if row["role"] == "processor" and earlier is not None:
                grown += max(0, row["counters"][counter] - earlier["counters"][counter])
        return grown

    def _roles(self, rows: list[Mapping[str, Any]], width: int) -> Table:
        table = _table("ROLE", "STATE", "CPU%", "IDLE%", "CONNS", "REQ/S")
        if width >= _NARROW:
            _add_columns(table, "RING%", "QUEUE", "PARKED")
        if width >= _WIDE:
            _add_columns(table, "PSS_MB", "BEAT_MS", "RESTARTS")
        for row in rows:
            earlier = self._rows.get(name_of(row))
            busy = busy_share(row, earlier)
            grown = row["requests_total"] - earlier["requests_total"] if earlier is not None else 0
            cells = [
                name_of(row),
                row["state"],
                f"{row['cpu_percent']:.0f}",
                f"{100 - 100 * busy:.0f}" if busy is not None and row["role"] != "supervisor" else "-",
                str(row["connections"]),
                f"{max(0, grown) / self.seconds:.0f}",
                f"{100 * row['ring_fill']:.0f}",
                str(row["counters"]["ring_records"]),
                str(row["parked"]),
                f"{row['pss_bytes'] / 1e6:.1f}",
                str(row["heartbeat_age_ms"] if row["heartbeat_age_ms"] is not None else "-"),
                str(row["restarts"]),
            ]
            is_late = row["state"] != "running" or (busy is not None and busy > 0.9)
            table.add_row(*_as_texts(cells, table), style="red" if is_late else "")
        return table

    def _api_table(self, room: int, width: int) -> Table:
        table = _table("API", "REQ/S", "P50_MS", "P99_MS", "REQUESTS")
        if width >= _NARROW:
            _add_columns(table, "ERRORS")
        if width >= _WIDE:
            _add_columns(table, "QUEUE_MS", "LOCAL_MS", "REMOTE_MS")
        rates = {api["key"]: self._api_rate(api) for api in self.status["apis"]}
        apis = sorted(self.status["apis"], key=lambda api: (-rates[api["key"]], -api["requests_total"]))
        for api in apis[: max(1, room - 1)]:
            times = self._total_times(api)
            cells = [
                api["request"],
                f"{rates[api['key']]:.0f}",
                f"{times.quantile(0.5) / 1000:.2f}" if times.count else "-",
                f"{times.quantile(0.99) / 1000:.2f}" if times.count else "-",
                str(api["requests_total"]),
                str(api["errors_total"]),
                *(
                    f"{api['times'][name]['mean']:.2f}" if api["timed"] else "-"
                    for name in ("RequestQueueTimeMs", "LocalTimeMs", "RemoteTimeMs")
                ),
            ]
            table.add_row(*_as_texts(cells, table))
        return table

    def _api_rate(self, api: Mapping[str, Any]) -> float:
        earlier = self._apis.get(api["key"])
        if self.before is None:
            return 0.0
        grown = api["requests_total"] - (earlier["requests_total"] if earlier is not None else 0)
        return float(max(0, grown)) / self.seconds

    def _total_times(self, api: Mapping[str, Any]) -> Histogram:
        """Return the histogram of total times in the interval, or of all requests if none was timed in it."""
        whole = Histogram.of_buckets(api["total_time_buckets"])
        earlier = self._apis.get(api["key"])
        if earlier is None:
            return whole
        recent = whole.since(Histogram.of_buckets(earlier["total_time_buckets"]))
        return recent if recent.count else whole


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    _add_columns(table, *columns)
    return table


def _as_texts(cells: Sequence[str], table: Table) -> list[Text]:
    """Convert a row's cells to Text, because rich would interpret a string in brackets as markup."""
    from rich.text import Text

    return [Text(printable(cell)) for cell in cells[: len(table.columns)]]


def _add_columns(table: Table, *columns: str) -> None:
    for column in columns:
        is_text = column in ("ROLE", "STATE", "API")
        table.add_column(column, no_wrap=True, justify="left" if is_text else "right", overflow="ellipsis")


def _print_once(view: View) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else 120
    console = Console(width=width, highlight=False, no_color=not sys.stdout.isatty())
    console.print(view.render(console.width, 1000))


def _watch(source: StatusSource, first: Status, began_s: float, interval_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    status, before, seconds, host, busy = first, None, 0.0, _host_times(), None
    with (
        _keys() as wants_to_quit,
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while True:
            live.update(
                View(status, before, seconds, busy).render(console.width, console.height), refresh=True
            )
            if wants_to_quit(interval_s):
                return
            before = status
            status = source.request_status()
            now_s = time.monotonic()
            seconds, began_s = now_s - began_s, now_s
            busy, host = _busy_since(host), _host_times()


def _host_times() -> tuple[int, int]:
    """Return (used CPU time, all CPU time) of this host in ticks. The broker runs here, or it would not answer."""
    with open("/proc/stat", "rb") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)  # idle and iowait


def _busy_since(before: tuple[int, int]) -> float | None:
    used, total = _host_times()
    return (used - before[0]) / (total - before[1]) if total > before[1] else None


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """Read the terminal key by key, without echo, until the context ends.

    Yields a function that waits up to `timeout_s` and returns True if q was pressed.
    """
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def wants_to_quit(timeout_s: float) -> bool:
        end_s = time.monotonic() + timeout_s
        while (left_s := end_s - time.monotonic()) > 0:
            ready, _, _ = select.select([fd], [], [], left_s)
            if ready:
                pressed = os.read(fd, 64)
                if not pressed or any(key in _QUIT for key in pressed[:1]):
                    return True
        return False

    # In cbreak mode a key arrives without Enter, and Ctrl-C still raises KeyboardInterrupt, which raw mode would
    # prevent.
    tty.setcbreak(fd)
    try:
        yield wants_to_quit
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
