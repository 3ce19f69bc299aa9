"""`kproc dev --control`: faults over HTTP until the broker ends, and nothing is left behind."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kproc.embedded import Broker
from kproc.embedded.control import ControlServer
from tests.support.broker import ROOT
from tests.support.command_line import call_kproc, run_here, told
from tests.support.kproc_command import kproc
from tests.support.proc import living
from tests.support.wait import PATIENCE_SECONDS, wait_until

TOKEN = "0123456789abcdef"


@contextmanager
def dev_broker(directory: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run `kproc dev --control 0` with `directory` for temporary files. Yield it with its ready file."""
    ready_file = directory / "ready.json"
    command = [sys.executable, "-m", "kproc", "dev", "--port", "0", "--control", "0"]
    child = subprocess.Popen(
        [*command, "--ready-file", str(ready_file), *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(directory), "KPROC_CONTROL_TOKEN": TOKEN},
    )
    try:
        ready = wait_until(
            lambda: json.loads(ready_file.read_text()) if ready_file.exists() else None,
            seconds=PATIENCE_SECONDS,
            what="the ready file",
        )
        yield child, ready
    finally:
        child.kill()
        child.communicate()


def call(ready: dict[str, Any], operation: str, **arguments: Any) -> Any:
    headers = {"Authorization": f"Bearer {Path(ready['control_token_file']).read_text()}"}
    body = json.dumps(arguments).encode()
    with urllib.request.urlopen(
        urllib.request.Request(f"{ready['control_url']}/{operation}", body, headers)
    ) as answer:
        return json.load(answer)


@pytest.mark.long
def test_dev_with_control_serves_faults_and_leaves_nothing(tmp_path: Path) -> None:
    with dev_broker(tmp_path, "--topic", "orders:3") as (child, ready):
        assert Path(ready["control_token_file"]).stat().st_mode & 0o777 == 0o600
        rule = call(ready, "fault/add", rule={"action": "close", "apis": ["Produce"], "topic": "orders"})
        at = ("--bootstrap", ready["bootstrap"])
        assert json.loads(told(run_here("fault", "list", "--format", "json", *at)))[0]["id"] == rule["id"]
        assert json.loads(told(run_here("topic", "list", "--format", "json", *at)))[0]["partitions"] == 3
        call(ready, "fault/add", rule={"action": "close", "client": "x" * 70})
        assert told(run_here("fault", "list", *at)).count("client=" + "x" * 29 + "..." + "x" * 28 + " ") == 1
        child.send_signal(signal.SIGTERM)
        output, _ = child.communicate(timeout=PATIENCE_SECONDS)
    assert (child.returncode, list(tmp_path.iterdir())) == (0, []), output
    assert f"  faults    {ready['control_url']}, token {TOKEN}\n" in output


@pytest.mark.long
def test_broker_of_dev_is_restarted_and_reset_over_http(tmp_path: Path) -> None:
    with dev_broker(tmp_path, "--topic", "orders") as (child, ready):

        def topics() -> list[str]:
            done = run_here("topic", "list", "--format", "json", "--bootstrap", ready["bootstrap"])
            return [row["name"] for row in json.loads(told(done))]

        again = call(ready, "broker/restart", kill=True)
        assert (again["bootstrap"], again["pid"] != ready["pid"]) == (ready["bootstrap"], True)
        assert topics() == ["orders"]
        wait_until(
            lambda: json.loads((tmp_path / "ready.json").read_text())["pid"] == again["pid"],
            seconds=PATIENCE_SECONDS,
            what="the new ready file",
        )
        call(ready, "role/kill", role="handler")
        call(ready, "broker/reset")
        assert topics() == []
        child.send_signal(signal.SIGTERM)
        output, _ = child.communicate(timeout=PATIENCE_SECONDS)
    assert (child.returncode, list(tmp_path.iterdir())) == (0, []), output


@pytest.mark.long
def test_dev_with_control_ends_with_its_broker(tmp_path: Path) -> None:
    with dev_broker(tmp_path) as (child, ready):
        told(run_here("stop", "--pid", str(ready["pid"])))
        child.communicate(timeout=PATIENCE_SECONDS)
        assert (child.returncode, list(tmp_path.iterdir())) == (0, [])
    with dev_broker(tmp_path) as (child, ready):
        os.kill(ready["pid"], signal.SIGKILL)
        output, _ = child.communicate(timeout=PATIENCE_SECONDS)
        assert child.returncode == 1
        assert output.endswith("kproc: the broker ended with signal SIGKILL\n")


@pytest.mark.long
def test_broker_ends_with_a_killed_dev_command(tmp_path: Path) -> None:
    with dev_broker(tmp_path) as (child, ready):
        child.kill()
        pids = [row["pid"] for row in ready["processes"]]
        wait_until(lambda: not living(pids), seconds=PATIENCE_SECONDS, what="the processes end")
        wait_until(
            lambda: [path.name for path in tmp_path.iterdir()] == ["ready.json"],
            seconds=PATIENCE_SECONDS,
            what="the directory goes",
        )


def test_wrong_control_options_are_usage_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def error(port: str) -> str:
        done = call_kproc(capsys, "dev", "--port", "0", "--control", port)
        assert done.returncode == 2, done
        return done.stderr

    assert error("65536") == "kproc: --control 65536: must be from 0 to 65535\n"
    assert (
        error("0.0.0.0:80") == "kproc: --control 0.0.0.0:80: expected a port; it listens at 127.0.0.1 only\n"
    )
    with ControlServer(Broker()) as other:
        port = other.url.rpartition(":")[2]
        done = call_kproc(capsys, "dev", "--port", "0", "--control", port)
        assert (done.returncode, done.stderr) == (1, f"kproc: --control {port}: address already in use\n")
    monkeypatch.setenv("KPROC_CONTROL_TOKEN", "short")
    assert (
        error("0") == "kproc: KPROC_CONTROL_TOKEN: the token must have at least 16 ASCII characters, and no blanks\n"
    )


@pytest.mark.long
def test_dev_with_unwritable_ready_file_prints_no_banner() -> None:
    done = kproc("dev", "--port", "0", "--control", "0", "--ready-file", "/proc/ready.json")
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr == "kproc: --ready-file /proc/ready.json: No such file or directory\n"


@pytest.mark.long
def test_wrong_setting_of_dev_with_control_is_a_usage_error() -> None:
    """The broker of --control is a child, whose exit code says what was wrong. Only a real one has that."""
    done = kproc("dev", "--port", "0", "--control", "0", "--set", "num.io.threads=no")
    assert done.returncode == 2, done
    assert "num.io.threads" in done.stderr


def test_process_of_the_control_api_collects_garbage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KPROC_CONTROL_TOKEN", "short")
    gc.disable()  # The command line does so for the imports.
    try:
        assert call_kproc(capsys, "dev", "--port", "0", "--control", "0").returncode == 2
        assert gc.isenabled()
    finally:
        gc.enable()
