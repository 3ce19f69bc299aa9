"""`kproc ping` and `kproc stop`: is a broker there, and the end of one on this host."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from kproc.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, Format, OutputFormat, connect, print_json
from kproc.cli.failure import Failure


def ping(
    timeout: Annotated[
        float, typer.Option("--timeout", "-t", metavar="S", min=0.001, help="Seconds to wait at most.")
    ] = 5.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Ask a broker, or its control listener, for its API versions: exit code 0 and the time it took, or 1."""
    began = time.perf_counter()
    with connect(bootstrap, timeout_ms=max(1, int(timeout * 1000))) as client:
        connected = time.perf_counter()
        client.api_versions()
        answered = time.perf_counter()
        times = {
            "connect_ms": round(1000 * (connected - began), 2),
            "answer_ms": round(1000 * (answered - connected), 2),
        }
        if output is Format.JSON:
            print_json({"address": client.address, **times})
        else:
            sys.stdout.write(
                f"{client.address} answers in {times['answer_ms']} ms, connected in {times['connect_ms']} ms\n"
            )


def stop(
    ready_file: Annotated[
        Path | None,
        typer.Option("--ready-file", "-r", metavar="FILE", help="What the broker wrote at its start."),
    ] = None,
    pid: Annotated[
        int | None, typer.Option("--pid", "-p", metavar="PID", min=2, help="Its process, if you know.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", "-t", metavar="S", min=0, help="Seconds to wait for its end.")
    ] = 60.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Stop a broker of this host in order, and wait: exit code 0 when it has ended, 1 if there is none or it goes on.

    It is found by its ready file, its pid, or by asking it at --bootstrap, which may be its control listener.
    """
    if pid is None:
        pid = _pid_in(ready_file) if ready_file is not None else _pid_at(bootstrap)
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        raise Failure(f"there is no process {pid}: the broker has ended already") from None
    try:
        if not _is_broker(pid):
            raise Failure(f"process {pid} is no kproc broker")
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        if not select.select([handle], [], [], timeout)[0]:
            raise Failure(
                f"process {pid} has not ended {timeout:g} s after SIGTERM; it may still be stopping"
            )
    finally:
        os.close(handle)
    sys.stdout.write(f"stopped: pid {pid}\n")


def _pid_in(ready_file: Path) -> int:
    import orjson

    try:
        announcement: dict[str, Any] = orjson.loads(ready_file.read_bytes())
        return int(announcement["pid"])
    except FileNotFoundError:
        raise Failure(f"{ready_file} is not there: the broker is not ready, or has ended") from None
    except (ValueError, KeyError, TypeError):
        raise Failure(f"{ready_file} is no ready file of a broker") from None


def _pid_at(bootstrap: str) -> int:
    """Of the supervisor; of the one process where roles are threads."""
    from kproc.cli.status_source import StatusSource

    with StatusSource(bootstrap) as source:
        rows = source.ask()["processes"]
    return int(next((row["pid"] for row in rows if row["role"] == "supervisor"), rows[0]["pid"]))


def _is_broker(pid: int) -> bool:
    """A ready file may outlive its broker, and another process may have its number."""
    try:
        return b"kproc" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True  # It has ended meanwhile; the signal will tell.
