"""kproc.Broker where it fails: the reason is in the error and nothing is left. Its success is tests/cli's."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

import kproc
from kproc.client import Client, ClientError
from kproc.client.faults import Faults
from kproc.common.sessions import session_members, stat_fields, wait_ended, wait_session_ends
from kproc.embedded import Broker, BrokerFailed, process
from kproc.embedded.setup import BrokerSetup
from tests.support.wait import PATIENCE_SECONDS, stretched, wait_until


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """A place for temporary directories that must be empty afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


def test_the_package_names_it_without_loading_it():
    code = "import sys, kproc; assert 'kproc.embedded' not in sys.modules; assert kproc.Broker"
    code += (
        "; assert issubclass(kproc.BrokerFailed, RuntimeError) and issubclass(kproc.ConfigError, ValueError)"
        "; from kproc.client.errors import ClientError; assert kproc.ClientError is ClientError"
    )
    root = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=PATIENCE_SECONDS)


def test_help_of_the_package_begins_with_what_one_can_do() -> None:
    lines = (kproc.__doc__ or "").splitlines()
    assert lines[0].startswith("Start a Kafka-protocol broker")
    assert "    with kproc.Broker(" in "\n".join(lines[:6])
    assert {f"`kproc.{name}`" for name in kproc.__all__ if name != "__version__"} <= set(
        (kproc.__doc__ or "").replace(":", "").split()
    )


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Brokre'"):
        kproc.Brokre  # noqa: B018 - the lookup is the test


def test_a_broker_that_cannot_start_says_what_it_wrote(scratch):
    with pytest.raises(BrokerFailed) as caught:
        Broker({"no.such.setting": 1}).start()
    assert "exit code 2" in str(caught.value)
    assert "unknown setting no.such.setting" in str(caught.value)


def taken_port(stack: ExitStack, scratch: Path) -> tuple[Broker, str]:
    held = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return Broker(port=held.getsockname()[1]), "cannot bind"


def unusable_data_directory(stack: ExitStack, scratch: Path) -> tuple[Broker, str]:
    file = scratch / "file"
    file.touch()
    stack.callback(file.unlink)
    return Broker(data=file / "data"), "log.dirs: cannot use"


@pytest.mark.long
@pytest.mark.parametrize("obstacle", [taken_port, unusable_data_directory])
def test_start_failure_reason_survives_removed_directory(scratch, obstacle):
    with ExitStack() as stack:
        broker, reason = obstacle(stack, scratch)
        for _ in range(2):  # Its janitor may or may not be faster than we are.
            with pytest.raises(BrokerFailed, match=reason) as caught:
                broker.start()
            assert "wrote nothing" not in str(caught.value)
        assert reason in broker.log_text(), "also afterwards"


def test_a_broker_that_is_never_ready_is_killed(scratch, monkeypatch):
    # A shell, because on a busy machine Python takes longer to start than the broker is waited for.
    sleeper = ["sh", "-c", "printf hello >&2; exec sleep 600"]
    monkeypatch.setattr(BrokerSetup, "start_command", lambda self, directory: sleeper)
    broker = Broker(start_timeout_ms=1_000)
    with pytest.raises(BrokerFailed, match="was not ready in 1000 ms; its stderr:\nhello"):
        broker.start()
    assert not broker.is_running


@pytest.mark.parametrize("content", ["{", "[" * 100_000, "[]", "\\377"])
def test_damaged_ready_file_is_reported_in_one_line(scratch, monkeypatch, content):
    def command(_setup: BrokerSetup, directory: Path, _last: object = None) -> list[str]:
        ready = shlex.quote(str(directory / "ready.json"))
        return ["sh", "-c", f"printf '{content}' > {ready}.new; mv {ready}.new {ready}; exec sleep 600"]

    monkeypatch.setattr(BrokerSetup, "start_command", command)
    broker = Broker()
    with pytest.raises(BrokerFailed, match=r"^[^\n]*/ready.json is not the ready file of a broker: [^\n]+$"):
        broker.start()
    assert not broker.is_running


SLOW_TO_DIE = """
import json, os, signal, subprocess, sys
ready = {"bootstrap": "127.0.0.1:1", "pid": os.getpid(), "processes": [], "data": "/"}
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
signal.signal(signal.SIGTERM, (lambda *_: os._exit(0)) if sys.argv[1] == "leave" else signal.SIG_IGN)
with open(sys.argv[2] + ".new", "w") as file:
    json.dump(ready, file)
os.rename(sys.argv[2] + ".new", sys.argv[2])
while True:
    signal.pause()
"""


@pytest.mark.parametrize(
    ("behaviour", "complaint"),
    [("leave", "processes outlived their supervisor"), ("stay", "did not stop in {} ms")],
)
def test_session_that_does_not_end_is_killed_and_reported(scratch, monkeypatch, behaviour, complaint):
    monkeypatch.setattr(
        BrokerSetup,
        "start_command",
        lambda self, directory: [sys.executable, "-c", SLOW_TO_DIE, behaviour, str(directory / "ready.json")],
    )
    stop_ms = stretched(300)
    broker = Broker(stop_timeout_ms=stop_ms).start()
    session = broker.pid
    assert broker.is_running
    assert (broker.bootstrap, broker.host, broker.port) == ("127.0.0.1:1", "127.0.0.1", 1)
    with pytest.raises(BrokerFailed, match=complaint.format(stop_ms)):
        broker.stop()
    assert session_members(session) == []
    broker.stop()  # Nothing is left to stop.
    with pytest.raises(BrokerFailed, match="is not running"):
        _ = broker.bootstrap


def test_slow_directory_removal_after_end_is_no_failure(scratch, monkeypatch):
    """Thousands of partitions on a busy machine: whoever stops it removes the directory, too."""
    monkeypatch.setattr(
        BrokerSetup,
        "start_command",
        lambda self, directory: [sys.executable, "-c", SLOW_TO_DIE, "stay", str(directory / "ready.json")],
    )
    broker = Broker(stop_timeout_ms=300).start()
    session = broker.pid
    (scratch_file,) = scratch.glob("*/ready.json")
    scratch_file.unlink()  # As the broker does when its roles have ended.
    broker.stop()
    assert session_members(session) == []


@pytest.mark.long
def test_forked_child_leaving_block_keeps_parents_broker(scratch):
    with Broker() as broker, broker.pause_role("cleaner"), broker.requests.recording():
        directory = next(scratch.iterdir())
        [cleaner] = [row["pid"] for row in broker.processes if row["role"] == "cleaner"]
        pid = os.fork()
        if pid == 0:
            try:
                with pytest.raises(BrokerFailed, match="not for one forked from it"):
                    broker.restart()
                broker.__exit__(None, None, None)
                broker.stop()
            finally:
                os._exit(0 if not broker.is_running else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "there it is over"
        assert broker.is_running
        assert directory.exists()
        assert stat_fields(cleaner)[0] == b"T", "the child has resumed the role"
        with socket.create_connection((broker.host, broker.port), timeout=PATIENCE_SECONDS):
            pass


@pytest.fixture
def ignored_sigchld():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


def test_start_error_is_raised_with_sigchld_ignored(scratch, ignored_sigchld):
    with pytest.raises(BrokerFailed, match="unknown setting no"):
        Broker({"no.such.setting": 1}).start()


def test_broker_under_ignored_sigchld_restarts_and_stops(scratch, ignored_sigchld):
    with Broker() as broker:
        handler = next(row["pid"] for row in broker.processes if row["role"] == "handler")
        os.kill(handler, signal.SIGKILL)

        def successor():
            try:
                with Client.connect(broker.host, broker.port) as client:
                    rows = client.operate("status")["processes"]
            except ClientError:  # It was the Handler's that is gone.
                return []
            return [row for row in rows if row["role"] == "handler" and row["pid"] not in (0, None, handler)]

        wait_until(successor, seconds=20, what="the Handler's successor")


def test_stop_of_ended_broker_is_quiet_under_ignored_sigchld(scratch, ignored_sigchld):
    broker = Broker().start()
    broker.kill()
    wait_ended(broker._process.pidfd, 10_000)
    broker.stop()


@pytest.mark.long
def test_broker_of_a_parent_with_blocked_signals_stops(scratch):
    """exec keeps the mask. SIGTERM stops the broker, and SIGUSR1 shows the stacks of a role that hangs."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        for transport in ("inline", "process"):
            with Broker(transport=transport) as broker:
                for pid in session_members(broker.pid):
                    status = Path(f"/proc/{pid}/status").read_text()
                    assert f"SigBlk:\t{0:016x}\n" in status, status
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.long
def test_restart_after_kill_names_restart_with_kill(scratch):
    broker = Broker().start()
    directory = broker._process.directory
    broker.kill()
    wait_until(lambda: not directory.exists(), what="the janitor has removed the directory")
    with pytest.raises(BrokerFailed, match=r"call restart\(kill=True\) instead of kill\(\)"):
        broker.restart()
    assert not broker.is_running


@pytest.mark.long
def test_restart_without_its_temporary_directory_says_so(scratch):
    broker = Broker(transport="inline").start()
    shutil.rmtree(broker._process.directory)
    with pytest.raises(BrokerFailed, match="cannot be restarted: another program has deleted its temporary directory"):
        broker.restart()
    assert not broker.is_running


def test_the_tests_own_error_is_not_hidden_by_the_brokers(scratch, monkeypatch):
    monkeypatch.setattr(
        BrokerSetup,
        "start_command",
        lambda self, directory: [sys.executable, "-c", SLOW_TO_DIE, "leave", str(directory / "ready.json")],
    )
    with pytest.raises(KeyError) as caught, Broker(stop_timeout_ms=stretched(300)):
        raise KeyError("mine")
    assert any("outlived" in note for note in caught.value.__notes__)


def test_a_session_is_waited_for_without_its_leader():
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    try:
        assert session_members(child.pid) == [child.pid]
        assert wait_session_ends(child.pid, timeout_ms=20) == [child.pid]
    finally:
        os.kill(child.pid, signal.SIGKILL)
        assert wait_session_ends(child.pid, timeout_ms=5_000) == []
        child.wait()


def test_shortage_of_descriptors_is_no_ended_process():
    def has_no_descriptor(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    # The end of the block restores `open`, which pytest's hooks use right after the test.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.open", has_no_descriptor)
        with pytest.raises(OSError, match="Too many open files"):
            session_members(os.getsid(0))


@pytest.mark.long
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Faults, "finish"),  # A request to the broker before its stop.
        (process, "wait_ended"),  # The wait for the end of the supervisor.
    ],
)
def test_stop_that_ctrl_c_interrupts_leaves_no_process(scratch, monkeypatch, owner, name):
    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    broker = Broker(transport="inline").start()
    session = broker.pid
    assert broker.faults.list() == []
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            broker.stop()
    wait_until(lambda: not session_members(session), what="the killed processes have ended")
    broker.stop()


def test_unusable_temporary_directory_is_named(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    with pytest.raises(BrokerFailed, match=r"No such file or directory: '/proc/kproc-.*variable TMPDIR names"):
        Broker().start()


def test_arguments_that_would_destroy_files_are_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"leave out data= and log\.dirs"):
        Broker({"log.dirs": tmp_path}, power_loss=True)
    with pytest.raises(ValueError, match='data="" names no directory'):
        Broker(data="")


@pytest.mark.long
def test_blocks_of_a_stopped_broker_are_left_quietly(scratch):
    """The state of a block has ended with the broker, or with its restart."""
    broker = Broker(transport="inline").start()
    with pytest.raises(TypeError, match=r"advance\(45\) has no unit: use a timedelta, or a name as in seconds=45"):
        broker.time.advance(45)
    with broker.time.freeze(), broker.snapshot() as snapshot:
        broker.restart()
    with pytest.raises(RuntimeError, match="does not exist"):
        broker.restore(snapshot)
    with broker.snapshot() as deleted:
        deleted.delete()
    with broker.time.freeze(), broker.snapshot() as snapshot:
        broker.stop()
    with pytest.raises(BrokerFailed, match="not running"):
        broker.kill()
    with broker, pytest.raises(RuntimeError, match="does not exist"):
        broker.restore(snapshot)


@pytest.mark.long
def test_methods_of_an_ended_broker_name_its_end(scratch):
    broker = Broker(transport="inline").start()
    broker.kill()
    wait_ended(broker._process.pidfd, 10_000)
    calls = (
        lambda: broker.create_topic("t"),
        lambda: broker.group("g").state,
        lambda: broker.faults.list(),
        lambda: broker.wait_until_idle(60),
        broker.snapshot,
        broker.start,
    )
    for call in calls:
        with pytest.raises(BrokerFailed, match="the broker ended with signal SIGKILL"):
            call()
    broker.stop()
