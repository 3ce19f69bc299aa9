"""An interrupted example takes Spark, broker and files along and says so by its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("matplotlib")

from tests.support.proc import heed_signals, living
from tests.support.spark_session import missing_reason
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.faults,  # And in JVMs of their own, not in the session of the others.
    pytest.mark.transports("process"),
    pytest.mark.skipif(missing_reason() is not None, reason=str(missing_reason())),
]


def jvm_has_begun(example: subprocess.Popen[str], directory: Path) -> bool:
    """Spark's JVM is there and has not told PySpark where it listens."""
    is_launched = any(directory.glob("kproc-clicks-*/checkpoint/.kproc/spark.log"))
    try:
        names = [each.name() for each in psutil.Process(example.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return False  # A shell of Spark's start has ended between the two looks.
    return is_launched and "java" in names


def spark_runs(_example: subprocess.Popen[str], directory: Path) -> bool:
    """PySpark has its session, and the queries begin."""
    return any("Spark runs" in path.read_text() for path in directory.glob("kproc-clicks-*/pipeline.log"))


@pytest.mark.parametrize(
    ("number", "moment", "last_line"),
    [
        (signal.SIGTERM, jvm_has_begun, "kproc: terminated"),
        # By hand: the pipeline of test_readme.py ends by Ctrl-C while its query runs.
        pytest.param(signal.SIGINT, jvm_has_begun, "kproc: interrupted", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, spark_runs, "kproc: terminated", marks=pytest.mark.slow),
    ],
)
def test_interrupted_example_leaves_nothing(
    tmp_path: Path, number: int, moment, last_line: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "examples.clicks", "-n", "20000", "--picture", tmp_path / "p.png"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        preexec_fn=heed_signals,
    ) as example:
        wait_until(lambda: moment(example, tmp_path), what=moment.__name__, seconds=120)
        started = psutil.Process(example.pid).children(recursive=True)
        example.send_signal(number)
        assert example.stderr is not None
        told = example.stderr.read().splitlines()
        assert example.wait(PATIENCE_SECONDS) == 128 + number
    assert told[-2:] == ["stopping Spark", last_line]
    assert len(started) > 5
    assert living(process.pid for process in started) == []
    assert list(tmp_path.iterdir()) == []
