"""sd_notify, spoken to a real datagram socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproc.broker.supervisor.service_manager import ServiceManager
from kproc.common.clock import ManualClock


class Receiver:
    """Systemd's end."""

    def __init__(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self.sock.setblocking(False)
        self.address = address

    def received(self) -> list[str]:
        answer = []
        while True:
            try:
                answer.append(self.sock.recv(4096).decode())
            except BlockingIOError:
                return answer


@pytest.fixture(params=["path", "abstract"])
def receiver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Receiver]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@kproc-test-{os.getpid()}"
    receiver = Receiver(address)
    yield receiver
    receiver.sock.close()


def test_service_manager_gets_states_in_order(receiver: Receiver) -> None:
    manager = ServiceManager.of_environment({"NOTIFY_SOCKET": receiver.address})
    manager.ready("serving\nat x")
    manager.stopping("stopping")
    manager.close()
    assert receiver.received() == ["READY=1\nSTATUS=serving at x", "STOPPING=1\nSTATUS=stopping"]


def test_a_reload_is_told_from_its_beginning_to_its_end(receiver: Receiver) -> None:
    clock = ManualClock()
    manager = ServiceManager(receiver.address, clock=clock)
    manager.ready("serving at x")
    receiver.received()
    manager.reloading()
    manager.reloaded("cannot read\nthe file")
    manager.reloaded()
    manager.close()
    assert receiver.received() == [
        f"RELOADING=1\nMONOTONIC_USEC={clock.now_ns() // 1000}",
        "READY=1\nSTATUS=serving at x; the last reload failed: cannot read the file",
        "READY=1\nSTATUS=serving at x",
    ]


def test_watchdog_is_fed_thrice_unless_role_is_silent(receiver: Receiver) -> None:
    clock = ManualClock()
    manager = ServiceManager(receiver.address, 3_000_000_000, clock=clock)
    manager.feed(lambda _: None)
    assert receiver.received() == [], "nobody expects it before it is ready"
    manager.ready("x")
    receiver.received()
    silent: list[str | None] = [None]
    asked: list[int] = []

    def look(limit_ns: int) -> str | None:
        asked.append(limit_ns)
        return silent[0]

    manager.feed(look)
    manager.feed(look)
    assert receiver.received() == ["WATCHDOG=1"]
    assert asked == [3_000_000_000]
    assert manager.timeout_ms(60_000) == 1001
    clock.advance_ms(1000)
    manager.feed(look)
    assert receiver.received() == ["WATCHDOG=1"]
    silent[0] = "handler-0"
    clock.advance_ms(1000)
    manager.feed(look)
    assert receiver.received() == ["STATUS=handler-0 made no duty cycle for 3 s"]
    silent[0] = None
    clock.advance_ms(1000)
    manager.feed(look)
    assert receiver.received() == ["WATCHDOG=1", "STATUS=x"]
    manager.close()


def test_watchdog_of_another_process_is_ignored(receiver: Receiver) -> None:
    environment = {"NOTIFY_SOCKET": receiver.address, "WATCHDOG_USEC": "1000000"}
    for pid, expected in ((os.getpid(), 1_000_000_000), (1, 0)):
        manager = ServiceManager.of_environment({**environment, "WATCHDOG_PID": str(pid)})
        manager.ready("x")
        assert manager.watchdog_ns == expected
        manager.close()


@pytest.mark.parametrize("usec", ["9" * 5000, "9" * 16, "-5", "soon", ""])
def test_watchdog_without_usable_time_is_ignored(receiver: Receiver, usec: str) -> None:
    environment = {"NOTIFY_SOCKET": receiver.address, "WATCHDOG_USEC": usec}
    manager = ServiceManager.of_environment(environment)
    manager.ready("x")
    assert manager.watchdog_ns == 0
    manager.close()


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": "vsock:2:1234"}, {"WATCHDOG_USEC": "1000000"}])
def test_service_manager_without_address_does_nothing(environment: dict[str, str]) -> None:
    manager = ServiceManager.of_environment(environment)
    manager.ready("x")
    assert manager.watchdog_ns == 0
    assert manager.timeout_ms(7) == 7


def test_manager_that_is_gone_is_complained_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = ServiceManager(str(tmp_path / "nobody"))
    manager.ready("x")
    manager.stopping("x")
    manager.close()
    assert len(caplog.records) == 1
