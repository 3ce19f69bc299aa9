"""Tests that run on several transports, and files that must share a worker."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.conftest import pytest_collection_modifyitems, shared_session, uses_spark_session
from tests.support.broker import ROOT

MARKED = "test_pipelined_idempotent_retry_returns_same_offsets"


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
    assert uses_spark_session("tests/spark/test_source.py")
    assert not uses_spark_session("tests/spark/test_example_stop.py")
    assert not uses_spark_session("tests/unit/broker/config/test_config.py")


def test_files_that_share_a_jvm_stay_with_one_worker() -> None:
    assert shared_session("tests/spark/test_sink.py") == shared_session("tests/spark/test_source.py")
    assert shared_session("tests/clients/test_java_tools.py") == shared_session("tests/clients/test_acl_tools.py")
    assert shared_session("tests/spark/test_example_stop.py") == "tests/spark/test_example_stop.py"


def test_workers_run_spark_first_and_mix_waiting_with_busy_files() -> None:
    """With the longest file last, one worker would run alone at the end. With one kind alone a core would be idle."""
    waiting = ["spark/test_sink.py", "spark/test_example_stop.py", "faults/test_bank.py", "faults/test_churn.py"]
    busy = ["simulation/test_simulation.py", *(f"unit/test_{number}.py" for number in range(7))]
    items = [
        SimpleNamespace(nodeid=f"tests/{file}::{test}", get_closest_marker=lambda name: None)
        for file in (*busy[1:], *waiting[2:], busy[0], *waiting[1::-1])
        for test in ("test_b", "test_a")
    ]
    config = SimpleNamespace(workerinput={}, getoption=lambda name, default=None: default)
    pytest_collection_modifyitems(config, items)
    nodes = [item.nodeid for item in items]
    assert [node.partition("::")[2] for node in nodes] == ["test_b", "test_a"] * 12
    files = [node.partition("/")[2].partition("::")[0] for node in nodes[::2]]
    assert [file for file in files if file in waiting] == waiting
    assert [file for file in files if file in busy] == busy
    assert files.index(waiting[0]) == 0
    assert [files.index(file) for file in waiting[1:]] == [3, 6, 9]
