"""The leak guard blames a lost socket on the test or module that has lost it, also without the guard's other checks."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.leak_guard import lost_sockets_collected
from tests.support.wait import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
import socket

import pytest


def lose_socket():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        cycle = [socket.create_connection(listening.getsockname())]
    cycle.append(cycle)


@pytest.fixture(scope="module")
def careless():
    yield
    lose_socket()


@pytest.mark.no_leak_guard
def test_loses():
    lose_socket()


def test_is_innocent():
    pass


def test_uses_careless_fixture(careless):
    pass
"""


@pytest.mark.long
def test_lost_sockets_are_blamed_on_their_test_and_module(tmp_path: Path) -> None:
    """The collector runs in neither of them by itself."""
    file = tmp_path / "tests" / "here" / "test_it.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command += ["-c", str(tmp_path / "pytest.ini"), "--rootdir", str(tmp_path), str(file)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.stdout.splitlines()[-1].startswith("3 passed, 2 errors"), done.stdout + done.stderr
    blamed = [line.split("::")[1].split(" ")[0] for line in done.stdout.splitlines() if line.startswith("ERROR")]
    assert blamed == ["test_loses", "test_uses_careless_fixture"]
    assert "ResourceWarning: unclosed <socket.socket" in done.stdout


def test_socket_that_kafka_python_forgets_is_closed() -> None:
    """A client that is closed while a connection still has something to send cancels the task that would close it."""
    transport = pytest.importorskip("kafka.net.transport")
    with lost_sockets_collected():
        ours, peer = socket.socketpair()
        forgotten = transport.KafkaTCPTransport(SimpleNamespace(call_soon=lambda _task: None), ours)
        forgotten.write(b"unsent")
        forgotten.close()
        assert ours.fileno() != -1
    assert ours.fileno() == -1
    peer.close()
