"""`kproc bench` as a shell calls it."""

from __future__ import annotations

import json

import pytest

from kproc.tools.load.build import compiler
from tests.support.broker import run_kproc
from tests.support.command_line import run_here

pytestmark = pytest.mark.long

needs_compiler = pytest.mark.skipif(
    compiler() is None, reason="no C compiler to build the load generator with"
)
PATIENCE = 150.0  # of a busy machine: each of the runs starts a broker


@needs_compiler
@pytest.mark.slow
def test_bench_sweep_writes_rows_table_and_fits(tmp_path):
    command = [
        "bench", "sweep", "--layouts", "1x1", "--connections", "1,2,3,4,6,8", "--rounds", "1", "--seconds", "0.1",
        "--out", str(tmp_path),
    ]  # fmt: skip
    answer = run_kproc(*command, seconds=PATIENCE)
    assert answer.returncode == 0, answer.stderr
    [path] = tmp_path.glob("*.json")
    document = json.loads(path.read_text())
    assert sorted(row["connections"] for row in document["rows"]) == [1, 2, 3, 4, 6, 8]
    assert all(row["throughput"] > 0 and row["failed"] is None for row in document["rows"])
    assert document["about"]["commit"]
    over = {fit["over"]: fit for fit in document["fits"]}
    assert len(over["connections"]["points"]) == 6
    assert "6 are needed" in over["processes"]["refused"]
    assert "refused: 1 different N" in answer.stdout


def test_bench_sweep_and_simulate_reject_invalid_arguments():
    for arguments, said in (
        (("sweep", "--layouts", "0x1"), "PROCESSORSxHANDLERS"),
        (("sweep", "--connections", "x"), "numbers with commas between"),
        (("sweep", "--scale", "--layouts", "inline"), "only processes can be scaled"),
        (("simulate", "--cores", "0"), "from 1 to 1024"),
    ):
        # Here, because they are rejected before anything starts.
        answer = run_here("bench", *arguments)
        assert answer.returncode == 2, arguments
        assert said in answer.stderr
