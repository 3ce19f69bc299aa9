"""Tests that run on several transports, and files that must share a worker."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.conftest import (
    pytest_collection_modifyitems,
    pytest_generate_tests,
    shared_session,
    uses_spark_session,
)


def variants(transports: str, *marks: pytest.Mark, markers: str = "not slow") -> list[str]:
    """Return the transports on which a run takes a test with these marks."""
    found: list[str] = []
    options = {"transports": transports, "bootstrap": None}
    metafunc = SimpleNamespace(
        fixturenames=["transport"],
        config=SimpleNamespace(getoption=options.__getitem__, option=SimpleNamespace(markexpr=markers)),
        definition=SimpleNamespace(get_closest_marker={each.name: each for each in marks}.get),
        parametrize=lambda _name, values, **_: found.extend(values),
    )
    pytest_generate_tests(metafunc)
    return found


def test_only_marked_tests_run_on_every_transport() -> None:
    all_three = "process,thread,inline"
    assert variants(all_three) == ["process"]
    assert variants(all_three, pytest.mark.every_transport.mark) == ["process", "thread", "inline"]
    assert variants(all_three, pytest.mark.transports("process", "thread").mark) == ["process", "thread"]
    assert variants(all_three, pytest.mark.transports("process", "thread", slow=("thread",)).mark) == ["process"]
    assert len(variants(all_three, markers="")) == 3, "with slow tests, those by hand are there, too"


@pytest.mark.parametrize("chosen", ["process", "thread"])
def test_one_chosen_transport_runs_all_tests(chosen: str) -> None:
    assert variants(chosen) == variants(chosen, pytest.mark.every_transport.mark) == [chosen]


def test_files_that_use_spark_session_are_recognised() -> None:
    assert uses_spark_session("tests/spark/test_sink.py")
    assert uses_spark_session("tests/spark/test_source.py")
    assert not uses_spark_session("tests/spark/test_example_stop.py")
    assert not uses_spark_session("tests/unit/broker/config/test_config.py")


def test_files_that_share_a_jvm_stay_with_one_worker() -> None:
    assert shared_session("tests/spark/test_sink.py") == shared_session("tests/spark/test_source.py")
    assert shared_session("tests/clients/test_java_tools.py") == shared_session("tests/clients/test_acl_tools.py")
    assert shared_session("tests/spark/test_example_stop.py") == "tests/spark/test_example_stop.py"
    assert shared_session("tests/wire/test_codec.py") == shared_session("tests/wire/test_malformed.py")


def test_workers_run_spark_first_and_mix_waiting_with_busy_files() -> None:
    """With the longest file last, one worker would run alone at the end. With one kind alone a core would be idle."""
    waiting = ["spark/test_sink.py", "spark/test_example_stop.py", "faults/test_bank.py", "faults/test_churn.py"]
    busy = ["simulation/test_simulation.py", *(f"unit/test_{number}.py" for number in range(7))]
    items = [
        SimpleNamespace(nodeid=f"tests/{file}::{test}", get_closest_marker=lambda name: None)
        for file in (*busy[1:], *waiting[2:], busy[0], *waiting[1::-1])
        for test in ("test_b", "test_a")
    ]
    config = SimpleNamespace(option=SimpleNamespace(workers=4), getoption=lambda name, default=None: default)
    pytest_collection_modifyitems(config, items)
    nodes = [item.nodeid for item in items]
    assert [node.partition("::")[2] for node in nodes] == ["test_b", "test_a"] * 12
    files = [node.partition("/")[2].partition("::")[0] for node in nodes[::2]]
    assert [file for file in files if file in waiting] == waiting
    assert [file for file in files if file in busy] == busy
    assert files.index(waiting[0]) == 0
    assert [files.index(file) for file in waiting[1:]] == [3, 6, 9]
