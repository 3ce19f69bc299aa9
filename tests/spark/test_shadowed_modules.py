"""Spark's Python workers in a directory with files that are named like modules of the standard library."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kproc.embedded import kproc_command
from tests.support.broker import ROOT, run_kproc

pytestmark = [pytest.mark.spark, pytest.mark.transports("process")]
SPEC = """
[pipeline]
name = "p"
checkpoint = "state"
trigger = "available-now"
[[source]]
name = "words"
topic = "{topic}"
starting = "earliest"
[[transform]]
name = "twice"
python = "steps_of_test.py:twice"
inputs = ["words"]
[[sink]]
name = "out"
input = "twice"
console = true
"""
STEPS = """
from pyspark.sql.functions import udf

def twice(words):
    return words.select(udf(lambda value: value.decode() * 2, "string")("value").alias("value"))
"""


@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
def test_pipeline_beside_shadowing_modules_runs(broker, topic, tmp_path: Path) -> None:
    """The source's workers and the function's: both are started by Spark in the working directory."""
    name = topic()
    assert run_kproc("produce", name, "--bootstrap", broker.bootstrap, stdin="ab\n").returncode == 0
    project, mark = tmp_path / "project", tmp_path / "imported"
    project.mkdir()
    spoil = f"open({str(mark)!r}, 'a').write(__name__ + chr(10)); raise RuntimeError(__name__)\n"
    for shadowing in ("secrets", "queue", "select", "struct", "socket", "json", "typing", "random", "signal"):
        (project / f"{shadowing}.py").write_text(spoil)
    (project / "steps_of_test.py").write_text(STEPS)
    (project / "p.toml").write_text(SPEC.format(topic=name))
    done = subprocess.run(
        kproc_command("pipeline", "run", "p.toml", "--bootstrap", broker.bootstrap),
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert not mark.exists(), mark.read_text()
    assert done.returncode == 0, done.stderr
    assert "abab" in done.stdout
