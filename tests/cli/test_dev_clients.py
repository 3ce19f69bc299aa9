"""`kproc dev` has its topics from the start, and prints how clients connect to its secured broker."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import ROOT
from tests.support.command_line import described, run_here, told
from tests.support.wait import wait_until

pytestmark = pytest.mark.long

SECONDS = 120


# ---- kproc dev ------------------------------------------------------------------------------------------------


def test_dev_prints_lines_that_connect_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kproc", "dev", "--tls", "--user", "alice", "--port", "0"]
    output = tmp_path / "output"
    with open(output, "wb") as file:
        child = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=file, env={**os.environ, "TMPDIR": str(tmp_path)}
        )
    try:
        text = wait_until(
            lambda: "kproc consume greetings" in (shown := output.read_text()) and shown,
            seconds=SECONDS,
            what="the lines",
        )
        told = dict(re.findall(r"^  (kproc|confluent-kafka) {2,}(.*)$", str(text), re.MULTILINE))
        assert len(text.partition("kproc is ready at ")[2].splitlines()) < 12, "the address is on the screen"
        from confluent_kafka import Producer

        producer = Producer(json.loads(told["confluent-kafka"]))
        producer.produce("greetings", b"hello")
        assert producer.flush(SECONDS) == 0
        del producer
        arguments = told["kproc"].split()[1:]
        done = subprocess.run(
            [sys.executable, "-m", "kproc", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "greetings" in done.stdout
    finally:
        child.send_signal(signal.SIGINT)
        child.wait(SECONDS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output"]


def test_dev_has_topics_when_ready_and_clamps_replication(tmp_path: Path) -> None:
    ready_file, output = tmp_path / "ready.json", tmp_path / "output"
    command = [sys.executable, "-m", "kproc", "dev", "--port", "0", "--topic", "orders:3", "--topic", "audit"]
    terminal, errors = pty.openpty()
    with open(output, "wb") as file:
        child = subprocess.Popen(
            [*command, "--ready-file", str(ready_file)],
            cwd=ROOT,
            stdout=file,
            stderr=errors,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
    try:
        ready = wait_until(
            lambda: json.loads(ready_file.read_text()) if ready_file.exists() else None,
            seconds=SECONDS,
            what="the ready file",
        )
        at = ("--bootstrap", ready["bootstrap"])
        rows = described(run_here("topic", "list", "--format", "json", *at))
        assert {row["name"]: row["partitions"] for row in rows} == {"orders": 3, "audit": 1}
        assert (
            told(run_here("topic", "create", "a", "b", "--replication-factor", "3", *at))
            == "created a\ncreated b\n"
        )
    finally:
        child.send_signal(signal.SIGINT)
        child.wait(SECONDS)
    os.close(errors)
    log = os.read(terminal, 10_000).decode()
    os.close(terminal)
    text = output.read_text()
    assert "topics    orders (3 partitions), audit (1 partition)\n" in text
    assert log.count("topic a gets 1 replica instead of 3") == 1
    assert log.endswith("kproc: stopped\r\n")
    assert "topic b" not in log
