"""The commands of kproc/SECURITY.md and then of kproc/DAYTWO.md, run as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers.base import free_ports
from tests.support.broker import ROOT

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on the PATH"),
]
SECONDS = 600
DOCUMENTS = ("SECURITY.md", "DAYTWO.md")


def test_commands_of_security_document_and_second_day_work(tmp_path: Path) -> None:
    text = "".join((ROOT / "kproc" / name).read_text() for name in DOCUMENTS)
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    local_port, port = free_ports(2)
    script = "set -e\n" + "".join(blocks).replace("9092", str(local_port)).replace("9093", str(port))
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "kproc"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m kproc "$@"\n')
    command.chmod(0o700)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "created orders" in done.stdout
    assert "User:alice may WRITE topic orders" in done.stdout
    assert done.stdout.count("stopped: pid") == 3
    assert f"LOCAL=127.0.0.1:{local_port} LAN=localhost:{port}" in done.stdout
    assert "Certificate will not expire" in done.stdout
    assert "\nlimit: " in done.stdout
    assert "data restored/data " in done.stdout
    # The one record of `orders` is printed by the first document, and from its copy by the second.
    assert done.stdout.count("\nhello\n") == 2
    # The truncated log has no bytes before the line of the stop.
    assert done.stdout.rpartition("stopped: pid")[2].split("\n")[1].endswith("stopping: signal=SIGTERM")
    files = [path for path in tmp_path.iterdir() if path.name != "bin"]
    assert [path.name for path in files if path.stat().st_mode & 0o077] == []
