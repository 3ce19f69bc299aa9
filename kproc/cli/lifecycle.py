"""`kproc ping` checks that a broker responds. `kproc stop` stops a broker of this host."""

from __future__ import annotations

import errno
import os
import signal
import stat
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    INT_MAX,
    SECONDS_MAX,
    Bootstrap,
    Format,
    OutputFormat,
    print_json,
)
from kproc.cli.connection import connect
from kproc.cli.consent import DryRun
from kproc.cli.failure import Failure
from kproc.cli.lines import print_line

if TYPE_CHECKING:
    from kproc.broker.supervisor.broker_process import VerifiedBroker

# Limit of a ready file's size. The file has about 50 bytes for each process.
_READY_BYTES_MAX: Final = 1 << 20


def ping(
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="S",
            min=0.001,
            max=SECONDS_MAX,
            help="Seconds to wait for the answer.",
        ),
    ] = 5.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Check that a broker or its control listener answers, and print the time. Exit code 1 if it does not."""
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
            print_line(
                f"{client.address} answers in {times['answer_ms']} ms, connected in {times['connect_ms']} ms"
            )


ReadyFile = Annotated[
    Path | None,
    typer.Option("--ready-file", metavar="FILE", help="The broker's ready file."),
]
Pid = Annotated[
    int | None,
    typer.Option("--pid", metavar="PID", min=2, max=INT_MAX, help="The broker's process id."),
]
StopTimeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="S",
        min=0,
        max=SECONDS_MAX,
        help="Seconds to wait for its end.",
    ),
]


def stop(
    ready_file: ReadyFile = None,
    pid: Pid = None,
    timeout: StopTimeout = 60.0,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Stop a broker of this host gracefully and wait for its end. Exit code 1 if there is none or it does not end.

    Name it by its ready file, its pid, or an address (--bootstrap), which can be its control listener.
    """
    from kproc.broker.supervisor.broker_process import NotABroker, VerifiedBroker

    try:
        if pid is not None:
            process = VerifiedBroker(pid)
        elif ready_file is not None:
            process = _process_in(ready_file)
        else:
            process = _process_at(bootstrap)
        with process:
            if dry_run:
                print_line(f"would stop: pid {process.pid}")
                return
            process.signal(signal.SIGTERM)
            if not process.wait(timeout):
                raise Failure(
                    f"process {process.pid} has not ended {timeout:.15g} s after SIGTERM; it may still be stopping"
                )
    except NotABroker as error:
        raise Failure(str(error)) from None
    print_line(f"stopped: pid {process.pid}")


def _process_in(ready_file: Path) -> VerifiedBroker:
    """Open the broker that wrote a ready file. Root, this user or the broker's user must own the file."""
    import orjson

    from kproc.broker.supervisor.broker_process import NotABroker, ProcessClaim, VerifiedBroker

    try:
        # O_NOFOLLOW: the file decides which process gets SIGTERM, and another user could create a link in /tmp to a
        # file of ours. O_NONBLOCK: opening a FIFO would wait for a writer for ever.
        descriptor = os.open(ready_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Failure(f"{ready_file} does not exist: the broker is not ready or has ended") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Failure(f"{ready_file} is a symbolic link; give the file itself") from None
        raise
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _READY_BYTES_MAX:
            raise Failure(f"{ready_file} is not the ready file of a broker")
        content = os.read(descriptor, _READY_BYTES_MAX)
    finally:
        os.close(descriptor)
    try:
        claim = ProcessClaim.from_json(orjson.loads(content))
    except (orjson.JSONDecodeError, NotABroker):
        raise Failure(f"{ready_file} is not the ready file of a broker") from None
    with ExitStack() as stack:
        process = stack.enter_context(VerifiedBroker(claim.pid))
        # Reject a file of an unrelated user: it can contain any pid, and that user would choose which process root
        # stops.
        if facts.st_uid not in (0, os.geteuid(), process.uid):
            raise Failure(
                f"{ready_file} names process {process.pid}, but belongs to another user than the process"
            )
        process.require(claim)
        stack.pop_all()
    return process


def _process_at(bootstrap: str) -> VerifiedBroker:
    """Open the supervisor of the broker at an address, or its only process if roles are threads."""
    from kproc.cli.status_source import StatusSource

    with StatusSource(bootstrap) as source:
        status = source.request_status()
        return source.open_process(status)
