"""The checks before `kproc stop` sends a signal: lock, directory, start time and address of the process."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from kproc.broker.storage.format import LOCK_FILE
from kproc.broker.supervisor.broker_process import NotABroker, ProcessClaim, VerifiedBroker, claim_in
from kproc.common.sessions import parent_pid, start_ticks
from tests.support.cases import in_one_test


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data directory that this process has locked, as a broker does."""
    directory = tmp_path / "data"
    directory.mkdir()
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield directory
    os.close(descriptor)


def test_broker_process_with_true_claim_opens(data: Path) -> None:
    with VerifiedBroker(os.getpid()) as process:
        assert process.data == data
        assert process.uid == os.geteuid()
        process.require(ProcessClaim(os.getpid(), start_ticks(os.getpid()), str(data)))
        assert os.path.samestat(os.fstat(process.directory), os.stat(data))


def test_broker_process_found_by_link_to_data_opens(data: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(data)
    with VerifiedBroker(os.getpid()) as process:
        process.require(ProcessClaim(os.getpid(), None, str(tmp_path / "link")))


def test_broker_process_without_lock_is_rejected() -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            with pytest.raises(NotABroker, match="is not a kproc broker"):
                VerifiedBroker(stranger.pid)
        finally:
            stranger.kill()
    with pytest.raises(NotABroker, match="has ended already"):
        VerifiedBroker(stranger.pid)


def test_broker_process_with_open_unlocked_file_is_rejected(tmp_path: Path) -> None:
    """A process that only reads the lock file is not the broker."""
    with open(tmp_path / LOCK_FILE, "wb"), pytest.raises(NotABroker, match="is not a kproc broker"):
        VerifiedBroker(os.getpid())


def test_broker_process_with_renamed_lock_is_rejected(data: Path) -> None:
    (data / LOCK_FILE).rename(data / "old")
    (data / LOCK_FILE).touch()
    with pytest.raises(NotABroker, match="is not a kproc broker"):
        VerifiedBroker(os.getpid())


def test_broker_process_with_reused_pid_is_rejected(data: Path) -> None:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    with VerifiedBroker(os.getpid()) as process, pytest.raises(NotABroker, match="belongs to another process now"):
        process.require(ProcessClaim(os.getpid(), ticks - 1, str(data)))


def test_broker_process_of_other_directory_is_rejected(data: Path, tmp_path: Path) -> None:
    with VerifiedBroker(os.getpid()) as process:
        for other in (tmp_path, tmp_path / "missing"):
            with pytest.raises(NotABroker, match="is another broker"):
                process.require(ProcessClaim(os.getpid(), None, str(other)))


@pytest.mark.parametrize(
    ("bound", "asked", "listens"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("127.0.0.2", "127.0.0.1", False),
        ("::", "127.0.0.1", True),
        ("::", "::1", True),
        ("::1", "::1", True),
        ("::1", "127.0.0.1", False),
    ],
)
def test_broker_process_listens_at_exact_address(data: Path, bound: str, asked: str, listens: bool) -> None:
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    with (
        socket.create_server((bound, 0), family=family, dualstack_ipv6=bound == "::") as server,
        VerifiedBroker(os.getpid()) as process,
    ):
        port = server.getsockname()[1]
        if listens:
            process.require_listens_at(asked, port)
        else:
            with pytest.raises(NotABroker, match="does not listen at"):
                process.require_listens_at(asked, port)


def test_broker_process_is_parent_of_its_children_only(data: Path) -> None:
    with VerifiedBroker(os.getpid()) as process, subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert process.is_parent_of(child.pid)
            assert process.is_parent_of(os.getpid())
            parent = parent_pid(os.getpid())
            assert parent is not None
            assert not process.is_parent_of(parent)
        finally:
            child.kill()


@in_one_test(
    "status",
    [
        {},
        {"processes": []},
        {"processes": [1]},
        {"processes": [{"role": "supervisor"}]},
        {"processes": [{"role": "supervisor", "pid": "1"}]},
        {"processes": [{"role": "supervisor", "pid": 1, "start_ticks": "x"}]},
        {"processes": [{"role": "supervisor", "pid": 1}], "data": 5},
    ],
)
def test_claim_in_malformed_status_is_rejected(status: dict[str, object]) -> None:
    with pytest.raises(NotABroker):
        claim_in(status)


NOBODY = 65534
PR_SET_DUMPABLE = 4  # Of prctl.


@contextmanager
def process_of_nobody(work: Callable[[], None]) -> Iterator[int]:
    """A process of another user that has done `work` and waits; yields its pid."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            work()
            os.write(theirs, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(theirs)
    try:
        with os.fdopen(ours, "rb") as file:
            assert file.read(1), "the process has failed"
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_broker_process_opens_own_log(data: Path, tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as log, VerifiedBroker(os.getpid()) as process:
        log.write(b"a line")
        log.flush()
        with open(process.open_file(log.fileno()), "rb") as file:
            assert file.read() == b"a line"
        read, write = os.pipe()
        with pytest.raises(NotABroker, match="is not a regular file"):
            process.open_file(write)
        os.close(read)
        os.close(write)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_broker_process_with_file_of_root_is_rejected() -> None:
    """O_PATH needs no right to read: any process can have any file as its standard error."""
    with TemporaryDirectory() as above:
        os.chmod(above, 0o755)
        secret, directory = Path(above, "root-only"), Path(above, "data")
        secret.touch(0o600)
        directory.mkdir()
        os.chown(directory, NOBODY, NOBODY)

        def work() -> None:
            os.dup2(os.open(secret, os.O_PATH), 2)
            lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT)
            fcntl.flock(lock, fcntl.LOCK_EX)
            # /proc/PID then belongs to root, as if the process did.
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)

        with process_of_nobody(work) as pid, VerifiedBroker(pid) as process:
            assert process.uid == NOBODY
            with pytest.raises(NotABroker, match="belongs to another user"):
                process.open_file(2)


def test_data_directory_replaced_by_link_is_rejected(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user puts a link to a directory of root's there, right before it is opened."""
    private = tmp_path / "private"
    private.mkdir()
    true_open = os.open

    def replace_and_open(path: Any, *arguments: Any, **options: Any) -> int:
        if Path(path).name == data.name:
            data.rename(tmp_path / "moved")
            data.symlink_to(private)
        return true_open(path, *arguments, **options)

    monkeypatch.setattr("kproc.broker.supervisor.broker_process.os.open", replace_and_open)
    with pytest.raises(NotABroker, match="is not a kproc broker"):
        VerifiedBroker(os.getpid())
    assert data.is_symlink(), "the attack has taken place"
