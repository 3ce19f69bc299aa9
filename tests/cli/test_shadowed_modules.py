"""Processes that kproc starts in a directory with a file for every module of the standard library: none is imported."""

from __future__ import annotations

import importlib.machinery
import os
import queue
import subprocess
import sys
from pathlib import Path

import pytest

from kproc.embedded import kproc_command
from kproc.pipeline.python_code import resolve
from tests.support.broker import ROOT
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [pytest.mark.long, pytest.mark.transports("process"), pytest.mark.own_broker]

USE = """
import kproc
with kproc.Broker(port=0, transport={transport!r}) as broker:
    broker.create_topic("t")
    print("served by", broker.bootstrap)
"""
USE_FIXTURE = """
def test_it(kproc_broker, kproc_topic):
    assert kproc_broker.bootstrap and kproc_topic
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory whose files leave a mark when they are imported, and have the names of the library's modules."""
    directory = tmp_path / "project"
    directory.mkdir()
    spoil = (
        f"open({str(tmp_path / 'imported')!r}, 'a').write(__name__ + chr(10)); raise RuntimeError(__name__)\n"
    )
    others = {"kproc", "orjson", "msgspec", "typer", "rich", "crc32c", "pyspark", "numpy", "confluent_kafka"}
    for name in sys.stdlib_module_names | others:
        (directory / f"{name}.py").write_text(spoil)
    return directory


def run_in(project: Path, command: list[str], seconds: float = PATIENCE_SECONDS) -> str:
    """Run to the end, with kproc found by PYTHONPATH; the output. Nothing of the project may be imported."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    mark = project.parent / "imported"
    assert not mark.exists(), mark.read_text()
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("broker_transport", ["process", "thread"])
def test_broker_beside_shadowing_modules_starts(project: Path, tmp_path: Path, broker_transport: str) -> None:
    script = tmp_path / "elsewhere" / "use.py"
    script.parent.mkdir()
    script.write_text(USE.format(transport=broker_transport))
    assert "served by 127.0.0.1:" in run_in(project, [sys.executable, str(script)])


def test_pytest_plugin_beside_shadowing_modules_starts(project: Path, tmp_path: Path) -> None:
    script = tmp_path / "elsewhere" / "test_use.py"
    script.parent.mkdir()
    script.write_text(USE_FIXTURE)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(script)]
    assert "1 passed" in run_in(project, [*command, "--rootdir", str(script.parent)])


def test_kproc_command_beside_shadowing_modules_runs_own_package(project: Path) -> None:
    """The command runs this kproc, not one that PYTHONPATH or the working directory has."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = kproc_command("serve", "--help")
    done = subprocess.run(
        command,
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert "usage: kproc serve" in done.stdout.lower()


def test_module_beside_specification_does_not_hide_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline's directory is on the path for its modules, behind the standard library and before packages."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("queue", "steps_of_test"):
        (tmp_path / f"{name}.py").write_text("def run(): return 'own'\n")
    try:
        assert resolve("steps_of_test:run", tmp_path)() == "own"
    finally:
        # The module would be found by the next test of this process that has a file of the same name.
        sys.modules.pop("steps_of_test", None)
    assert importlib.machinery.PathFinder.find_spec("queue").origin == queue.__file__
    assert sys.path.index(str(tmp_path)) < min(
        index for index, path in enumerate(sys.path) if path.endswith("site-packages")
    )
