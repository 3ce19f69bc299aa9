"""Readiness: the check of a started broker with two real requests, the ready file, and the limit on descriptors."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from kproc.broker.role.plan import BrokerPlan
from kproc.common.errors import ErrorCode
from kproc.common.sessions import start_ticks
from kproc.wire.header import ApiKey, encode_request_header
from kproc.wire.primitives import INT16, INT32, encode_string

# An illegal topic name, so that the topic cannot exist and auto-creation cannot create it.
_NO_TOPIC: Final = "kproc readiness/probe"
# The probe's two requests are encoded by hand, because loading their schemas takes longer than both round trips.
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


class Probe:
    """Sends Metadata and a Produce without records to a Processor, over a socket pair.

    The connection bypasses the listeners, so that neither limits on clients nor many clients can keep the broker from
    getting ready. The caller polls `is_done` between other work.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._received = bytearray()
        # The reason why the check failed, or None.
        self.problem: str | None = None
        metadata = INT32.pack(0)  # An empty list: no topic at all.
        asked = (
            (ApiKey.METADATA, METADATA_VERSION, metadata),
            (ApiKey.PRODUCE, _PRODUCE_VERSION, _PRODUCE_NOTHING),
        )
        for api_key, version, body in asked:
            frame = encode_request_header(api_key, version, 0, "kproc") + body
            try:
                sock.sendall(INT32.pack(len(frame)) + frame)
            # EPIPE or ECONNRESET: the Processor died during the start, so the kernel has closed its end of the socket
            # pair.
            except OSError as error:
                self.problem = str(error)
        sock.setblocking(False)

    def fileno(self) -> int:
        return self._sock.fileno()

    def is_done(self) -> bool:
        """Read the bytes that have arrived. Return True when both responses are complete or `problem` is set."""
        while self.problem is None:
            try:
                piece = self._sock.recv(4096)
            except BlockingIOError:
                break
            # ECONNRESET: the Processor died before it had read our requests. Otherwise recv() reports end of file.
            except OSError as error:
                self.problem = str(error)
                break
            if not piece:
                self.problem = "it closed the connection"
            self._received += piece
        frames = list(self._frames())
        if len(frames) == 2 and self.problem is None:
            self.problem = _problem_with(frames[1][INT32.size :])
        return self.problem is not None or len(frames) == 2

    def close(self) -> None:
        self._sock.close()

    def _frames(self) -> Iterator[bytes]:
        start = 0
        while start + INT32.size <= len(self._received):
            end = start + INT32.size + INT32.unpack_from(self._received, start)[0]
            if end > len(self._received):
                return
            yield bytes(self._received[start + INT32.size : end])
            start = end


def _problem_with(answer: bytes) -> str | None:
    """Validate the response to the Produce of _NO_TOPIC. Return the problem, or None."""
    at = INT32.size + len(encode_string(_NO_TOPIC)) + INT32.size + INT32.size
    if len(answer) < at + INT16.size:
        return f"a Produce to no topic was answered with {len(answer)} bytes"
    (code,) = INT16.unpack_from(answer, at)
    if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"a Produce to no topic was answered with error {code}"
    return None


def describe(plan: BrokerPlan, processes: Sequence[dict[str, Any]], restores: int = 0) -> dict[str, Any]:
    """Return the content of the ready file. `restores` is the number of restores of snapshots so far."""
    control = {"control": plan.control.bound} if plan.control is not None else {}
    metrics = {"metrics": plan.metrics.bound} if plan.metrics is not None else {}
    return {
        "bootstrap": plan.endpoints[0].advertised,
        "pid": os.getpid(),
        "start_ticks": start_ticks(os.getpid()),
        "processes": [{key: row[key] for key in ("role", "index", "pid", "pool")} for row in processes],
        "data": str(Path(plan.config.log_dirs).absolute()),
        "restores": restores,
        "listeners": {e.name: {"bound": e.bound, "advertised": e.advertised} for e in plan.endpoints},
        **control,
        **metrics,
    }


def write(path: Path, announcement: dict[str, Any]) -> None:
    """Write the ready file atomically, so that a reader never finds a part of it.

    The temporary file is new and has a random name, because the directory may be /tmp: under a predictable name another
    user could create a link to one of our files. The file is not synced, because after a power loss no broker is ready.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    with open(part, "xb") as file:
        try:
            file.write(orjson.dumps(announcement))
            file.flush()
            # rename(2) replaces an old ready file in one step, so that a reader finds the whole old or the
            # whole new one.
            part.rename(path)
        except OSError:
            part.unlink()
            raise


def remove(path: Path | None) -> None:
    """Remove the ready file, because the broker has stopped. `path` is None if there is no ready file."""
    if path is not None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def raise_nofile_limit() -> None:
    """Raise the soft limit of descriptors to the hard one, because connections, segments and links need them."""
    # The soft limit is often 1,024 for the sake of select(2). A process may raise it up to the hard limit
    # without privileges (getrlimit(2)).
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _NOFILE_WANTED if hard == resource.RLIM_INFINITY else min(hard, _NOFILE_WANTED)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
