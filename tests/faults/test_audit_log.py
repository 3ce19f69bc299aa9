"""Denied requests while no process reads the broker's log: the broker answers as before."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import READY_SECONDS, ROOT, STOP_SECONDS, serve_command
from tests.support.proc import living
from tests.support.raw import RawClient
from tests.support.wait import wait_until

pytestmark = pytest.mark.faults

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:somebody",
    "num.io.threads": 1,
}
REQUESTS = 1000  # The lines of a tenth of them are several times what the pipe holds.
LOST = b"log lines lost, standard error is read too slowly: "
DENIED = b"is Denied operation = DESCRIBE"


def test_blocked_stderr_reader_drops_log_lines_not_responses(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    command = serve_command(tmp_path / "data", settings=SETTINGS, ready_file=ready_file)
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4 * 4096)
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=writer) as broker:
        os.close(writer)
        try:
            ready = wait_until(
                lambda: json.loads(ready_file.read_text()) if ready_file.exists() else None,
                seconds=READY_SECONDS,
                what="the ready file",
            )

            def ask(count: int) -> None:
                with RawClient(ready["bootstrap"]) as client:
                    for _ in range(count):
                        answer = client.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"topics": None})
                        assert answer["error_code"] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED

            ask(REQUESTS)
            os.set_blocking(reader, False)
            seen = bytearray()

            def lost_lines_are_told() -> bool:
                ask(1)
                seen.extend(_read(reader))
                return LOST in seen and DENIED in seen

            wait_until(lost_lines_are_told, what="the count of the lines that were lost, and new lines")
            broker.send_signal(signal.SIGTERM)
            assert broker.wait(STOP_SECONDS) == 0
        finally:
            os.close(reader)
            broker.kill()
            if ready_file.exists():
                for pid in living(row["pid"] for row in json.loads(ready_file.read_text())["processes"]):
                    os.kill(pid, signal.SIGKILL)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 20)
    except BlockingIOError:
        return b""
