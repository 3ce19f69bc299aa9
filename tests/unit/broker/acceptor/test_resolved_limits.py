"""ResolvedLimits: limits hold before their host names are resolved, and each name is resolved once."""

from __future__ import annotations

import threading

import pytest

from kproc.broker.acceptor.connection_counts import ConnectionCounts
from kproc.broker.acceptor.connection_limits import ConnectionLimits, Resolve
from kproc.broker.acceptor.connection_quotas import ConnectionQuotas
from kproc.broker.acceptor.resolved_limits import ResolvedLimits
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.role.lookups import Lookups
from tests.support.wait import PATIENCE_SECONDS


class Rig:
    """Limits that name the hosts in the settings' `hosts`, and a name server that answers when `answers` is set."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked: list[str] = []
        self.in_force: list[dict[str, list[str]]] = []
        self.lookups = Lookups(lambda: 0, self._look_up)
        quotas = ConnectionQuotas(0, counts=ConnectionCounts(), limits=ConnectionLimits(), now_ns=0)
        self.limits = ResolvedLimits(self._limits_for, quotas, self.lookups)

    def _look_up(self, host: str) -> list[str]:
        self.asked.append(host)
        self.answers.wait(PATIENCE_SECONDS)
        if host == "nowhere.example":
            raise OSError("Name or service not known")
        return ["10.0.0.1"]

    def _limits_for(self, settings: DynamicSettings, resolve: Resolve) -> ConnectionLimits:
        self.in_force.append({host: resolve(host) for host in settings.overrides.get("hosts", "").split()})
        return ConnectionLimits()

    def apply(self, hosts: str, patience_s: float = 0.0) -> None:
        self.limits.apply(DynamicSettings({"hosts": hosts}), patience_s)

    def settle(self) -> None:
        while self.lookups.is_busy:
            self.lookups.wait(PATIENCE_SECONDS)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_limit_of_a_name_holds_once_it_is_resolved(rig: Rig) -> None:
    rig.apply("one.example 10.0.0.9")
    assert rig.in_force == [{"one.example": [], "10.0.0.9": ["10.0.0.9"]}]
    rig.answers.set()
    rig.settle()
    assert rig.in_force[-1] == {"one.example": ["10.0.0.1"], "10.0.0.9": ["10.0.0.9"]}
    assert rig.asked == ["one.example"]


def test_resolved_name_is_not_looked_up_again(rig: Rig) -> None:
    rig.answers.set()
    rig.apply("one.example", PATIENCE_SECONDS)
    rig.apply("one.example two.example", PATIENCE_SECONDS)
    rig.settle()
    assert rig.asked == ["one.example", "two.example"]
    rig.apply("two.example", PATIENCE_SECONDS)
    rig.apply("one.example", PATIENCE_SECONDS)
    rig.settle()
    assert rig.asked[2:] == ["one.example"], "a name that no limit mentions is not kept"


def test_name_added_during_a_look_up_is_looked_up_next(rig: Rig) -> None:
    rig.apply("one.example")
    rig.apply("one.example two.example")
    rig.answers.set()
    rig.settle()
    assert rig.asked == ["one.example", "two.example"]
    assert rig.in_force[-1] == {"one.example": ["10.0.0.1"], "two.example": ["10.0.0.1"]}


def test_failed_name_is_tried_at_the_next_change(rig: Rig) -> None:
    rig.answers.set()
    rig.apply("nowhere.example", PATIENCE_SECONDS)
    rig.settle()
    assert rig.asked == ["nowhere.example"]
    rig.apply("nowhere.example", PATIENCE_SECONDS)
    rig.settle()
    assert rig.asked == ["nowhere.example"] * 2
