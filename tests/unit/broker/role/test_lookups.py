"""Host names are looked up beside the loop, so that no role waits for a name server that does not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kproc.broker.acceptor.connection_limits import ConnectionLimits
from kproc.broker.acceptor.resolved_limits import ResolvedLimits
from kproc.broker.role.handoff import pack_address
from kproc.broker.role.lookups import Found, Lookups, addresses_of
from kproc.common.clock import ManualClock
from tests.support.acceptor_rig import AcceptorRig
from tests.support.shortages import no_thread

SECONDS = 120.0


class Names:
    """A name server: what it knows, and whether it answers at all."""

    def __init__(self) -> None:
        self.known = {"one.example": ["10.0.0.1"], "two.example": ["10.0.0.2", "fd00::2"]}
        self.answers = threading.Event()
        self.answers.set()

    def look_up(self, host: str) -> list[str]:
        self.answers.wait(SECONDS)
        if host == "huge.example":
            raise MemoryError
        if host not in self.known:
            raise OSError("Name or service not known")
        return self.known[host]


class Rig:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.names = Names()
        self.lookups = Lookups(self.clock.now_ns, self.names.look_up)
        self.heard: list[Found] = []

    def ask(self, *hosts: str) -> None:
        self.lookups.resolve(hosts, self.heard.append)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.names.answers.set()
    made.lookups.close()


def test_thread_survives_a_look_up_without_memory(rig: Rig) -> None:
    rig.ask("huge.example", "one.example")
    rig.lookups.wait(SECONDS)
    assert rig.heard == [{"huge.example": [], "one.example": ["10.0.0.1"]}]


def test_names_are_answered_in_the_callers_loop(rig: Rig) -> None:
    rig.ask("one.example", "nowhere.example")
    assert rig.heard == []
    rig.lookups.wait(SECONDS)
    assert rig.heard == [{"one.example": ["10.0.0.1"], "nowhere.example": []}]
    assert not rig.lookups.is_busy


def test_lookup_without_answer_is_abandoned(rig: Rig) -> None:
    rig.names.answers.clear()
    rig.ask("one.example")
    rig.ask("two.example")
    rig.lookups.wait(0)
    assert rig.heard == []
    rig.clock.advance_ms(5_000)
    rig.lookups.work()
    assert rig.heard == [{"one.example": []}, {"two.example": []}]
    rig.names.answers.set()
    rig.ask("two.example")
    rig.lookups.wait(SECONDS)
    assert rig.heard[2:] == [{"two.example": ["10.0.0.2", "fd00::2"]}], "what came too late is nobody's"


def test_excess_name_look_ups_are_answered_with_nothing(rig: Rig) -> None:
    rig.names.answers.clear()
    for _ in range(65):
        rig.ask("one.example")
    assert rig.heard == [{"one.example": []}]


def test_look_up_without_thread_is_answered_and_later_work(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control group limits the threads for a while."""
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    rig.ask("one.example")
    assert rig.heard == [{"one.example": []}]
    monkeypatch.undo()
    rig.ask("one.example")
    rig.lookups.wait(SECONDS)
    assert rig.heard[1:] == [{"one.example": ["10.0.0.1"]}]


def test_limits_of_a_name_hold_as_soon_as_it_is_known() -> None:
    """The Acceptor goes on meanwhile, and asks one question at a time."""
    names = Names()
    with ExitStack() as stack:
        rig = AcceptorRig(stack)
        acceptor = rig.acceptor
        lookups = acceptor._lookups = Lookups(rig.clock.now_ns, names.look_up)
        stack.callback(names.answers.set)
        hosts = ["one.example", "10.0.0.9"]
        acceptor._limits = ResolvedLimits(
            lambda _settings, resolve: ConnectionLimits(
                address_max_overrides={pack_address(each): 7 for host in hosts for each in resolve(host)}
            ),
            acceptor.quotas,
            lookups,
        )

        def limited() -> set[bytes]:
            return set(acceptor.quotas.limits.address_max_overrides)

        one, nine = pack_address("10.0.0.1"), pack_address("10.0.0.9")
        names.answers.clear()
        rig.change()
        assert limited() == {nine}
        for processor in rig.processors:
            processor.report()
        rig.connect(1)
        rig.step(2)
        assert sum(rig.taken()) == 1, "clients do not wait for it"
        assert acceptor.next_deadline_ms() <= 51
        names.answers.set()
        lookups.wait(SECONDS)
        assert limited() == {one, nine}
        names.answers.clear()
        rig.change()
        assert limited() == {one, nine}
        assert not lookups.is_busy, "known names are not asked for with every change"
        hosts += ["nowhere.example"]
        rig.change()
        hosts += ["two.example"]
        rig.change()
        assert limited() == {one, nine}
        names.answers.set()
        while lookups.is_busy:
            lookups.wait(SECONDS)
        assert limited() == {one, nine, pack_address("10.0.0.2"), pack_address("fd00::2")}
        names.known["nowhere.example"] = ["10.0.0.3"]
        rig.change()
        assert pack_address("10.0.0.3") in limited(), "what failed is tried again"


def test_host_name_with_nul_has_no_addresses() -> None:
    """The system's resolver stops at the NUL and would find `localhost`."""
    with pytest.raises(OSError, match="NUL character"):
        addresses_of("localhost\0.example")
