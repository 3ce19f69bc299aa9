"""The page `connections` of `kproc top`.

Its rates are computed from two successive responses of the broker to `clients`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from kproc.cli.clients import STATES, add_quotas, add_rates, throttle_lines
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
    show_age,
    show_count,
    show_rate,
    total,
)

if TYPE_CHECKING:
    from kproc.client import Client

_THROTTLED_MAX: Final = 3
_QUOTAS_REST_S: Final = 30.0
_ANONYMOUS: Final = "User:ANONYMOUS"


class _ConnectionSource:
    """The source of the page `connections`: computes rates from two successive lists of connections."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._before: dict[str, dict[str, Any]] | None = None
        self._taken_s = 0.0
        self._quotas: dict[str, Any] = {}
        self._quotas_due_s = 0.0

    def update(self, _names: Sequence[str] | None) -> PageSnapshot:
        client = self._links.require_local()
        rows = client.operate("clients").rows("clients")
        now_s = time.monotonic()
        if self._before is not None:
            add_rates(rows, self._before, max(0.001, now_s - self._taken_s))
            self._add_quotas(client, [row for row in rows if any(row["throttled_percent"].values())], now_s)
        self._before, self._taken_s = {row["id"]: row for row in rows}, now_s
        return connections_snapshot(rows)

    def _add_quotas(self, client: Client, throttled: list[dict[str, Any]], now_s: float) -> None:
        """Add the quotas of throttled clients. Read them rarely, because a denied request is a line in a log."""
        if throttled and now_s >= self._quotas_due_s:
            add_quotas(client, throttled)
            self._quotas = {row["id"]: row["quotas"] for row in throttled}
            self._quotas_due_s = now_s + _QUOTAS_REST_S
        for row in throttled:
            row["quotas"] = self._quotas.get(row["id"], {})


def connections_snapshot(rows: Sequence[Row]) -> PageSnapshot:
    """Return the connections, from rows of the operation `clients`, with or without rates."""
    shown = [_connection(row) for row in rows]
    states = [row["state"] for row in shown]
    rate = total(row["requests_per_s"] for row in shown)
    text = f"{counted(len(shown), 'connection')}, {states.count('throttled')} throttled, {states.count('held')} held"
    head: list[Line] = [[StyledText(f"{text}; {'-' if rate is None else show_count(rate)} requests/s")]]
    lines = throttle_lines(
        [row for row in rows if any(row.get("throttled_percent", {}).values())], _THROTTLED_MAX
    )
    head += [[StyledText(line, "yellow")] for line in lines]
    return PageSnapshot(shown, head, {})


def _connection(row: Row) -> dict[str, Any]:
    software = f"{row['software_name']} {row['software_version']}"
    return {
        "id": row["id"],
        "client": row["client_id"] or "-",
        "address": f"{row['address']}:{row['port']}",
        "principal": row["principal"],
        "software": None if row["software_name"] == "unknown" else software,
        "state": STATES.get(row["state"], row["state"]),
        "requests_per_s": row.get("requests_per_s"),
        "bytes_in_per_s": row.get("bytes_in_per_s"),
        "bytes_out_per_s": row.get("bytes_out_per_s"),
        "age_ms": row["age_ms"],
        "idle_ms": row["idle_ms"],
        "listener": row["listener_name"],
        "processor": row["processor"],
        "throttled_percent": row.get("throttled_percent"),
    }


def _connection_style(row: Row) -> str:
    if row["state"] == "throttled":
        return "yellow"
    return "dim" if row["requests_per_s"] == 0 else ""


CONNECTIONS: Final = TopPage(
    name="connections",
    name_key="id",
    columns=(
        Column("CLIENT", "client", 20, is_text=True),
        Column("ADDRESS", "address", 15, is_text=True),
        Column("PRINCIPAL", "principal", 9, is_text=True, usual=_ANONYMOUS),
        Column("SOFTWARE", "software", 8, is_text=True),
        Column("STATE", "state", 9, is_text=True),
        Column("REQ/S", "requests_per_s", 7, show_count),
        Column("IN/S", "bytes_in_per_s", 8, show_rate),
        Column("OUT/S", "bytes_out_per_s", 8, show_rate),
        Column("AGE", "age_ms", 5, show_age),
        Column("IDLE", "idle_ms", 5, show_age),
        Column("LISTENER", "listener", 9, is_text=True),
        Column("PROC", "processor", 4),
    ),
    dropped=("LISTENER", "PROC", "SOFTWARE", "AGE", "IDLE", "ADDRESS", "PRINCIPAL"),
    sort="REQ/S",
    open=lambda links: Source(_ConnectionSource(links).update),
    style=_connection_style,
    legend=(
        ("PRINCIPAL", "the name in access control rules; - has not logged in yet"),
        ("STATE", "open; held: not read, because an answer waits or something is full;"),
        ("", "throttled: by a quota (yellow)"),
        ("IN/S", "bytes per second from the client"),
        ("OUT/S", "bytes per second to the client"),
        ("IDLE", "time since its last request"),
        ("PROC", "the Processor that has the socket"),
        ("", "kproc kill-client ADDRESS closes a connection."),
    ),
)
