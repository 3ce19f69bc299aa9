"""What another user of the same host can read of a broker: the port, and who runs; no record, memory or socket."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kproc import Broker
from kproc.server.status_window import WINDOW_PREFIX, look_in
from tests.support.broker import ServedBroker
from tests.support.raw import RawClient, batch

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else"),
]
NOBODY = 65534
OF_PROC = ("environ", "maps", "mem", "io", "stack", "auxv", "root", "cwd", "exe")


def as_nobody(look: Callable[[], Any]) -> Any:
    """What a function finds in a process of another user; its answer as JSON."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(theirs, json.dumps(look()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(theirs)
    with os.fdopen(ours, "rb") as file:
        text = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return json.loads(text)


def readable(paths: list[str]) -> list[str]:
    """Those that can be opened or, as links, followed."""
    found = []
    for path in paths:
        try:
            if os.path.isdir(path):
                os.listdir(path)
            elif os.path.islink(path):
                os.readlink(path)
            else:
                with open(path, "rb") as file:
                    file.read(1)
        except OSError:
            continue
        found.append(path)
    return found


def files_under(directory: str) -> list[str]:
    return [directory] + [
        os.path.join(where, name)
        for where, directories, files in os.walk(directory)
        for name in (*directories, *files)
    ]


@pytest.fixture(params=["new", "made before, open to all"])
def served(request: pytest.FixtureRequest) -> Iterator[ServedBroker]:
    # Not pytest's own directory, which nobody else may enter.
    above = tempfile.mkdtemp(prefix="second-user-")
    os.chmod(above, 0o755)
    data = Path(above, "data")
    if request.param != "new":
        data.mkdir()
        data.chmod(0o755)
    try:
        with ServedBroker(data, settings={"kproc.request.log": "all"}) as broker:
            yield broker
    finally:
        shutil.rmtree(above)


def test_second_user_reads_no_segment_memory_or_socket(served: ServedBroker) -> None:
    with RawClient(served.bootstrap) as client:
        client.create_topic("private")
        client.produce("private", batch(b"s3cret-marker"))
    files = files_under(served.data)
    pids = [row["pid"] for row in served.processes]
    described = [f"/proc/{pid}/fd/{fd}" for pid in pids for fd in os.listdir(f"/proc/{pid}/fd")]
    told = [f"/proc/{pid}/{name}" for pid in pids for name in OF_PROC]
    assert any(path.endswith(".log") for path in files)
    assert any("memfd" in os.readlink(path) for path in described)
    closed = [path for path in files if path != served.data]
    assert as_nobody(lambda: [path for path in readable(closed) if not os.path.isdir(path)]) == []
    assert as_nobody(lambda: readable([*described, *told])) == []
    # The supervisor's window answers root and the broker's user alone; it has no file with a mode.
    assert look_in(f"{WINDOW_PREFIX}{served.pid}", timeout_ms=10_000) is not None
    assert as_nobody(lambda: look_in(f"{WINDOW_PREFIX}{served.pid}", timeout_ms=10_000)) is None


def test_new_data_directory_is_its_owners_alone_and_one_made_before_keeps_its_mode(
    served: ServedBroker, request: pytest.FixtureRequest
) -> None:
    is_new = "new" in request.node.callspec.id
    assert os.stat(served.data).st_mode & 0o777 == (0o700 if is_new else 0o755)
    others = [path for path in files_under(served.data)[1:] if os.stat(path).st_mode & 0o007]
    assert others == []


def test_second_user_reads_no_key_password_or_clients_file() -> None:
    with Broker(tls=True, users=["alice"]) as broker:
        security = broker.client_file().parent
        assert {path.suffix for path in security.iterdir()} == {".pem", ".properties"}
        files = [str(path) for path in (security, *security.iterdir(), broker.data)]
        assert as_nobody(lambda: readable(files)) == []
        # The directory above is pytest's, which nobody else enters either: the modes alone must do.
        assert [path for path in security.iterdir() if path.stat().st_mode & 0o077] == []
        pids = [int(row["pid"]) for row in broker.processes]
        keys = [f"/proc/{pid}/{name}" for pid in pids for name in OF_PROC]
        assert as_nobody(lambda: readable(keys)) == []


def test_second_user_can_still_be_a_client(served: ServedBroker) -> None:
    host, _, port = served.bootstrap.rpartition(":")

    def connect() -> bool:
        with socket.create_connection((host, int(port)), timeout=10):
            return True

    assert as_nobody(connect) is True
