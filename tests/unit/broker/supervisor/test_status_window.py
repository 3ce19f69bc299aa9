"""The supervisor's status window: names that are bound already, and answers that are not a sealed JSON object."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.ipc.fdpass import send_fd
from kproc.broker.supervisor import status_window
from kproc.broker.supervisor.status_window import (
    WINDOW_PREFIX,
    Peer,
    StatusWindow,
    request_status,
    window_owner,
)
from kproc.cli.status_source import _windows
from tests.support.cases import in_one_test
from tests.support.wait import PATIENCE_SECONDS

ALL_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def memfd(content: bytes, seals: int = ALL_SEALS) -> int:
    descriptor = os.memfd_create("answer", os.MFD_ALLOW_SEALING)
    os.write(descriptor, content)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


@contextlib.contextmanager
def answering(name: str, answer: Callable[[], int]) -> Iterator[None]:
    """Listen at an abstract name and send one descriptor to the first process that connects."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"\0{name}")
        listening.listen()

        def run() -> None:
            asker, _ = listening.accept()
            descriptor = answer()
            with asker, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                send_fd(asker, b"status", descriptor)
            os.close(descriptor)

        thread = threading.Thread(target=run)
        thread.start()
        yield
        thread.join()


def test_look_in_reads_sealed_json_object() -> None:
    name = f"kproc-test-{os.getpid()}"
    with answering(name, lambda: memfd(b'{"a": 1}')):
        assert request_status(name, timeout_ms=10_000) == {"a": 1}


@in_one_test(
    "answer",
    [
        lambda: os.open("/dev/zero", os.O_RDONLY),
        lambda: memfd(b'{"a": 1}', 0),
        lambda: memfd(b'{"a": 1}', ALL_SEALS & ~fcntl.F_SEAL_WRITE),
        lambda: memfd(b"[1]"),
        lambda: memfd(b"no JSON"),
        lambda: memfd(b""),
    ],
)
def test_look_in_rejects_anything_but_sealed_json(answer: Callable[[], int]) -> None:
    name = f"kproc-test-{os.getpid()}"
    with answering(name, answer):
        assert request_status(name, timeout_ms=10_000) is None


def test_look_in_rejects_file_on_disk(tmp_path: Path) -> None:
    """A file can change, or grow, while it is read."""
    name = f"kproc-test-{os.getpid()}"
    (tmp_path / "answer").write_bytes(b'{"a": 1}')
    with answering(name, lambda: os.open(tmp_path / "answer", os.O_RDONLY)):
        assert request_status(name, timeout_ms=10_000) is None


def test_look_in_rejects_answer_above_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_window, "ANSWER_BYTES_MAX", 8)
    name = f"kproc-test-{os.getpid()}"
    with answering(name, lambda: memfd(b'{"a": 12}')):
        assert request_status(name, timeout_ms=10_000) is None


def test_window_whose_name_is_bound_already_still_opens() -> None:
    """Any user can bind the names of the pids to come. A broker must start nevertheless, and be found."""
    status: dict[str, Any] = {"up": True}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as squatter:
        squatter.bind(f"\0{WINDOW_PREFIX}{os.getpid()}")
        window = StatusWindow(lambda: status)
        try:
            names = [name for name, pid in _windows(WINDOW_PREFIX) if pid == os.getpid()]
            [ours] = [name for name in names if window_owner(name) is not None]
            assert window_owner(ours) == Peer(os.getpid(), os.geteuid())
            window.respond()  # The connection of window_owner, which has been closed.
            window.respond()
            thread = threading.Thread(target=lambda: found.append(request_status(ours, timeout_ms=10_000)))
            found: list[dict[str, Any] | None] = []
            thread.start()
            while thread.is_alive():
                window.respond()
            assert found == [status]
        finally:
            window.close()


def test_windows_with_malformed_names_are_not_listed() -> None:
    names = [
        f"{WINDOW_PREFIX}../../tmp/x",
        f"{WINDOW_PREFIX}",
        f"{WINDOW_PREFIX}1 x",
        f"{WINDOW_PREFIX}{10**11}",
    ]
    with contextlib.ExitStack() as stack:
        for name in names:
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            sock.bind(f"\0{name}")
            sock.listen()
        listed = {name for name, _ in _windows(WINDOW_PREFIX)}
    assert not listed & set(names)


def test_look_in_waits_for_place_in_full_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user can fill the backlog of a window; the supervisor drops those connections."""
    name = f"kproc-test-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listening.bind(f"\0{name}")
        listening.listen(0)
        stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)).connect(f"\0{name}")
        found: list[Any] = []
        has_waited = threading.Event()
        true_select = select.select

        def wait(*arguments: Any) -> Any:
            has_waited.set()
            return true_select(*arguments)

        monkeypatch.setattr("kproc.broker.supervisor.status_window.select.select", wait)
        thread = threading.Thread(target=lambda: found.append(request_status(name, timeout_ms=30_000)))
        thread.start()
        assert has_waited.wait(PATIENCE_SECONDS), found
        descriptor = memfd(b'{"a": 1}')
        while thread.is_alive():
            asker, _ = listening.accept()
            with asker, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                send_fd(asker, b"status", descriptor)
            thread.join(0.1)
        os.close(descriptor)
        assert found == [{"a": 1}]


def test_look_in_full_backlog_ends_in_time() -> None:
    name = f"kproc-test-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listening.bind(f"\0{name}")
        listening.listen(0)
        stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)).connect(f"\0{name}")
        assert request_status(name, timeout_ms=50) is None
