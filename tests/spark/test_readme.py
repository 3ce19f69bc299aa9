"""Run the README's Spark examples as they stand there: the Python example, and the pipeline until Ctrl-C.

The pipeline runs in a directory with files that are named like modules of the standard library. Spark starts its Python
workers there, those of the source among them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kproc.embedded import kproc_command
from tests.support.broker import ROOT
from tests.support.command_line import run_here
from tests.support.spark_session import missing_reason
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The pipeline runs in a session of its own, as a reader starts it; of Spark itself nothing may be left.
pytestmark = [pytest.mark.spark, pytest.mark.transports("process")]
SPARK_SECONDS = 600.0


@pytest.fixture(autouse=True)
def needs_spark() -> None:
    reason = missing_reason()
    if reason is not None:
        pytest.skip(reason)


def block_of_readme(language: str) -> str:
    """The one fenced block of a language in the README's part on Spark."""
    part = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Spark\n")[1].split("\n## ")[0]
    [block] = re.findall(rf"```{language}\n(.*?)```", part, re.DOTALL)
    return str(block)


def test_python_example_of_the_readme_runs(spark: SparkSession) -> None:
    """In the shared session, which `getOrCreate()` returns."""
    exec(compile(block_of_readme("python"), "README.md", "exec"), {})


@pytest.fixture
def words(broker, tmp_path: Path) -> Iterator[Path]:
    """The README's pipeline in a file, and the records that it counts."""
    spec = tmp_path / "project" / "words.toml"
    spec.parent.mkdir()
    spec.write_text(block_of_readme("toml"), encoding="utf-8")
    spoil = f"open({str(tmp_path / 'imported')!r}, 'a').write(__name__ + chr(10)); raise RuntimeError(__name__)\n"
    for module in ("secrets", "queue", "select", "struct", "socket", "json", "typing", "random", "signal"):
        (spec.parent / f"{module}.py").write_text(spoil)
    made = run_here("produce", "words", "--bootstrap", broker.bootstrap, stdin="1\n2\n2\n")
    assert made.returncode == 0, made.stderr
    yield spec
    gone = run_here("topic", "delete", "words", "--yes", "--bootstrap", broker.bootstrap)
    assert gone.returncode == 0, gone.stderr


def test_pipeline_of_the_readme_counts_and_ends_at_a_signal(broker, words: Path, tmp_path: Path) -> None:
    where = ("--bootstrap", broker.bootstrap)
    out, errors = tmp_path / "out", tmp_path / "errors"
    lines = tmp_path / "lines.json"
    command = kproc_command("pipeline", "run", words.name, *where, "--json", str(lines))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open(out, "w") as to_out, open(errors, "w") as to_errors:
        running = subprocess.Popen(
            command, cwd=words.parent, env=environment, stdout=to_out, stderr=to_errors
        )
    try:
        wait_until(
            lambda: running.poll() is not None or "2" in out.read_text(), seconds=SPARK_SECONDS, what="counts"
        )
        refused = run_here("pipeline", "reset", str(words), "--yes")
        assert refused.returncode == 1
        assert f"in use by process {running.pid}" in refused.stderr
    finally:
        running.send_signal(signal.SIGINT)
        code = running.wait(SPARK_SECONDS)
    imported = tmp_path / "imported"
    assert not imported.exists(), imported.read_text()
    assert code == 0, errors.read_text()
    assert errors.read_text().startswith("starting Spark (8-15 s)\n")
    assert [line.split() for line in out.read_text().splitlines()[1:4]] == [
        ["word", "n"],
        *sorted_counts(out),
    ]

    # The batch that ran at the signal was finished: nothing is planned that is not committed.
    state = words.parent / "words-state" / "screen"
    planned, committed = (
        {path.name for path in (state / name).glob("[0-9]*")} for name in ("offsets", "commits")
    )
    assert planned == committed
    [first, *_] = [json.loads(line) for line in lines.read_text().splitlines()]
    assert (first["query"], first["rows"], first["lag"]) == ("screen", 3, 0)

    told = run_here("pipeline", "status", str(words), *where, "--format", "json")
    assert told.returncode == 0, told.stderr
    [row] = json.loads(told.stdout)["rows"]
    assert (row["topic"], row["offset"], row["end"], row["lag"]) == ("words", 3, 3, 0)
    assert run_here("pipeline", "reset", str(words), "--yes").returncode == 0
    assert not state.exists()


def sorted_counts(out: Path) -> list[list[str]]:
    """The two rows in the order in which they came, once they are the right ones."""
    rows = [line.split() for line in out.read_text().splitlines()[2:4]]
    assert sorted(rows) == [["1", "1"], ["2", "2"]]
    return rows
