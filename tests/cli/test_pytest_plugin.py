"""The fixtures that kproc brings to other people's tests, in a pytest of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.inner_pytest import passed, run_pytest

pytestmark = pytest.mark.long

PARTITIONS = """
    import pytest
    from kproc.client import Client
    from kproc.wire.header import ApiKey

    SEEN = set()

    def partitions(broker, name):
        with Client.connect(broker.host, broker.port) as client:
            fields = {"topics": [{"topic_id": None, "name": name}], "allow_auto_topic_creation": False}
            [topic] = client.call_latest(ApiKey.METADATA, fields)["topics"]
        return topic["error_code"] or len(topic["partitions"])
"""


TESTS = (
    PARTITIONS
    + """
    @pytest.fixture(scope="session")
    def kproc_settings():
        return {"num.io.threads": 2, "kproc.transport": "thread"}

    @pytest.mark.parametrize("number", range(3))
    def test_new(kproc_broker, kproc_topic, number):
        assert kproc_topic not in SEEN
        assert partitions(kproc_broker, kproc_topic) == 1
        SEEN.add(kproc_topic)

    def test_gone(kproc_broker):
        assert len(SEEN) == 3
        assert {partitions(kproc_broker, name) for name in SEEN} == {3}  # UNKNOWN_TOPIC_OR_PARTITION

    @pytest.mark.kproc_topic(partitions=5, configs={"retention.ms": 1000})
    def test_marked(kproc_broker, kproc_topic):
        assert partitions(kproc_broker, kproc_topic) == 5

    @pytest.mark.kproc_topic(partition=2)
    def test_misspelled(kproc_topic):
        pass

    @pytest.mark.kproc_topic(configs={"no.such.setting": 1})
    def test_refused(kproc_topic):
        pass

    def test_failed(kproc_broker, monkeypatch):
        monkeypatch.setattr(kproc_broker, "log_text", lambda: "WARN the disk is full")
        assert kproc_broker is None

    def test_settings(kproc_broker):
        assert kproc_broker.settings["num.io.threads"] == 2
        assert {row["role"] for row in kproc_broker.processes} != set()

    @pytest.mark.parametrize("number", range(2))
    def test_clean(kproc_clean_broker, kproc_broker, number):
        assert kproc_clean_broker is kproc_broker
        assert partitions(kproc_broker, "same") == 3
        kproc_broker.create_topic("same")
        assert partitions(kproc_broker, "same") == 1

    def test_clean_with_topic(kproc_topic, kproc_clean_broker):
        assert partitions(kproc_clean_broker, "same") == 3
        assert partitions(kproc_clean_broker, kproc_topic) == 1

    @pytest.mark.kproc_fault("fail", "Metadata", error="LEADER_NOT_AVAILABLE", times=1)
    def test_faulted(kproc_broker):
        assert [partitions(kproc_broker, "absent") for _ in range(2)] == [5, 3]

    @pytest.mark.kproc_fault("delay", "Metadata", ms=1)
    class TestClass:
        @pytest.mark.kproc_fault("close", "Fetch", client_id="nobody", must_happen=False)
        def test_two_faults(self, kproc_broker):
            assert [row["rule"]["action"] for row in kproc_broker.faults.list()] == ["delay", "close"]
            partitions(kproc_broker, "absent")

    @pytest.mark.kproc_fault("close", "Fetch")
    def test_without_its_fault():
        pass

    @pytest.mark.kproc_fault("close", "Fetch")
    def test_failed_without_its_fault():
        raise KeyError("the test's own")

    @pytest.mark.kproc_fault("clear")
    def test_wrong_method():
        pass

    def test_faults_are_gone(kproc_broker):
        assert kproc_broker.faults.list() == []

    @pytest.mark.kproc_fault("close", "Fetch", must_happen=False)
    def test_stop(kproc_broker, kproc_topic):
        kproc_broker.stop()
    """
)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the output of one run of all these tests, with a line for the outcome of each."""
    done = run_pytest(tmp_path_factory.mktemp("inner"), TESTS, "-rA")
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def assert_passed(shown: str, *names: str) -> None:
    """Assert that these tests passed, set-up and end included."""
    for name in names:
        assert f"PASSED test_it.py::{name}\n" in shown, shown
        assert f"ERROR test_it.py::{name}" not in shown, shown


def test_pytest_plugin_topic_is_new_in_each_test(shown: str) -> None:
    assert_passed(shown, "test_new[0]", "test_new[1]", "test_new[2]", "test_gone", "test_marked")


def test_pytest_plugin_clean_broker_is_empty_in_each_test(shown: str) -> None:
    assert_passed(shown, "test_clean[0]", "test_clean[1]", "test_clean_with_topic")


def test_pytest_plugin_reads_kproc_settings_fixture(shown: str) -> None:
    assert_passed(shown, "test_settings")


def test_pytest_plugin_reports_invalid_topic_setting(shown: str) -> None:
    assert "ERROR test_it.py::test_refused" in shown, shown
    assert "Unknown topic config name: no.such.setting" in shown
    text = "test_misspelled: the marker kproc_topic takes partitions= and configs= by name, not partition"
    assert text in shown


def test_pytest_plugin_shows_the_log_with_a_failed_test(shown: str) -> None:
    report = shown.partition("_ test_failed _")[2].partition("PASSES")[0]
    assert "Last log lines of kproc_broker" in report, shown
    assert "WARN the disk is full" in report.partition("Last log lines")[2], shown


def test_pytest_plugin_tolerates_stopped_broker(shown: str) -> None:
    assert_passed(shown, "test_stop")


def test_pytest_plugin_adds_and_removes_marked_faults(shown: str) -> None:
    assert_passed(shown, "test_faulted", "TestClass::test_two_faults", "test_faults_are_gone")


def test_pytest_plugin_fails_a_test_without_its_fault(shown: str) -> None:
    assert "FAILED test_it.py::test_without_its_fault - " in shown, shown
    assert re.search(r"the fault never happened: <fault rule \d+: .*> has acted on 0 requests of 0", shown), (
        shown
    )
    assert "FAILED test_it.py::test_failed_without_its_fault - KeyError: " in shown, shown
    assert "test_wrong_method: kproc_fault takes one of fail, delay, " in shown, shown


def test_pytest_plugin_starts_a_broker_per_xdist_worker(tmp_path: Path):
    source = """
    import pytest

    @pytest.mark.parametrize("number", range(4))
    def test_it(kproc_broker, kproc_topic, number, worker_id, tmp_path_factory):
        shared = tmp_path_factory.getbasetemp().parent / f"port-{kproc_broker.port}"
        owner = shared.read_text() if shared.exists() else worker_id
        assert owner == worker_id
        shared.write_text(worker_id)
    """
    passed(run_pytest(tmp_path, source, "-n", "2"), 4)
