"""`kproc clients` shows all connections and their traffic. `kproc kill-client` closes one connection."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    interval_option,
    print_done,
    print_json,
)
from kproc.cli.connection import connect
from kproc.cli.consent import DryRun
from kproc.cli.lines import print_line, print_text
from kproc.cli.tables import fits, print_table

if TYPE_CHECKING:
    from kproc.client import Client


class Order(StrEnum):
    """The column by which rows are sorted. Numbers are in descending order."""

    ADDRESS = "address"
    CLIENT = "client"
    PRINCIPAL = "principal"
    AGE = "age"
    IDLE = "idle"
    REQUESTS = "requests"
    RATE = "rate"
    BYTES = "bytes"
    THROTTLED = "throttled"


HEADER = ("ID", "CLIENT", "PRINCIPAL", "SOFTWARE", "LISTENER", "PROCESSOR", "STATE", "AGE_S", "IDLE_S", "REQUESTS",
          "REQ/S", "IN_MB", "OUT_MB")  # fmt: skip
STATES = {
    "NOT_MUTED": "open",
    "MUTED": "held",
    "MUTED_AND_RESPONSE_PENDING": "held",
    "MUTED_AND_THROTTLED": "throttled",
    "MUTED_AND_THROTTLED_AND_RESPONSE_PENDING": "throttled",
}
# Columns that a narrow terminal does not show, in the order in which they are dropped.
DROPPED = ("LISTENER", "PROCESSOR", "IDLE_S", "SOFTWARE", "REQUESTS", "OUT_MB", "IN_MB", "AGE_S", "REQ/S")
_THROTTLED_MAX = 10
CUT = ("CLIENT", "PRINCIPAL", "SOFTWARE")


def clients(
    sort: Annotated[Order, typer.Option("--sort", help="Column to sort by.")] = Order.ADDRESS,
    interval: Annotated[float, interval_option("Measure rates over this many seconds.")] = 0.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Show every connection: its client, user, software, listener, process, age and what it sends.

    Without an interval, rates are averages over the life of a connection. ID is the argument of kill-client: the
    address of the broker, that of the client, and the process that accepted the connection. A narrow terminal shows
    the client's address alone, which kill-client accepts, too. PRINCIPAL is the name in access control rules.
    User:ANONYMOUS needed no login, and - has not logged in yet. STATE: open; held (not read, because something is full
    or an answer waits for the client); throttled by a quota. The lines below the table say for how much of its time
    each client was throttled, by which quota, and whose quota that is. A throttled client that has ended stays listed
    until its throttle is over, which can take minutes, because its socket is not read meanwhile.
    """
    with connect(bootstrap) as client:
        before = client.operate("clients").rows("clients") if interval else []
        if interval:
            time.sleep(interval)
        rows = client.operate("clients").rows("clients")
        add_quotas(client, rows)
    add_rates(rows, {row["id"]: row for row in before}, interval)
    sort_rows(rows, sort)
    if output is Format.JSON:
        print_json(rows)
    elif not rows:
        print_line("no client is connected")
    else:
        print_clients(rows)
        for line in throttle_lines(rows):
            print_text(line)


def kill_client(
    connection_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The connection, as `kproc clients` shows it, or the client's HOST:PORT."
        ),
    ],
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Close one connection. Its requests in progress get no answer."""
    with connect(bootstrap) as client:
        if _is_address(connection_id):
            connection_id = _id_of_address(client, connection_id)
        if dry_run:
            is_there = any(row["id"] == connection_id for row in client.operate("clients").rows("clients"))
        else:
            is_there = client.operate("kill-client", id=connection_id)["is_killed"]
    if not is_there:
        raise Failure(f"there is no connection {connection_id}; kproc clients shows all")
    result = "would close" if dry_run else "closed"
    print_done([{"id": connection_id, "result": result}], "{result} {id}", output)


def _is_address(connection_id: str) -> bool:
    """Return True for a client's address, False for the id of a connection. Only ids have dashes."""
    return ":" in connection_id and "-" not in connection_id


def _id_of_address(client: Client, address: str) -> str:
    """Return the id of the connection from a client's address, or the address itself if there is no connection.

    Raise a Failure if there are several connections.
    """
    rows = client.operate("clients").rows("clients")
    ids = [str(row["id"]) for row in rows if _address(row) == address]
    if len(ids) > 1:
        raise Failure(
            f"there are several connections from {address}: {', '.join(ids)}; give one of these ids"
        )
    return ids[0] if ids else address


def _address(row: Mapping[str, Any]) -> str:
    return f"{row['address']}:{row['port']}"


def add_rates(rows: list[dict[str, Any]], before: dict[str, dict[str, Any]], interval_s: float) -> None:
    """Add to each row requests and bytes per second, and by quota the percentage of throttled time.

    The time is the interval, or the connection's life if it is newer or `interval_s` is 0.
    """
    for row in rows:
        earlier = before.get(row["id"])
        # Without an earlier row (a new connection, or no interval) measure from the connection's start. At least 1 ms
        # avoids a division by zero.
        seconds = interval_s if earlier is not None else max(row["age_ms"] / 1000, 0.001)
        for name in ("requests", "bytes_in", "bytes_out"):
            grown = row[name] - (earlier[name] if earlier is not None else 0)
            row[f"{name}_per_s"] = round(max(0, grown) / seconds, 1)
        before_ms = earlier.get("throttled_ms", {}) if earlier is not None else {}
        row["throttled_percent"] = {
            quota: min(100.0, round(max(0, ms - before_ms.get(quota, 0)) / seconds / 10, 1))
            for quota, ms in row.get("throttled_ms", {}).items()
        }


def add_quotas(client: Client, rows: list[dict[str, Any]]) -> None:
    """Add to each row the quotas that have throttled its client: {name: {"value", "of"}}.

    A quota that was deleted since is missing. Without the right to describe quotas all are missing.
    """
    from kproc.broker.cluster.client_quotas import ClientQuotas
    from kproc.cli.quotas import read_quotas, shown_owner

    for row in rows:
        row["quotas"] = {}
    throttled = [row for row in rows if row.get("throttled_ms")]
    if not throttled:
        return
    quotas = ClientQuotas()
    try:
        for each in read_quotas(client):
            quotas.set(tuple(sorted(each["of"].items())), each["quota"], each["value"])
    except Failure:
        return
    for row in throttled:
        user = (row["principal"] or "").removeprefix("User:")
        for name in row["throttled_ms"]:
            found = quotas.in_force(user, row["client_id"], name)
            if found is not None:
                entity, value = found
                row["quotas"][name] = {"value": value, "of": shown_owner(dict(reversed(entity)))}


def throttle_lines(rows: Sequence[Mapping[str, Any]], most: int = _THROTTLED_MAX) -> list[str]:
    """Return a line for each connection and each quota that throttled it. The most throttled one comes first.

    Return at most `most` such lines, and one with the number of the others.
    """
    found = []
    for row in rows:
        for name, percent in row["throttled_percent"].items():
            quota = row["quotas"].get(name)
            limit = f"{name}={quota['value']:.15g} of {quota['of']}" if quota is not None else name
            who = f"{row['client_id'] or '-'} ({row['principal']}, {_address(row)})"
            if percent > 0:
                found.append((percent, f"throttled {percent:.0f} % of the time: {who} by {limit}"))
    found.sort(key=lambda each: -each[0])
    lines = [line for _, line in found[:most]]
    more = len(found) - len(lines)
    return [*lines, f"throttled: {more} more; --format json has all"] if more else lines


def sort_rows(rows: list[dict[str, Any]], order: Order) -> None:
    """Sort the rows of connections in place by the column `order`."""
    if order is Order.ADDRESS:
        rows.sort(key=lambda row: (row["address"], row["port"]))
    elif order is Order.CLIENT:
        rows.sort(key=lambda row: (row["client_id"], row["address"], row["port"]))
    elif order is Order.PRINCIPAL:
        rows.sort(key=lambda row: (row["principal"] or "", row["client_id"], row["address"], row["port"]))
    elif order is Order.THROTTLED:
        rows.sort(key=lambda row: max(row["throttled_percent"].values(), default=-1.0), reverse=True)
    elif order is Order.BYTES:
        rows.sort(key=lambda row: row["bytes_in"] + row["bytes_out"], reverse=True)
    else:
        names = {
            Order.AGE: "age_ms",
            Order.IDLE: "idle_ms",
            Order.REQUESTS: "requests",
            Order.RATE: "requests_per_s",
        }
        rows.sort(key=lambda row: row[names[order]], reverse=True)


def print_clients(rows: list[dict[str, Any]]) -> None:
    """Print the table. If it does not fit, show client addresses instead of ids, unless two rows share an address.

    If no client has logged in, drop the column PRINCIPAL first, because all principals are User:ANONYMOUS.
    """
    is_telling = any(row["principal"] not in (None, "User:ANONYMOUS") for row in rows)
    cells = [_cells(row) for row in rows]
    addresses = [_address(row) for row in rows]
    if not fits(HEADER, cells, CUT) and len(set(addresses)) == len(addresses):
        cells = [[address, *others] for address, (_, *others) in zip(addresses, cells, strict=True)]
    print_table(HEADER, cells, drop=DROPPED if is_telling else ("PRINCIPAL", *DROPPED), cut=CUT)


def _cells(row: dict[str, Any]) -> list[object]:
    return [
        row["id"],
        row["client_id"] or "-",
        row["principal"],
        f"{row['software_name']} {row['software_version']}"
        if row["software_name"] != "unknown"
        else "unknown",
        row["listener_name"],
        row["processor"],
        STATES.get(row["state"], row["state"]),
        row["age_ms"] / 1000,
        row["idle_ms"] / 1000,
        row["requests"],
        row["requests_per_s"],
        row["bytes_in"] / 1e6,
        row["bytes_out"] / 1e6,
    ]
