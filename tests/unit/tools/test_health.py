"""The health check of containers: what it prints, its exit codes, and that it imports next to nothing."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kproc.tools import health
from tests.support.cases import in_one_test
from tests.support.wait import PATIENCE_SECONDS

READY = b'HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{"status":"ok"}\n'
ILL = b'HTTP/1.1 503 Service Unavailable\r\n\r\n{"status":"not well"}\n'


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A listener that answers one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def respond() -> None:
            sock, _ = listening.accept()
            with sock:
                assert sock.recv(4096).startswith(b"GET /health/ready HTTP/1.1\r\n")
                sock.sendall(answer)

        thread = threading.Thread(target=respond, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(5)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (READY, (True, '{"status":"ok"}')),
        (ILL, (False, '{"status":"not well"}')),
        (b"", (False, "the answer is empty")),
        (b"SSH-2.0 HTTP/1.1 200 \r\n\r\nx", (False, "x")),
    ],
)
def test_answer_of_metrics_listener_decides(answer: bytes, found: tuple[bool, str]) -> None:
    with answering(answer) as address:
        assert health.check(address) == found


def test_listener_that_is_absent_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    is_ready, line = health.check(address)
    assert not is_ready
    assert line.startswith(f"{address} does not answer (")


@in_one_test(
    "address",
    ["9404", ":9404", "localhost:", "localhost:http", "localhost:99999", f"127.0.0.1:{'9' * 5000}"],
)
def test_address_that_is_none_is_not_ready(address: str) -> None:
    is_ready, line = health.check(address)
    assert not is_ready
    assert line.startswith(f"{address}")


def test_script_of_the_image_imports_no_more_than_sockets() -> None:
    """It runs every few seconds, so its cost is counted in imports."""
    with answering(READY.replace(b"ok", b"\x1b[31m")) as address:
        command = [sys.executable, "-I", "-S", "-X", "importtime", health.__file__, address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stdout) == (0, '{"status":"\\x1b[31m"}\n')
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "socket" in imported
    assert not imported & {"typing", "re", "argparse", "kproc", "encodings.idna", "runpy"}
    assert len(imported) < 45
    assert Path(health.__file__).stat().st_size < 4096
