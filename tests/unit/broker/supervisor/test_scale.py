"""The Scaler's steps against a scripted supervisor: what it waits for, and what a death in the middle does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from kproc.broker.role.roles import HANDLER, PROCESSOR
from kproc.broker.supervisor.scale_steps import Steps, TargetState
from tests.support.scale_rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    with closing(Rig()) as rig:
        yield rig


def test_scale_to_present_counts_is_done_at_once(rig: Rig) -> None:
    rig.want(processors=2, handlers=2)
    assert rig.settled == [{"counts": {"processors": 2, "handlers": 2}, "steps": [], "took_ms": 0}]


def test_wishes_that_come_in_the_middle_wait_until_it_is_done(rig: Rig) -> None:
    rig.want(processors=3)
    rig.want(processors=1)
    new = rig.roles(PROCESSOR)[2]
    assert rig.settled == []
    rig.ready(new)
    leaving = [role for role in rig.roles(PROCESSOR) if role.is_leaving]
    assert [role.agent.index for role in leaving] == [1, 2]
    rig.end(*leaving)
    assert [reply["counts"]["processors"] for reply in rig.settled] == [1, 1]
    assert [(step["from"], step["to"]) for step in rig.settled[0]["steps"]] == [(2, 3), (3, 1)]


def test_counts_set_while_others_cannot_be_reached_are_applied(rig: Rig) -> None:
    rig.want(processors=3)
    rig.set(num_network_threads="3", num_io_threads="3")
    rig.end(rig.roles(PROCESSOR)[2])
    new = rig.roles(HANDLER)[2:]
    assert len(new) == 1, "the wish that came meanwhile is another one"


def test_failing_part_does_not_prevent_others(rig: Rig) -> None:
    rig.want(processors=1, handlers=3)
    rig.end(rig.roles(HANDLER)[2])
    leaves = rig.roles(PROCESSOR)[1]
    assert rig.children.said(leaves, "leave")
    rig.end(leaves)
    assert "ended at once" in rig.settled[0]["error"]
    assert rig.settled[0]["counts"] == {"processors": 1, "handlers": 2}


def test_unreached_target_is_shown_while_it_holds(rig: Rig) -> None:
    rig.want(processors=3)
    told = rig.children.changes
    rig.end(rig.roles(PROCESSOR)[2])
    assert "ended at once" in (rig.scaler.problem or "")
    assert rig.children.changes > told, "whoever shows it is told"
    told = rig.children.changes
    rig.set(num_network_threads="2")
    rig.scaler.advance()
    assert rig.scaler.problem is None
    assert rig.children.changes > told, "also that it is over"


def test_handlers_unknown_to_routing_table_leave_again(rig: Rig) -> None:
    rig.want(handlers=3)
    new = rig.roles(HANDLER)[2]
    rig.ready(new)
    rig.children.asked.pop()[3]({"failure": [56, "the disk is full"]})
    rig.scaler.advance()
    assert rig.children.handler_count == 2, "a controller that starts now is told what holds"
    assert new.is_leaving
    new.is_drained = True
    new.users.clear()
    rig.scaler.advance()
    rig.end(new)
    assert "the disk is full" in rig.settled[0]["error"]
    assert rig.settled[0]["is_retriable"]
    assert rig.settled[0]["counts"] == {"processors": 2, "handlers": 2}


def test_ineffective_change_is_not_retried_endlessly(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(_wanted: TargetState) -> Steps:
        yield from ()

    monkeypatch.setattr(rig.scaler.changes, "change", nothing)
    rig.want(processors=3)
    assert "did not reach its target" in rig.settled[0]["error"]
    assert not rig.scaler.is_busy


def test_steps_that_never_wait_leave_the_supervisor_its_loop(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def endless(_wanted: TargetState) -> Steps:
        nonlocal asked
        while True:
            asked += 1
            assert asked < 10_000, "the supervisor hears of nothing any more"
            yield lambda: True

    monkeypatch.setattr(rig.scaler.changes, "change", endless)
    rig.want(processors=3)
    assert rig.scaler.is_busy
