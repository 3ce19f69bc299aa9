"""Health: whether the broker is alive and whether it serves clients, for service managers and load balancers.

`/health/live` fails only if a restart may help: the broker serves nobody, because every Acceptor, every Processor or
every Handler hangs or is down. `/health/ready` fails before the ports are open, during a stop, and while any role but
the cleaner is not running, because some partitions or connections wait then. Two problems are shown but fail neither: a
cleaner that hangs, because no client waits for it, and a full disk, because reads work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from kproc.broker.observe.status import Status
from kproc.broker.role.roles import ACCEPTOR, CLEANER, HANDLER, PROCESSOR

STARTING, RUNNING, STOPPING = "starting", "running", "stopping"
_ILL: Final = ("hung", "down", "restarting")
_SHOWN: Final = ("role", "index", "pid", "state", "hung_ms", "restarts")

Row = Mapping[str, Any]


def unserved_kinds(rows: Sequence[Row]) -> list[str]:
    """Return those of Acceptor, Processor and Handler of which every process hangs, is down or is being restarted."""
    kinds = []
    for kind in (ACCEPTOR, PROCESSOR, HANDLER):
        of_kind = [row for row in rows if row["role"] == kind and row["pool"] != "control"]
        # Liveness fails only if a whole kind is gone. A service manager restarts the broker then, which costs all
        # clients their connections.
        if of_kind and all(row["state"] in _ILL for row in of_kind):
            kinds.append(kind)
    return kinds


def not_ready(rows: Sequence[Row]) -> list[Row]:
    """Return the roles that are not running, for the readiness probe.

    Roles that start for the first time, as in a scale-up, do not count.
    """
    return [row for row in rows if row["state"] in _ILL or (row["state"] == STARTING and row["restarts"])]


def answer(path: str, status: Status) -> tuple[int, bytes] | None:
    """Return HTTP status and JSON body for a health path, or None for any other path."""
    rows = status.processes
    if path == "/health/live":
        kinds = unserved_kinds(rows)
        is_well = not kinds or status.phase != RUNNING
        reason = "" if is_well else f"every {' and every '.join(kinds)} hangs or is down"
    elif path == "/health/ready":
        # No client waits for the cleaner, so the broker is ready without it.
        is_well = status.phase == RUNNING and all(row["role"] == CLEANER.role for row in not_ready(rows))
        reason = "" if is_well else status.phase if status.phase != RUNNING else "some roles are not running"
    else:
        return None
    body = {
        "status": "ok" if is_well else "not well",
        "reason": reason or None,
        "phase": status.phase,
        "roles_not_running": [{name: row[name] for name in _SHOWN} for row in not_ready(rows)],
        "problem": "; ".join(filter(None, (status.problem, status.disk.problem))) or None,
    }
    return (200 if is_well else 503), orjson.dumps(body) + b"\n"
