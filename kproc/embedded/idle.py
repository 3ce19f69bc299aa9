"""wait_until_idle: wait until a broker for tests has finished its work: for clients, for the disk and in the cleaner.

It observes the broker by operations of its own and by ListTransactions. Two observations in a row must find the broker
idle, because the answers of one observation show different moments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from kproc.client.errors import ClientError
from kproc.common.clock import NS_PER_S, SystemClock
from kproc.embedded.requests import OWN_CLIENT_ID

if TYPE_CHECKING:
    from kproc.client import Client

# Seconds between two observations. Roles store their counts every 100 ms, so that the second observation sees new ones.
_POLL_S: Final = 0.2
_SHOWN_MAX: Final = 20
_ENDING: Final = ["PrepareCommit", "PrepareAbort"]
_clock: Final = SystemClock()
_pause: Final = threading.Event()  # Never set, so that wait(seconds) is a sleep.


def wait_until_idle(connect: Callable[[], Client], seconds: float) -> None:
    """Return when two observations in a row have found the broker idle. Raises TimeoutError with a timeline."""
    begin_ns = _clock.now_ns()
    timeline: list[str] = []
    was_idle, last = False, ""
    while True:
        reasons = _observe(connect)
        if not reasons and was_idle:
            return
        was_idle = not reasons
        passed_s = (_clock.now_ns() - begin_ns) / NS_PER_S
        if (found := "; ".join(reasons) or "idle") != last:
            timeline.append(f"  +{passed_s:.3f} s  {found}")
            last = found
        # Raise only if this observation found the broker busy. If it found the broker idle after the time is over, a
        # second observation must confirm that.
        if passed_s > seconds and reasons:
            shown = "\n".join(timeline[-_SHOWN_MAX:])
            raise TimeoutError(f"the broker is not idle within {seconds:g} s:\n{shown}")
        _pause.wait(_POLL_S)


def _observe(connect: Callable[[], Client]) -> list[str]:
    """Return the reasons why the broker is not idle. The list is empty if it is idle."""
    try:
        with connect() as client:
            status = client.operate("status")
            return [
                *_roles(status["processes"]),
                *_requests(client),
                *_transactions(client, status["transactions"]),
            ]
    except ClientError as error:  # A role has died and has no running successor yet.
        return [str(error)]


def _roles(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        if row["state"] != "running":
            yield f"{row['role']} {row['index']} is {row['state']}"


def _requests(client: Client) -> Iterator[str]:
    """Yield a text for each kind of unfinished work: requests except long polls, syncs, and work of the cleaner.

    Yield a text for roles that do not answer, too, because their work is unknown.
    """
    found = client.operate("topics")
    connections = client.operate("clients")
    waiting = [row for row in connections["clients"] if row["inflight"] and row["client_id"] != OWN_CLIENT_ID]
    count = sum(row["inflight"] for row in waiting)
    if count > found["long_polls"]:
        names = ", ".join(sorted({row["client_id"] or row["address"] for row in waiting}))
        yield f"{count} requests in progress, {found['long_polls']} of them long polls, of clients: {names}"
    if found["syncing"]:
        yield f"syncs of {found['syncing']} logs"
    if found["cleaner"] is None:
        yield "the cleaner does not answer"
    else:
        if found["cleaner"]["checks_retention"]:
            yield "the cleaner checks the retention of logs"
        if found["cleaner"]["compacts"]:
            yield "the cleaner compacts logs"
    if silent := [*found["silent"], *connections["silent"]]:
        yield f"roles with these indexes do not answer: {silent}"


def _transactions(client: Client, counts: dict[str, int]) -> Iterator[str]:
    """Yield a text for each transaction that is ending, but whose markers are not in all logs yet.

    counts: number of transactions by state, from the status, up to 1 s old. Used only without ListTransactions.
    """
    from kproc.client import error_text
    from kproc.wire.header import ApiKey

    if (
        ApiKey.LIST_TRANSACTIONS not in client.api_versions()
    ):  # A broker that emulates a Kafka before 3.0 has no ListTransactions.
        if count := sum(counts[state] for state in _ENDING):
            yield f"{count} transactions are ending"
        return
    fields = {
        "state_filters": _ENDING,
        "producer_id_filters": [],
        "duration_filter": -1,
        "transactional_id_pattern": None,
    }
    answer = client.call_latest(ApiKey.LIST_TRANSACTIONS, fields)
    if answer["error_code"]:
        yield f"transactions: {error_text(answer['error_code'])}"
    for row in answer["transaction_states"]:
        yield f"transaction {row['transactional_id']} is in {row['transaction_state']}"
