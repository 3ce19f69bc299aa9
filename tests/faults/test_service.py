"""As a service: what systemd hears of a real broker over its socket."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import ServedBroker, run_kproc
from tests.support.status import processes
from tests.support.wait import PATIENCE_SECONDS, stretched, wait_until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.own_broker,
    pytest.mark.transports("process", "thread"),
]

WATCHDOG_S = 3


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The end of the service manager; the broker that the test starts inherits its address."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(PATIENCE_SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", str(WATCHDOG_S * 1_000_000))
        yield sock


def heard(manager: socket.socket) -> list[str]:
    """What has come and waits."""
    answer = []
    manager.setblocking(False)
    try:
        while True:
            answer.append(manager.recv(4096).decode())
    except BlockingIOError:
        manager.settimeout(PATIENCE_SECONDS)
        return answer


def test_systemd_ready_watchdog_and_stopping_are_notified(
    tmp_path: Path, transport: str, manager: socket.socket
) -> None:
    with ServedBroker(tmp_path / "data", transport=transport) as broker:
        assert manager.recv(4096).decode() == f"READY=1\nSTATUS=serving at {broker.bootstrap}"
        for _ in range(3):
            assert manager.recv(4096) == b"WATCHDOG=1"
        assert broker.stop() == 0
    told = heard(manager)
    assert [each for each in told if each != "WATCHDOG=1"] == ["STOPPING=1\nSTATUS=stopping"]


@pytest.mark.transports("process")
def test_systemd_reload_is_notified(tmp_path: Path, transport: str, manager: socket.socket) -> None:
    file = tmp_path / "server.properties"
    file.write_text("message.max.bytes=1000000\n")
    with ServedBroker(tmp_path / "data", transport=transport, arguments=["--config", str(file)]) as broker:
        file.write_text("message.max.bytes=2000000\n")
        broker.send_signal(signal.SIGHUP)
        told: list[str] = []
        while len(told) < 3:
            message = manager.recv(4096).decode()
            told += [message.split("\n")[0]] if message != "WATCHDOG=1" else []
        assert told == ["READY=1", "RELOADING=1", "READY=1"]
        wait_until(lambda: "applied: message.max.bytes=2000000" in broker.log(), what="the log says it, too")


@pytest.mark.transports("process")
def test_watchdog_is_not_fed_while_a_role_hangs(
    tmp_path: Path, transport: str, manager: socket.socket
) -> None:
    settings = {"kproc.hung.ms": stretched(600)}
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        pid = processes(broker.bootstrap)["handler", 0]
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(
                lambda: "sending no watchdog message to the service manager" in broker.log(), what="it hangs"
            )
            heard(manager)
            manager.settimeout(WATCHDOG_S)
            with pytest.raises(TimeoutError):
                manager.recv(4096)
        finally:
            os.kill(pid, signal.SIGCONT)
        manager.settimeout(PATIENCE_SECONDS)
        assert manager.recv(4096) == b"WATCHDOG=1"


@pytest.mark.transports("process")
def test_watchdog_with_stopped_cleaner_is_fed(
    tmp_path: Path, transport: str, manager: socket.socket
) -> None:
    """A log that the cleaner cannot read must not make systemd kill the broker, and again after each start."""
    settings = {"kproc.hung.ms": stretched(600)}
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        pid = processes(broker.bootstrap)["cleaner", 0]
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: f"cleaner-0 (pid {pid}) hangs" in broker.log(), what="it hangs")
            heard(manager)
            manager.settimeout(PATIENCE_SECONDS)
            for _ in range(4):  # The watchdog's whole time, and a third of it more.
                assert manager.recv(4096) == b"WATCHDOG=1"
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--set", "num.io.threads=many"], "num.io.threads"),
        (["--config", "/missing.toml"], "/missing.toml"),
        (["--no-such-option"], "No such option: --no-such-option"),
        (["--ready-file", "/missing/ready.json"], "the directory does not exist"),
    ],
)
@pytest.mark.transports("process")
def test_wrong_settings_notify_systemd_of_the_reason(
    manager: socket.socket, arguments: list[str], reason: str, tmp_path: Path
) -> None:
    """The unit's RestartPreventExitStatus has this exit code."""
    done = run_kproc("serve", "--data", str(tmp_path / "data"), *arguments)
    assert done.returncode == 2
    (told,) = heard(manager)
    assert told.startswith("STATUS=")
    assert reason in told


def test_failed_start_notifies_systemd_of_the_reason(tmp_path: Path, transport: str, manager: socket.socket) -> None:
    with ServedBroker(tmp_path / "data", transport=transport) as first:
        heard(manager)
        with pytest.raises(RuntimeError, match=str(first.port)):
            ServedBroker(tmp_path / "other", transport=transport, port=first.port).start()
        told = [each for each in heard(manager) if each.startswith("STATUS=")]
    assert len(told) == 1
    assert str(first.port) in told[0]
