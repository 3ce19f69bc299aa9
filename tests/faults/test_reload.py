"""SIGHUP: the configuration file is read again; the log says what was applied, what needs a restart or is refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.broker import ServedBroker, run_kproc
from tests.support.configs import read_configs, set_config
from tests.support.raw import RawClient
from tests.support.status import processes, status
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker]
on_processes = pytest.mark.transports("process")


def value_of(broker: ServedBroker, name: str) -> str:
    with RawClient(broker.bootstrap) as client:
        return str(read_configs(client, name)[name]["value"])


def reloaded(broker: ServedBroker, *lines: str) -> None:
    """Send SIGHUP and wait until the log has said all of this, once more than before."""
    counts = {line: broker.log().count(line) for line in lines}
    broker.send_signal(signal.SIGHUP)
    wait_until(
        lambda: all(broker.log().count(line) == count + 1 for line, count in counts.items()),
        what=f"the log says {lines}",
    )


@on_processes
def test_sighup_applies_dynamic_settings_and_logs_each_result(
    tmp_path: Path, transport: str
) -> None:
    file = tmp_path / "server.properties"
    file.write_text("message.max.bytes=1000000\nkproc.hung.ms=7000\n")
    broker = ServedBroker(tmp_path / "data", transport=transport, arguments=["--config", str(file)])
    with broker:
        pids = processes(broker.bootstrap)
        file.write_text("message.max.bytes=2000000\nkproc.hung.ms=8000\nnum.network.threads=100000\n")
        reloaded(broker, "num.network.threads=100000: must be at most", "reload: nothing was changed")
        assert value_of(broker, "message.max.bytes") == "1000000"

        file.write_text("message.max.bytes=2000000\nkproc.hung.ms=8000\nnum.io.threads=3\n")
        reloaded(
            broker,
            "reload: applied: message.max.bytes=2000000",
            "reload: kproc.hung.ms=8000 needs a restart",
            "reload: num.io.threads=3 is refused",
        )
        assert value_of(broker, "message.max.bytes") == "2000000"
        assert processes(broker.bootstrap) == pids, "nobody was restarted"
        reloaded(broker, "reload: num.io.threads=3 is refused")
        wait_until(
            lambda: "num.io.threads=3 is refused" in str(status(broker.bootstrap)["last_reload"]["problem"]),
            what="the status shows it",
        )

        # Back to what it was started with: nothing is set any more.
        file.write_text("message.max.bytes=1000000\nkproc.hung.ms=7000\n")
        reloaded(
            broker, "reload: applied: message.max.bytes=1000000", "reload: kproc.hung.ms=7000 is in force already"
        )
        assert value_of(broker, "message.max.bytes") == "1000000"
        wait_until(
            lambda: status(broker.bootstrap)["last_reload"]["problem"] is None,
            what="the status shows the success",
        )


@on_processes
def test_dynamic_setting_overrides_reloaded_file(
    tmp_path: Path, transport: str
) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.segment.bytes=2000000\n")
    broker = ServedBroker(tmp_path / "data", transport=transport, arguments=["--config", str(file)])
    with broker:
        with RawClient(broker.bootstrap) as client:
            assert set_config(client, "message.max.bytes", "1500000") == (0, None)
        file.write_text("log.segment.bytes=3000000\nmessage.max.bytes=1600000\n")
        reloaded(
            broker,
            "reload: applied: log.segment.bytes=3000000",
            "reload: message.max.bytes=1600000 stays 1500000",
        )
    file.write_text("log.segment.bytes=4000000\n")
    with broker:
        assert value_of(broker, "log.segment.bytes") == "4000000"
        assert value_of(broker, "message.max.bytes") == "1500000"


@pytest.mark.transports("process", "inline")
def test_sighup_without_config_file_is_no_failure(tmp_path: Path, transport: str) -> None:
    with ServedBroker(tmp_path / "data", transport=transport) as broker:
        assert status(broker.bootstrap)["last_reload"] is None
        reloaded(broker, "reload: there is no file (--config) to read again")
        assert "level=ERROR" not in broker.log()
        wait_until(lambda: status(broker.bootstrap)["last_reload"], what="the status shows the reload")
        assert status(broker.bootstrap)["last_reload"]["problem"] is None


@pytest.mark.transports("thread")
def test_sighup_in_one_process_shows_unapplied_changes(tmp_path: Path, transport: str) -> None:
    file = tmp_path / "server.properties"
    file.write_text("message.max.bytes=1000000\n")
    broker = ServedBroker(tmp_path / "data", transport=transport, arguments=["--config", str(file)])
    with broker:
        for text, line, problem in (
            ("message.max.bytes=1000000", "reload: no setting in the configuration file has changed", None),
            ("message.max.bytes=2000000", "these changes need a restart: message.max.bytes", "these changes need"),
            ("no.such.setting=1", "no.such.setting", "no.such.setting"),
            ("message.max.bytes=1000000", "reload: no setting in the configuration file has changed", None),
        ):
            file.write_text(f"{text}\n")
            reloaded(broker, line)
            shown = status(broker.bootstrap)["last_reload"]["problem"]
            assert (problem is None) is (shown is None)
            assert problem is None or problem in shown


@on_processes
def test_reload_reads_no_pipe(tmp_path: Path, transport: str) -> None:
    """The supervisor waited for somebody to write to the FIFO, and served neither deaths nor SIGTERM meanwhile."""
    file = tmp_path / "server.properties"
    file.write_text("message.max.bytes=1000000\n")
    broker = ServedBroker(tmp_path / "data", transport=transport, arguments=["--config", str(file)])
    with broker:
        file.unlink()
        os.mkfifo(file)
        reloaded(broker, "it is not a regular file", "reload: nothing was changed")
        assert value_of(broker, "message.max.bytes") == "1000000"


@on_processes
def test_stale_ready_file_is_removed_before_settings_are_read(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    ready_file.write_text('{"bootstrap": "127.0.0.1:1"}')
    done = run_kproc("serve", "--ready-file", str(ready_file), "--set", "no.such.setting=1")
    assert (done.returncode, ready_file.exists()) == (2, False)


@on_processes
@pytest.mark.parametrize("kind", ["fifo", "directory", "link", "configuration"])
def test_ready_file_replaces_nothing_else(tmp_path: Path, kind: str) -> None:
    """The broker removes the file when it stops. Root's `--ready-file /dev/null` took the device from the host."""
    path = tmp_path / "ready.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/dev/null")
    else:
        path.write_text('{"num.io.threads": 2}')
    before = path.lstat()
    done = run_kproc("serve", "--ready-file", str(path), "--data", str(tmp_path / "data"))
    assert done.returncode == 2
    assert done.stderr == f"kproc: --ready-file {path}: this is not a ready file of a broker, and it would be removed\n"
    assert path.lstat().st_ino == before.st_ino
    assert not (tmp_path / "data").exists()


@on_processes
def test_ready_file_in_missing_directory_is_rejected(tmp_path: Path) -> None:
    """Before anything starts: without the check all roles were killed when they were ready."""
    path = tmp_path / "no" / "ready.json"
    done = run_kproc("serve", "--ready-file", str(path), "--data", str(tmp_path / "data"))
    assert (done.returncode, done.stderr) == (2, f"kproc: --ready-file {path}: the directory does not exist\n")


@on_processes
def test_unwritable_ready_file_stops_the_start_cleanly(tmp_path: Path) -> None:
    """The directory vanished during the start, for instance: the roles stop one after another."""
    path = tmp_path / ("r" * 250)  # Valid, but too long for the temporary name beside it.
    done = run_kproc("serve", "--ready-file", str(path), "--data", str(tmp_path / "data"), "--port", "0")
    assert done.returncode == 1
    assert f"--ready-file {path}: File name too long" in done.stderr
    assert "killing" not in done.stderr
