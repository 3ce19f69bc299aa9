"""FaultWatch: the state of fault injection in status, metrics and log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kproc.broker.calls.own_operations import FaultRule
from kproc.broker.config import SETTINGS, Config
from kproc.broker.faults.rule_files import RuleFiles
from kproc.broker.observe.fault_watch import FaultWatch


def watch(path: Path, **settings: Any) -> FaultWatch:
    return FaultWatch(Config.build({"log.dirs": str(path), **settings}))


def test_disabled_injection_is_no_problem_whatever_files_exist(tmp_path: Path) -> None:
    RuleFiles(str(tmp_path)).add(FaultRule(action="close"), 1)
    found = watch(tmp_path)
    assert (found.describe(), found.problem) == ({"is_enabled": False, "rules": 0}, None)


def test_enabled_injection_is_a_problem_of_a_broker_of_serve(tmp_path: Path) -> None:
    found = watch(tmp_path, **{"kproc.faults.enable": "true"})
    assert found.describe() == {"is_enabled": True, "rules": 0}
    assert found.problem is not None
    assert "kproc.faults.enable=true" in found.problem


def test_rules_are_a_problem_of_every_broker(tmp_path: Path) -> None:
    settings = {"kproc.faults.enable": "true", "kproc.temporary.directory": str(tmp_path)}
    found = watch(tmp_path, **settings)
    assert found.problem is None
    files = RuleFiles(str(tmp_path))
    first = files.add(FaultRule(action="close"), 1)
    assert found.problem == "requests or writes fail on purpose: 1 fault rule is active"
    files.add(FaultRule(action="close"), 1)
    assert found.problem == "requests or writes fail on purpose: 2 fault rules are active"
    files.remove(first)
    assert found.describe() == {"is_enabled": True, "rules": 1}


def test_setting_cannot_change_while_the_broker_runs() -> None:
    assert not SETTINGS["kproc.faults.enable"].is_dynamic
