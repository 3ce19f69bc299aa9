"""The systemd unit: it installs as its comments say, starts with an empty configuration, and systemd accepts it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kproc.broker.config import Config
from kproc.cli.serve import SERVE
from tests.support.broker import ROOT

UNIT = ROOT / "scripts" / "service" / "kproc.service"
# Stand for what only root may run, and for what takes long.
DOUBLES = """
python3() { mkdir -p "$3/bin"; printf '#!/bin/sh\\n' > "$3/bin/pip"; chmod +x "$3/bin/pip"; }
useradd() { for last; do :; done; echo "user $last"; }
systemctl() { echo "systemctl $*"; }
"""


def settings() -> dict[str, str]:
    """The lines NAME=VALUE of the unit."""
    return dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if line[:1].isalpha())


def test_unit_is_installed_as_its_comments_say(tmp_path: Path) -> None:
    commands = [line[4:] for line in UNIT.read_text().splitlines() if line.startswith("#   ")]
    assert len(commands) == 5
    for directory in ("opt", "etc/systemd/system", "var/lib"):
        (tmp_path / directory).mkdir(parents=True)
    script = "\n".join(commands).replace("-g kproc ", "")
    for directory in ("/opt/", "/etc/", "/var/lib/"):
        script = script.replace(directory, f"{tmp_path}{directory}")
    done = subprocess.run(["sh", "-euc", DOUBLES + script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["user kproc", "systemctl daemon-reload", "systemctl enable --now kproc"]
    assert (tmp_path / "etc/systemd/system/kproc.service").read_bytes() == UNIT.read_bytes()

    command, verb, *arguments = shlex.split(settings()["ExecStart"])
    assert (command, verb) == ("/opt/kproc/bin/kproc", "serve")
    given = SERVE.parse_args(arguments)
    file = tmp_path / str(given.config).lstrip("/")
    assert file.stat().st_mode & 0o777 == 0o640
    assert Config.build(file=file).num_io_threads >= 1
    assert str(given.ready_file).startswith(f"/run/{settings()['RuntimeDirectory']}/")
    assert str(given.__dict__["log.dirs"]).startswith(f"/var/lib/{settings()['StateDirectory']}/")


def test_unit_bounds_restarts_memory_and_core_dumps() -> None:
    found = settings()
    assert (found["Restart"], found["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert (found["LimitCORE"], found["MemoryMax"]) == ("0", "75%")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "kproc.service"
    unit.write_text(UNIT.read_text().replace("/opt/kproc/bin/kproc", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
