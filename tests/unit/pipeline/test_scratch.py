"""Temporary directories of runs: kept while any process of the run lives, swept once all are dead."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kproc.pipeline.scratch import Scratch, sweep
from tests.support.wait import wait_until

# Prints its directory, and leaves it open in a child that is told to go on, as Spark's JVM has it.
RUN = """
import subprocess, sys
from kproc.pipeline.scratch import Scratch
scratch = Scratch()
child = subprocess.Popen(["sleep", "600"], pass_fds=[scratch.descriptor])
(scratch.path / "state").mkdir()
print(scratch.path, child.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_killed_runs_directory_is_swept_after_its_jvm_ended(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        left, child = run.stdout.readline().split()
        sweep(tmp_path)
        assert Path(left, "state").exists(), "it runs"
        run.kill()
        run.wait()
        sweep(tmp_path)
        assert Path(left, "state").exists(), "what it started runs"
        subprocess.run(["kill", "-9", child], check=True)
        wait_until(lambda: not is_running(int(child)), seconds=10, what="the child is gone")
        following = Scratch()
        assert list(tmp_path.iterdir()) == [following.path]
        following.remove()
        assert list(tmp_path.iterdir()) == []


def is_running(pid: int) -> bool:
    """A zombie holds nothing any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_only_directories_of_its_own_kind_are_swept(tmp_path: Path) -> None:
    others = ["kproc-spark-abcdefgh", "kproc-spark-1-abc", "kproc-spark-1-abcdefgh.txt", "spark-1-abcdefgh"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / "kproc-spark-1-notadir_").write_text("")
    (tmp_path / "kproc-spark-1-pointer1").symlink_to(tmp_path / others[0])
    (tmp_path / "kproc-spark-1-mine0000").mkdir()
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *others, "kproc-spark-1-notadir_", "kproc-spark-1-pointer1",
    }  # fmt: skip
