"""Which phases of a test a worker reports to the main process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import few_reports
from tests.support.cases import in_one_test
from tests.support.few_reports import OWN_LINE_SECONDS, FewReports, merge


def phase(when: str, outcome: str = "passed", seconds: float = 0.01, shared: float = 0.0) -> Any:
    return SimpleNamespace(
        when=when, passed=outcome == "passed", outcome=outcome, duration=seconds, cpu_seconds=seconds,
        shared_cpu_seconds=shared, keywords={"test_a": 1},
    )  # fmt: skip


def test_passed_test_has_one_report_with_all_of_its_seconds() -> None:
    (report,) = merge([phase("setup"), phase("call"), phase("teardown", shared=2.0)])
    assert (report.when, report.keywords) == ("call", {})
    assert (report.duration, report.cpu_seconds, report.shared_cpu_seconds) == (
        pytest.approx(0.03), pytest.approx(0.03), 2.0,
    )  # fmt: skip


@in_one_test(
    ("outcomes", "sent"),
    [
        (("passed", "failed", "passed"), ["call"]),
        (("passed", "passed", "failed"), ["call", "teardown"]),
        (("failed", "passed"), ["setup"]),
        (("skipped", "passed"), ["setup"]),
        (("skipped", "failed"), ["setup", "teardown"]),
    ],
)
def test_phases_that_did_not_pass_are_reported(outcomes: tuple[str, ...], sent: list[str]) -> None:
    whens = ("setup", "call", "teardown") if len(outcomes) == 3 else ("setup", "teardown")
    kept = merge([phase(when, outcome) for when, outcome in zip(whens, outcomes, strict=True)])
    assert [each.when for each in kept] == sent
    assert all(each.keywords for each in kept if not each.passed)


def test_long_setup_has_a_report_of_its_own() -> None:
    kept = merge([phase("setup", seconds=2 * OWN_LINE_SECONDS), phase("call"), phase("teardown")])
    assert [each.when for each in kept] == ["setup", "call"]


def test_worker_runs_each_test_between_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    hook = SimpleNamespace(
        pytest_runtest_logstart=lambda **_: calls.append("start"),
        pytest_runtest_logreport=lambda report: calls.append(report.when),
        pytest_runtest_logfinish=lambda **_: calls.append("finish"),
    )
    item: Any = SimpleNamespace(ihook=hook, nodeid="a", location=("a", 1, "a"))

    def run(_item: Any, *, log: bool, nextitem: None) -> list[Any]:
        calls.append(f"run, log={log}")
        return [phase("setup"), phase("call"), phase("teardown")]

    monkeypatch.setattr(few_reports, "runtestprotocol", run)
    assert FewReports().pytest_runtest_protocol(item, None) is True
    assert calls == ["start", "run, log=False", "call", "finish"]
