"""Readiness: two real round trips, the line and the file that say so, and the host limits we need."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from kproc.client import Client, ClientError
from kproc.errors import ErrorCode
from kproc.server.listeners import Endpoint
from kproc.server.plan import Plan
from kproc.wire.header import ApiKey

_TIMEOUT_MS: Final = 10_000
# Not a legal topic name, so it cannot exist, and auto-creation cannot create it.
_NO_TOPIC: Final = "kproc readiness/probe"
_NOFILE_WANTED: Final = 1 << 20


def round_trips(endpoint: Endpoint) -> str | None:
    """Metadata, and a Produce that writes nothing, over a real connection; None when both were answered."""
    host = endpoint.bound_host
    if host in ("0.0.0.0", ""):  # noqa: S104 - compared with, not bound to
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    try:
        with Client.connect(host, endpoint.bound_port, timeout_ms=_TIMEOUT_MS) as client:
            client.call(ApiKey.METADATA, 5, {"topics": [], "allow_auto_topic_creation": False})
            partition = {"index": 0, "records": None}
            fields = {
                "acks": 1,
                "timeout": 1000,
                "topic_data": [{"name": _NO_TOPIC, "partition_data": [partition]}],
            }
            answer = client.call(ApiKey.PRODUCE, 7, fields)
    except ClientError as error:
        return str(error)
    code = answer["responses"][0]["partition_responses"][0]["error_code"]
    if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"a Produce to no topic was answered with error {code}"
    return None


def describe(plan: Plan, processes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the ready file holds."""
    control = {"control": plan.control.bound} if plan.control is not None else {}
    metrics = {"metrics": plan.metrics.bound} if plan.metrics is not None else {}
    return {
        "bootstrap": plan.endpoints[0].advertised,
        "pid": os.getpid(),
        "processes": [{key: row[key] for key in ("role", "index", "pid", "pool")} for row in processes],
        "data": str(Path(plan.config.log_dirs).absolute()),
        "listeners": {e.name: {"bound": e.bound, "advertised": e.advertised} for e in plan.endpoints},
        **control,
        **metrics,
    }


def write(path: Path, announcement: dict[str, Any]) -> None:
    """Atomically: whoever waits for the file finds it whole."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(orjson.dumps(announcement))
    part.rename(path)


def remove(path: Path | None) -> None:
    """The broker has stopped: the file must not tell otherwise."""
    if path is not None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def raise_nofile_limit() -> None:
    """As many descriptors as we may have: connections, segments and hand-overs all need them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _NOFILE_WANTED if hard == resource.RLIM_INFINITY else min(hard, _NOFILE_WANTED)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
