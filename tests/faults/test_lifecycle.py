"""`kproc ping`, `kproc stop`, `kproc doctor`, and what a start says of a port that is taken; at real brokers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.broker import ServedBroker
from tests.support.broker_starts import start_kproc
from tests.support.command_line import call_kproc
from tests.support.raw import RawClient, batch
from tests.support.status import processes, rows
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.own_broker, pytest.mark.transports("process"), pytest.mark.usefixtures("fork_server")]

SECRET, RECORD = "planted-secret-4711", b"planted-record-4712"
Capture = pytest.CaptureFixture[str]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def test_ping_prints_latency_and_fails_without_broker(
    tmp_path: Path, transport: str, capsys: Capture
) -> None:
    settings = {"kproc.control.listener": "127.0.0.1:0"}
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        for address in (broker.bootstrap, broker.control):
            told = call_kproc(capsys, "ping", "-b", address)
            assert (told.returncode, told.stderr) == (0, "")
            assert told.stdout.startswith(f"{address} answers in ")
        row = json.loads(call_kproc(capsys, "ping", "-b", broker.bootstrap, "-f", "json").stdout)
        assert row["answer_ms"] > 0
    told = call_kproc(capsys, "ping", "-b", f"127.0.0.1:{free_port()}")
    assert (told.returncode, told.stdout) == (1, "")
    assert "refused" in told.stderr


def test_ping_times_out_on_server_that_never_responds(capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        told = call_kproc(capsys, "ping", "-b", address, "--timeout", "0.2")
    assert told.returncode == 1
    assert "no answer" in told.stderr


@pytest.mark.transports("process", "thread")
def test_stop_waits_for_clean_exit_and_second_stop_fails(
    tmp_path: Path, transport: str, capsys: Capture
) -> None:
    with ServedBroker(tmp_path / "data", transport=transport) as broker:
        told = call_kproc(capsys, "stop", "-b", broker.bootstrap)
        assert (told.returncode, told.stdout, told.stderr) == (0, f"stopped: pid {broker.pid}\n", "")
        assert broker.wait() == 0
        again = call_kproc(capsys, "stop", "-b", broker.bootstrap)
        assert again.returncode == 1


def test_stop_by_ready_file(tmp_path: Path, transport: str, capsys: Capture) -> None:
    ready_file = tmp_path / "ready.json"
    with ServedBroker(tmp_path / "data", transport=transport) as broker:
        ready_file.write_text(json.dumps({"pid": broker.pid}))
        assert call_kproc(capsys, "stop", "--ready-file", str(ready_file)).returncode == 0
        assert broker.wait() == 0
    told = call_kproc(capsys, "stop", "--ready-file", str(ready_file))
    assert told.returncode == 1
    ready_file.write_text("no JSON")
    assert call_kproc(capsys, "stop", "--ready-file", str(ready_file)).returncode == 1
    ready_file.unlink()
    assert "does not exist" in call_kproc(capsys, "stop", "--ready-file", str(ready_file)).stderr


def test_stop_ignores_reused_pid_of_stale_ready_file(
    tmp_path: Path, capsys: Capture
) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        (tmp_path / "ready.json").write_text(json.dumps({"pid": stranger.pid}))
        told = call_kproc(capsys, "stop", "--ready-file", str(tmp_path / "ready.json"))
        assert told.returncode == 1
        assert "is not a kproc broker" in told.stderr
        assert stranger.poll() is None
        stranger.kill()


@pytest.mark.parametrize("by", ["address", "ready file", "pid"])
def test_stop_of_broker_with_relative_data_directory(tmp_path: Path, capsys: Capture, by: str) -> None:
    """The directory is relative to the broker's working directory, not to that of whoever stops it."""
    ready_file = tmp_path / "ready.json"
    command = [sys.executable, "-m", "kproc", "serve", "--data", "data", "--ready-file", str(ready_file)]
    command += ["--listeners", "PLAINTEXT://127.0.0.1:0"]
    with (tmp_path / "log").open("wb") as log:
        out = log.fileno()
        broker = start_kproc(command, cwd=tmp_path, stdout=out, stderr=out, new_session=False)
    try:
        wait_until(ready_file.exists, seconds=30, what="it is ready")
        bootstrap = json.loads(ready_file.read_text())["bootstrap"]
        archive = tmp_path / "a.tar.gz"
        told = call_kproc(capsys, "doctor", "-b", bootstrap, "--output", str(archive), "--log", str(tmp_path / "log"))
        assert told.stderr.splitlines() == [
            "kproc: left out of the report: metrics.txt: the broker has no metrics listener (serve --metrics-listener)"
        ]
        where = {
            "address": ("-b", bootstrap),
            "ready file": ("--ready-file", str(ready_file)),
            "pid": ("--pid", str(broker.pid)),
        }
        told = call_kproc(capsys, "stop", *where[by])
        assert (told.returncode, told.stderr) == (0, "")
        assert broker.wait(PATIENCE_SECONDS) == 0
    finally:
        broker.kill()
        broker.wait()


def test_stop_of_broker_that_does_not_exit_in_time_fails(
    tmp_path: Path, transport: str, capsys: Capture
) -> None:
    with ServedBroker(tmp_path / "data", transport=transport) as broker:
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            told = call_kproc(capsys, "stop", "--pid", str(broker.pid), "--timeout", "0.2")
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert told.returncode == 1
        assert "has not ended" in told.stderr
        assert broker.wait() == 0


def test_port_in_use_error_names_the_process(tmp_path: Path, transport: str) -> None:
    with (
        ServedBroker(tmp_path / "data", transport=transport) as broker,
        pytest.raises(RuntimeError) as refused,
    ):
        ServedBroker(tmp_path / "other", transport=transport, port=broker.port).start()
    holders = [f"pid {pid} (" for pid in broker.pids()]
    assert any(holder in str(refused.value) for holder in holders), refused.value
    assert "kproc serve" in str(refused.value)
    assert "--data" not in str(refused.value), "options may be secret"
    assert f", data in {tmp_path / 'data'}) listens there" in str(refused.value)


@pytest.mark.long
def test_doctor_archive_contains_no_records_or_secrets(
    tmp_path: Path, transport: str, capsys: Capture
) -> None:
    settings = {
        "kproc.metrics.listener": "127.0.0.1:0",
        "ssl.keystore.password": SECRET,
        "listener.name.plaintext.plain.sasl.jaas.config": SECRET,
        "num.io.threads": 2,
    }
    archive = tmp_path / "doctor.tar.gz"
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t")
            client.produce("t", batch(RECORD), version=9)
            client.fetch("t", 0)
        pid = processes(broker.bootstrap)["handler", 1]
        log = tmp_path / "log"
        log.write_text(broker.log() + f"ssl.keystore.password={SECRET} and more\nlast line\n")
        told = call_kproc(capsys, "doctor", "-b", broker.bootstrap, "--output", str(archive), "--log", str(log))
        assert told.returncode == 0, told.stderr
        assert told.stderr == ""
        assert processes(broker.bootstrap)["handler", 1] == pid
        assert not [row for row in rows(broker.bootstrap) if row["restarts"]], "it harms nobody"
    assert archive.stat().st_mode & 0o077 == 0
    with tarfile.open(archive) as opened:
        contents = {
            member.name.partition("/")[2]: file.read()
            for member in opened
            if (file := opened.extractfile(member)) is not None
        }
    everything = b"".join(contents.values())
    assert SECRET.encode() not in everything
    assert RECORD not in everything
    assert f"python {sys.version.split()[0]}".encode() in contents["versions.txt"]
    assert b'"log.retention.ms"' in contents["settings.json"]
    assert b"kafka_server_brokertopicmetrics_bytesin_total" in contents["metrics.txt"]
    assert b"t-0/00000000000000000000.log" in contents["files.txt"]
    assert contents["log.txt"].endswith(b"last line\n")
    status = json.loads(contents["status.json"])
    assert str(pid) in contents["status.json"].decode()
    for row in status["processes"]:
        about = contents[f"processes/{row['role']}-{row['index']}.txt"]
        assert b"do_work" in about or b"_turn" in about, row
    assert contents["left_out.txt"] == b"nothing\n"


@pytest.mark.long
def test_doctor_lists_what_it_could_not_collect(tmp_path: Path, transport: str, capsys: Capture) -> None:
    with ServedBroker(tmp_path / "data", transport=transport) as broker:
        pid = processes(broker.bootstrap)["handler", 0]
        os.kill(pid, signal.SIGSTOP)
        try:
            told = call_kproc(capsys, "doctor", "-b", broker.bootstrap, "--output", str(tmp_path / "a.tar.gz"))
        finally:
            os.kill(pid, signal.SIGCONT)
    assert told.returncode == 0
    assert "left out of the report: metrics.txt: the broker has no metrics listener" in told.stderr
    with tarfile.open(tmp_path / "a.tar.gz") as opened:
        names = [member.name.rpartition("/")[2] for member in opened]
    assert "handler-0.txt" in names, "what hangs is shown, too"
    assert "supervisor-0.txt" in names


IN_A_NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


@pytest.fixture
def namespace() -> None:
    found = subprocess.run([*IN_A_NAMESPACE, "true"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"no PID namespace here: {found.stderr.decode().strip()}")


@pytest.mark.faults
@pytest.mark.usefixtures("namespace")
def test_pid_1_reaps_orphans_and_stops_in_order(tmp_path: Path) -> None:
    """The broker is process 1; a process that loses its parent is left to it, as by `docker exec`."""
    ready_file, log = tmp_path / "ready.json", tmp_path / "log"
    command = [sys.executable, "-m", "kproc", "serve", "--data", str(tmp_path / "data")]
    command += ["--listeners", "PLAINTEXT://127.0.0.1:0", "--ready-file", str(ready_file)]
    with log.open("wb") as file:
        unshared = subprocess.Popen([*IN_A_NAMESPACE, *command], stdout=file, stderr=file)
    try:
        wait_until(ready_file.exists, seconds=30, what="it is ready")
        assert json.loads(ready_file.read_text())["pid"] == 1
        [init] = children_of(unshared.pid)
        orphan = ["nsenter", "--target", str(init), "--pid", "sh", "-c", "sleep 0.3 & exit 0"]
        before = len(children_of(init))
        subprocess.run(orphan, check=True)
        wait_until(lambda: len(children_of(init)) > before, what="a process is left to it")
        wait_until(lambda: len(children_of(init)) == before, what="it is reaped")
        os.kill(init, signal.SIGTERM)
        assert unshared.wait(PATIENCE_SECONDS) == 0
        assert not ready_file.exists()
        assert "the stop was not clean" not in log.read_text()
    finally:
        unshared.kill()
        unshared.wait()


def children_of(pid: int) -> list[int]:
    """Zombies included."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
