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
from kproc.wire.header import ApiKey, encode_request_header
from kproc.wire.primitives import INT16, INT32, encode_string

_TIMEOUT_MS: Final = 10_000
# Not a legal topic name, so it cannot exist, and auto-creation cannot create it.
_NO_TOPIC: Final = "kproc readiness/probe"
# Written and read by hand: the schemas of two requests and answers take longer to load than the two round trips.
METADATA_VERSION: Final = 1
_PRODUCE_VERSION: Final = 7
_PRODUCE_NOTHING: Final = (
    INT16.pack(-1)  # no transactional id
    + INT16.pack(1)  # acks
    + INT32.pack(1000)  # timeout in ms
    + INT32.pack(1)
    + encode_string(_NO_TOPIC)
    + INT32.pack(1)
    + INT32.pack(0)  # the partition
    + INT32.pack(-1)  # no records
)
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
            _ask(client, ApiKey.METADATA, METADATA_VERSION, INT32.pack(0))  # An empty list: no topic at all.
            answer = _ask(client, ApiKey.PRODUCE, _PRODUCE_VERSION, _PRODUCE_NOTHING)
    except ClientError as error:
        return str(error)
    at = INT32.size + len(encode_string(_NO_TOPIC)) + INT32.size + INT32.size
    if len(answer) < at + INT16.size:
        return f"a Produce to no topic was answered with {len(answer)} bytes"
    (code,) = INT16.unpack_from(answer, at)
    if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"a Produce to no topic was answered with error {code}"
    return None


def _ask(client: Client, api_key: ApiKey, version: int, body: bytes) -> bytes:
    """The body of the answer."""
    frame = encode_request_header(api_key, version, 0, client.client_id) + body
    client.send_bytes(INT32.pack(len(frame)) + frame)
    return client.receive_frame()[INT32.size :]


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
