"""The status of a running kproc broker: its processes, and waiting for a role to come back after a kill."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from kproc.client import Client, ClientError
from kproc.client.security.settings import ClientSecurity
from tests.support.proc import is_alive
from tests.support.raw import address_of
from tests.support.wait import PATIENCE_SECONDS, wait_until

Role = tuple[str, int]
# A role that dies with the request closes the connection. Only a role that hangs lets it pass.
STATUS_MS = 20_000


def processes(
    bootstrap: str, *, timeout_ms: int = STATUS_MS, security: ClientSecurity | None = None
) -> dict[Role, int]:
    """(role, index) -> pid, as `kproc status` shows them; only rows that have a process."""
    return {
        (row["role"], int(row["index"] or 0)): int(row["pid"])
        for row in rows(bootstrap, timeout_ms, security)
        if row["pid"]
    }


def rows(
    bootstrap: str, timeout_ms: int = STATUS_MS, security: ClientSecurity | None = None
) -> list[dict[str, Any]]:
    """The rows of `kproc status`."""
    return list(status(bootstrap, timeout_ms=timeout_ms, security=security)["processes"])


def status(
    bootstrap: str, *, timeout_ms: int = STATUS_MS, security: ClientSecurity | None = None
) -> dict[str, Any]:
    """The answer to `kproc status`."""
    with connect(bootstrap, timeout_ms=timeout_ms, security=security) as client:
        return client.operate("status")


def connect(bootstrap: str, *, timeout_ms: int = 10_000, security: ClientSecurity | None = None) -> Client:
    """Connect kproc's own client to `host:port`, for its operations."""
    return Client.connect(*address_of(bootstrap), timeout_ms=timeout_ms, security=security)


def wait_replaced(
    bootstrap: str,
    role: Role,
    old_pid: int,
    *,
    seconds: float = 20.0,
    security: ClientSecurity | None = None,
) -> int:
    """The pid of the role's successor, once it is alive and shown."""

    def successor() -> int | None:
        try:
            pid = processes(bootstrap, security=security).get(role)
        except (ClientError, OSError) as problem:
            raise AssertionError(f"no status: {problem}") from problem
        return pid if pid not in (None, old_pid) and is_alive(pid) else None

    found = wait_until(successor, seconds=seconds, what=f"{role} has a successor")
    assert found is not None
    return found


def health(address: str, path: str) -> tuple[int, dict[str, Any]]:
    """HTTP status and JSON of a path below /health."""
    try:
        with urllib.request.urlopen(f"http://{address}/health/{path}", timeout=PATIENCE_SECONDS) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.load(refusal)


def scraped(address: str) -> str:
    """What the metrics listener answers."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_SECONDS) as response:
        text: str = response.read().decode()
        return text
