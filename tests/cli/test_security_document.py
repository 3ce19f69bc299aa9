"""The commands of kproc/SECURITY.md, run as they stand there."""

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
SECONDS = 120


def test_commands_of_security_document_work(tmp_path: Path) -> None:
    blocks = re.findall(
        r"^```sh\n(.*?)^```", (ROOT / "kproc/SECURITY.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (port,) = free_ports(1)
    script = "set -e\n" + "".join(blocks).replace("9093", str(port))
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
    assert "\nhello\n" in done.stdout
    assert "stopped: pid" in done.stdout
    files = [path for path in tmp_path.iterdir() if path.name != "bin"]
    assert [path.name for path in files if path.stat().st_mode & 0o077] == []
