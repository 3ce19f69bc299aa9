"""A pipeline that another process started does not outlive it; nor does its JVM."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.support.wait import PATIENCE_SECONDS, wait_until

SPEC = """
[pipeline]
name = "p"
checkpoint = "state"
[[source]]
name = "numbers"
rate = 1
[[sink]]
name = "out"
input = "numbers"
noop = true
"""


def children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


@pytest.mark.spark
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
def test_pipeline_exit_with_parent_ends_run_and_jvm(tmp_path: Path) -> None:
    """Killed, not stopped, since Spark's start cannot be interrupted; the JVM reads the end of its stdin."""
    spec = tmp_path / "SPEC.toml"
    spec.write_text(SPEC)
    with subprocess.Popen(["sleep", "600"]) as alive:
        run = subprocess.Popen(
            [sys.executable, "-m", "kproc", "pipeline", "run", spec, "--exit-with-parent", str(alive.pid)],
            stderr=subprocess.DEVNULL,
        )
        wait_until(lambda: children(run.pid), what="the JVM starts", seconds=120)
        jvm = children(run.pid)[0]
        alive.kill()
        assert run.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    wait_until(lambda: not Path(f"/proc/{jvm}").exists(), what="the JVM ends", seconds=120)
