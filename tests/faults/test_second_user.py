"""Another user of the same host sees the port and who runs; no record, memory or socket.

And what another user can make root's commands believe: nothing that they did not check.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kproc import Broker
from kproc.broker.supervisor.status_window import WINDOW_PREFIX, request_status
from tests.support.broker import ServedBroker
from tests.support.command_line import call_kproc
from tests.support.raw import RawClient, address_of, batch
from tests.support.second_user import NOBODY, as_nobody
from tests.support.status import processes
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else"),
]
OF_PROC = ("environ", "maps", "mem", "io", "stack", "auxv", "root", "cwd", "exe")


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
    assert request_status(f"{WINDOW_PREFIX}{served.pid}", timeout_ms=10_000) is not None
    assert as_nobody(lambda: request_status(f"{WINDOW_PREFIX}{served.pid}", timeout_ms=10_000)) is None


def test_data_directory_mode_is_0700_if_new_else_unchanged(
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

    def connect() -> bool:
        with socket.create_connection(address_of(served.bootstrap), timeout=PATIENCE_SECONDS):
            return True

    assert as_nobody(connect) is True


@contextlib.contextmanager
def nobody_runs(work: Callable[[Callable[[], None]], None]) -> Iterator[int]:
    """A process of another user that runs `work`, from when it calls its argument; yields its pid."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ours)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            work(lambda: os.close(theirs))
        finally:
            os._exit(1)
    os.close(theirs)
    try:
        with os.fdopen(ours, "rb") as file:
            file.read()
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def false_window(answer: bytes | None) -> Callable[[Callable[[], None]], None]:
    """Listen at a window's name and send `answer` in a sealed memfd; None: send an endless file."""

    def work(ready: Callable[[], None]) -> None:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listening.bind(f"\0{WINDOW_PREFIX}{os.getpid()}")
        listening.listen(64)
        ready()
        while True:
            asker, _ = listening.accept()
            descriptor = os.open("/dev/zero", os.O_RDONLY)
            if answer is not None:
                descriptor = os.memfd_create("status", os.MFD_ALLOW_SEALING)
                os.write(descriptor, answer)
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, 15)
            with contextlib.suppress(OSError):
                socket.send_fds(asker, [b"status"], [descriptor])
            os.close(descriptor)
            asker.close()

    return work


def false_broker(port: int, target: tuple[str, int]) -> Callable[[Callable[[], None]], None]:
    """Answer at a port with what another broker says of itself."""

    def copy(source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(65536):
            sink.sendall(data)

    def work(ready: Callable[[], None]) -> None:
        listening = socket.create_server(("127.0.0.1", port))
        ready()
        while True:
            client, _ = listening.accept()
            broker = socket.create_connection(target)
            for pair in ((client, broker), (broker, client)):
                threading.Thread(target=copy, args=pair, daemon=True).start()

    return work


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def log_of(archive: Path) -> dict[str, str]:
    """The files of an archive of `kproc doctor`, by their last name."""
    with tarfile.open(archive) as opened:
        members = {member.name.partition("/")[2]: opened.extractfile(member) for member in opened}
        return {name: file.read().decode() for name, file in members.items() if file is not None}


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A directory that another user can enter and write."""
    directory = Path(tempfile.mkdtemp(prefix="second-user-"))
    os.chmod(directory, 0o777)
    yield directory
    shutil.rmtree(directory)


def test_second_users_live_status_window_is_not_trusted(
    served: ServedBroker, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The window answers for a port where nobody listens, with the status of a broker at another port."""
    port = free_port()
    host_and_port = f"127.0.0.1:{port}"
    true = call_kproc(capsys, "status", "-f", "json", "-b", served.bootstrap).stdout
    false = true.replace(served.bootstrap, host_and_port).encode()
    for answer in (false, None):
        with nobody_runs(false_window(answer)):
            status = call_kproc(capsys, "status", "-b", host_and_port)
            assert (status.returncode, status.stdout) == (1, "")
            stop = call_kproc(capsys, "stop", "-b", host_and_port)
            assert (stop.returncode, stop.stdout) == (1, "")
            archive = shared / "a.tar.gz"
            call_kproc(capsys, "doctor", "-b", host_and_port, "--output", str(archive))
            assert log_of(archive).keys() == {"versions.txt", "left_out.txt"}
    assert processes(served.bootstrap), "the other broker serves on"


def test_second_users_port_is_not_trusted(
    served: ServedBroker, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another user forwards a port to a broker of root: its status is true, but is not of the process at that port."""
    port = free_port()
    host, _, served_port = served.bootstrap.rpartition(":")
    with nobody_runs(false_broker(port, (host, int(served_port)))):
        stop = call_kproc(capsys, "stop", "-b", f"127.0.0.1:{port}")
        assert stop.returncode == 1
        assert f"does not listen at 127.0.0.1:{port}" in stop.stderr
        archive = shared / "a.tar.gz"
        call_kproc(capsys, "doctor", "-b", f"127.0.0.1:{port}", "--output", str(archive))
        assert log_of(archive).keys() == {"versions.txt", "status.json", "settings.json", "left_out.txt"}
    assert processes(served.bootstrap), "the broker serves on"


def test_second_users_ready_file_stops_nothing_of_root(
    served: ServedBroker, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ready_file = shared / "ready.json"
    ready_file.write_text(json.dumps({"pid": served.pid, "data": served.data}))
    os.chown(ready_file, NOBODY, NOBODY)
    stop = call_kproc(capsys, "stop", "--ready-file", str(ready_file))
    assert (stop.returncode, "belongs to another user" in stop.stderr) == (1, True)
    ready_file.unlink()
    os.mkfifo(ready_file)
    stop = call_kproc(capsys, "stop", "--ready-file", str(ready_file))
    assert (stop.returncode, "is not the ready file" in stop.stderr) == (1, True)
    link = shared / "link.json"
    link.symlink_to(ready_file)
    stop = call_kproc(capsys, "stop", "--ready-file", str(link))
    assert (stop.returncode, "is a symbolic link" in stop.stderr) == (1, True)
    assert processes(served.bootstrap), "the broker serves on"


def test_doctor_reads_log_by_descriptor_not_by_name(
    shared: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The log has been deleted, and its name, as the kernel shows it, now leads to a file of root's."""
    secret = tmp_path / "root-only"
    secret.write_text("a file of root's\n")
    with ServedBroker(tmp_path / "data") as broker:
        log = broker._log
        log.unlink()
        log.with_name("log (deleted)").symlink_to(secret)
        archive = shared / "a.tar.gz"
        told = call_kproc(capsys, "doctor", "-b", broker.bootstrap, "--output", str(archive))
        log.touch()  # The rig reads it at the end.
        assert told.returncode == 0
    found = log_of(archive)
    assert "a file of root's" not in found["log.txt"]
    assert "ready: listeners=" in found["log.txt"]
