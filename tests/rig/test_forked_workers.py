"""Workers that pytest forks: files stay together, and nothing is lost of a test that fails, dies or is the last."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.conftest import scope_of
from tests.support.broker import ROOT
from tests.support.forked_workers import describe_exit, group_by_scope

pytestmark = pytest.mark.long

CONFTEST = """
    import os, pytest
    from tests.support.budget import Budget
    from tests.support.forked_workers import ForkedWorkers

    def set_up_worker(config):
        os.environ["OF_THE_WORKER"] = str(os.getpid())

    def pytest_configure(config):
        config.pluginmanager.register(Budget(config), "budget")
        workers = ForkedWorkers(2, lambda node_id: node_id.partition("::")[0], set_up_worker)
        config.pluginmanager.register(workers)

    @pytest.fixture(scope="session")
    def shared():
        yield os.getpid()
        assert 0, "the end of the session's fixture fails"
"""
DIES = """
    import os, signal

    def test_before():
        assert os.environ["OF_THE_WORKER"] == str(os.getpid())

    def test_dies():
        os.kill(os.getpid(), signal.SIGKILL)

    def test_after(tmp_path):
        assert tmp_path.parent.name == "popen-gw2"
"""
FAILS = """
    import os, warnings

    def test_prints_and_fails(tmp_path):
        print("a line of the test that fails")
        assert tmp_path.name == "another"

    def test_warns():
        warnings.warn("a warning of the test", stacklevel=1)

    def test_subtests(subtests):
        for number in range(3):
            with subtests.test(number=number):
                assert number != 1

    def test_uses(shared):
        assert shared == os.getpid()
"""

STOPS = """
    import os, signal

    def test_interrupts_its_worker():
        os.kill(os.getpid(), signal.SIGINT)

    def test_dies_in_a_message(request):
        plugins = [plugin for _name, plugin in request.config.pluginmanager.list_name_plugin()]
        (connection,) = (each._connection for each in plugins if type(each).__name__ == "WorkerSide")
        os.write(connection.fileno(), (1 << 20).to_bytes(4, "big") + b"the first bytes")
        os.kill(os.getpid(), signal.SIGKILL)

    def test_last():
        pass
"""


def run_pytest(
    directory: Path, *arguments: str, files: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    files = files or {"test_a.py": DIES, "test_b.py": FAILS}
    for name, text in {"conftest.py": CONFTEST, **files}.items():
        (directory / name).write_text(textwrap.dedent(text))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={directory}", "-c", "/dev/null"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.run(
        [*command, *arguments, "."], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )


def test_failed_and_dead_tests_are_reported_whole(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--junitxml=report.xml", "-rA")
    assert done.returncode == 1, done.stderr
    for line in (
        "worker gw0 died while it ran this test: signal 9",
        "a line of the test that fails",
        "AssertionError: assert 'test_prints_and_fails0' == 'another'",
        "UserWarning: UserWarning: a warning of the test",
        "SUBFAILED(number='1') test_b.py::test_subtests - assert 1 != 1",
        "FAILED test_b.py::test_subtests - contains 1 failed subtest",
        "ERROR test_b.py::test_uses - AssertionError: the end of the session's fixture fails",
    ):
        assert line in done.stdout, done.stdout
    assert done.stdout.splitlines()[-1].strip("= ").partition(" in ")[0] == (
        "4 failed, 4 passed, 1 warning, 1 error"
    )
    suite = ElementTree.parse(tmp_path / "report.xml").getroot().find("testsuite")
    assert {case.get("name") for case in suite.iter("testcase")} == {
        "test_before", "test_dies", "test_after", "test_prints_and_fails", "test_warns", "test_subtests", "test_uses",
    }  # fmt: skip
    assert done.stderr == ""


def test_worker_that_stops_in_a_test_loses_no_other_test(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, files={"test_c.py": STOPS})
    assert done.returncode == 1, done.stderr
    for line in (
        "worker gw0 died while it ran this test: exit code 0, as after a KeyboardInterrupt",
        "worker gw1 died while it ran this test: signal 9",
    ):
        assert line in done.stdout, done.stdout
    assert done.stdout.splitlines()[-1].strip("= ").partition(" in ")[0] == "2 failed, 1 passed"


def test_run_ends_with_the_first_failure_if_asked(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "-x", "-q", "-k", "test_prints_and_fails or test_uses")
    assert done.returncode == 1
    assert "stopping after 1 failures" in done.stdout
    assert "test_uses" not in done.stdout
    assert done.stderr == ""


def test_files_of_one_jvm_stay_together() -> None:
    names = ["tests/spark/test_sink.py::a", "tests/api/test_fetch.py::b", "tests/spark/test_source.py::c"]
    assert [list(group) for group in group_by_scope(names, scope_of)] == [[0, 2], [1]]


def test_exit_of_a_worker_is_named() -> None:
    assert (describe_exit(9), describe_exit(3 << 8)) == ("signal 9", "exit code 3")
