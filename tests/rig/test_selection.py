"""Tests that run on several transports, and files that must share a worker."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.conftest import pytest_collection_modifyitems, uses_spark_session
from tests.support.broker import ROOT

MARKED = "test_pipelined_batches_and_their_pipelined_retry_keep_their_offsets"


def collected(transports: str, *options: str) -> set[str]:
    """Return the names of the tests of a file that has a test marked `every_transport` and others without."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--transports", transports, *options]
    done = subprocess.run(
        [*command, "tests/api/test_idempotence.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.long
def test_only_marked_tests_run_on_every_transport() -> None:
    names = collected("process,thread,inline", "-m", "not slow")
    assert {f"{MARKED}[{transport}]" for transport in ("process", "thread", "inline")} < names
    assert {name for name in names if "[process" not in name} == {f"{MARKED}[thread]", f"{MARKED}[inline]"}


@pytest.mark.long
def test_one_chosen_transport_runs_all_tests() -> None:
    processes, threads = (collected(transport, "-m", "not slow") for transport in ("process", "thread"))
    assert threads == {name.replace("[process", "[thread") for name in processes}


def test_files_that_use_spark_session_are_recognised() -> None:
    assert uses_spark_session("tests/spark/test_sink.py")
    assert uses_spark_session("tests/spark/test_source_batch.py")
    assert not uses_spark_session("tests/spark/test_demo_stop.py")
    assert not uses_spark_session("tests/unit/test_config.py")


def test_workers_start_with_files_that_take_longest() -> None:
    """With the longest file last, one worker would run alone at the end."""
    order = ["unit/test_config.py", "faults/test_bank.py", "spark/test_demo_stop.py", "spark/test_sink.py"]
    items = [
        SimpleNamespace(nodeid=f"tests/{file}::test_a", get_closest_marker=lambda name: None) for file in order
    ]
    config = SimpleNamespace(workerinput={}, getoption=lambda name, default=None: default)
    pytest_collection_modifyitems(config, items)
    assert [item.nodeid for item in items] == [f"tests/{file}::test_a" for file in (order[3], order[2], *order[1::-1])]
