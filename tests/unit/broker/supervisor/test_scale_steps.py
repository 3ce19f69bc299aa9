"""The steps by which Processors and Handlers are added and removed, and what a death in the middle does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from kproc.broker.role.control_requests import LOST
from kproc.broker.role.roles import CONTROLLER, HANDLER, PROCESSOR, acceptor_id, handler_id, processor_id
from tests.support.scale_rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    with closing(Rig()) as rig:
        yield rig


def test_new_processors_serve_once_they_are_ready(rig: Rig) -> None:
    rig.want(processors=4)
    new = rig.roles(PROCESSOR)[2:]
    assert not rig.children.said(rig.table[acceptor_id(0)], "targets"), "nobody may hand them a client yet"
    rig.ready(new[0])
    assert rig.settled == []
    rig.ready(new[1])
    assert rig.settled[0]["counts"] == {"processors": 4, "handlers": 2}
    (told,) = rig.children.said(rig.table[acceptor_id(0)], "targets")
    assert len(told["peers"]) == 4


def test_leaving_processors_migrate_connections_to_others(rig: Rig) -> None:
    rig.want(processors=1)
    stays, leaves = rig.roles(PROCESSOR)
    assert rig.children.migrations == [("processor-1", "processor-0")]
    assert rig.children.said(leaves, "leave") == [{"do": "leave", "targets": (stays.agent,)}]
    rig.scaler.advance()
    assert not rig.children.said(leaves, "close"), "it still has connections"
    leaves.is_drained = True
    rig.scaler.advance()
    assert rig.children.said(leaves, "close")
    rig.end(leaves)
    assert rig.settled[0]["counts"] == {"processors": 1, "handlers": 2}


def test_leaving_processor_that_dies_is_a_change_that_is_done(rig: Rig) -> None:
    rig.want(processors=1)
    rig.end(rig.roles(PROCESSOR)[1])
    assert rig.settled[0]["counts"] == {"processors": 1, "handlers": 2}


def test_leaving_processor_awaiting_restart_is_discarded(rig: Rig) -> None:
    role = rig.roles(PROCESSOR)[1]
    role.child, role.restart_at_ns = None, 1
    rig.want(processors=1)
    assert rig.children.discarded == ["processor-1"]
    assert role.restart_at_ns == 0, "nobody starts it again"
    assert rig.settled[0]["counts"] == {"processors": 1, "handlers": 2}


def test_processor_that_keeps_clients_is_closed_finally(rig: Rig) -> None:
    rig.want(processors=1)
    leaves = rig.roles(PROCESSOR)[1]
    rig.children.clock.advance_ms(61_000)
    rig.scaler.advance()
    assert rig.children.said(leaves, "close")


def test_new_handlers_are_counted_once_they_are_ready(rig: Rig) -> None:
    rig.want(handlers=3)
    assert rig.children.asked == []
    rig.ready(rig.roles(HANDLER)[2])
    ((agent, what, body, on_reply),) = rig.children.asked
    assert (agent, what, body) == ("controller-0", "set_handler_count", {"count": 3})
    assert rig.children.handler_count == 3, "a controller that starts now must be told"
    on_reply({"count": 3})
    rig.scaler.advance()
    assert rig.settled[0]["counts"] == {"processors": 2, "handlers": 3}


def test_controller_that_dies_is_asked_again(rig: Rig) -> None:
    rig.want(handlers=1)
    controller = rig.table[CONTROLLER]
    controller.child, controller.is_ready = None, False
    rig.children.asked.pop()[3](LOST)
    rig.scaler.advance()
    assert rig.children.asked == []
    rig.children.begin(controller)
    rig.scaler.advance()
    assert rig.children.asked[0][1] == "set_handler_count"


def test_leaving_handler_stays_while_anybody_uses_it(rig: Rig) -> None:
    rig.want(handlers=1)
    leaves = rig.roles(HANDLER)[1]
    assert not leaves.is_leaving, "until it is counted no more it owns partitions"
    rig.children.asked.pop()[3]({"count": 1})
    rig.scaler.advance()
    assert leaves.is_leaving
    leaves.is_drained = True
    leaves.users.discard(processor_id(0))
    rig.scaler.advance()
    assert not rig.children.said(leaves, "close")
    rig.children.end(rig.table[processor_id(1)])  # A user that dies uses nothing.
    rig.scaler.advance()
    assert rig.children.said(leaves, "close")
    rig.end(leaves)
    assert rig.table.get(handler_id(1)) is None


def test_leaving_handler_awaiting_restart_is_discarded_last(rig: Rig) -> None:
    """Until then a successor would be asked for nothing, and waited for."""
    rig.children.begin(rig.table.add(handler_id(2)))
    dead, lives = rig.roles(HANDLER)[1:]
    dead.child, dead.restart_at_ns = None, 1
    rig.want(handlers=1)
    rig.children.asked.pop()[3]({"count": 1})
    rig.scaler.advance()
    assert dead.restart_at_ns == 0, "nobody starts it again"
    assert len(rig.children.said(rig.table[processor_id(0)], "handler_leaving")) == 2
    assert rig.children.discarded == []
    lives.is_drained = True
    lives.users.clear()
    rig.scaler.advance()
    assert rig.children.discarded == ["handler-1"]
    rig.end(lives)
    assert rig.settled[0]["counts"] == {"processors": 2, "handlers": 1}


def test_role_that_cannot_be_started_undoes_its_change(rig: Rig) -> None:
    rig.children.cannot_start = True
    rig.want(processors=3)
    assert "no memory" in rig.settled[0]["error"]
    assert rig.children.discarded == ["processor-2"], "whoever has heard of it forgets it"
    assert rig.settled[0]["counts"] == {"processors": 2, "handlers": 2}
    rig.scaler.advance()
    assert len(rig.roles(PROCESSOR)) == 2, "it is not tried again by itself"


def test_new_role_that_ends_at_once_takes_the_others_with_it(rig: Rig) -> None:
    rig.want(processors=4)
    first, second = rig.roles(PROCESSOR)[2:]
    rig.ready(first)
    rig.end(second)
    assert rig.children.said(first, "close")
    rig.end(first)
    assert "ended at once" in rig.settled[0]["error"]
    assert len(rig.roles(PROCESSOR)) == 2
    rig.want(processors=3)
    assert len(rig.roles(PROCESSOR)) == 3, "another wish is another try"
