"""The roles of a start, and the pairs of roles that have a link."""

from __future__ import annotations

import pytest

from kproc.broker.role.roles import (
    CLEANER,
    CONTROL_ACCEPTOR,
    CONTROL_PROCESSOR,
    CONTROLLER,
    acceptor_id,
    handler_id,
    processor_id,
)
from kproc.broker.supervisor.topology import CLOSE_WAVES, WRITERS, find_link, initial_roles
from kproc.broker.transport.agent import AgentId
from tests.support.cases import in_one_test

RING_BYTES = 12345


@in_one_test(
    ("one", "other"),
    [
        (processor_id(0), CONTROLLER),
        (CONTROL_PROCESSOR, handler_id(0)),
        (CONTROL_PROCESSOR, CLEANER),
        (processor_id(0), processor_id(1)),
        (acceptor_id(0), processor_id(0)),
        (CONTROL_ACCEPTOR, CONTROL_PROCESSOR),
    ],
)
def test_find_link_between_roles_without_a_link_returns_none(one: AgentId, other: AgentId) -> None:
    assert find_link(one, other, RING_BYTES) is None
    assert find_link(other, one, RING_BYTES) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (processor_id(0), handler_id(1)),
        (CONTROL_PROCESSOR, CONTROLLER),
        (CONTROLLER, CLEANER),
        (CLEANER, handler_id(0)),
    ],
)
def test_find_link_names_the_same_first_end_in_both_orders(first: AgentId, second: AgentId) -> None:
    link = find_link(first, second, RING_BYTES)
    assert link is not None
    assert (link.first, link.second) == (first, second)
    assert find_link(second, first, RING_BYTES) == link


def test_find_link_has_ring_bytes_of_processor_and_handler() -> None:
    link = find_link(processor_id(0), handler_id(0), RING_BYTES)
    assert link is not None
    assert link.capacity == RING_BYTES
    internal = find_link(handler_id(0), handler_id(1), RING_BYTES)
    assert internal is not None
    assert internal.capacity != RING_BYTES


def test_initial_roles_are_in_start_order_with_their_pools() -> None:
    acceptors = [acceptor_id(1), acceptor_id(0), CONTROL_ACCEPTOR]
    assert initial_roles({"": 1, "fast": 2}, 2, acceptors) == [
        (CLEANER, ""),
        (handler_id(0), ""),
        (handler_id(1), ""),
        (processor_id(0), ""),
        (processor_id(1), "fast"),
        (processor_id(2), "fast"),
        (CONTROL_PROCESSOR, ""),
        (acceptor_id(0), ""),
        (acceptor_id(1), ""),
        (CONTROL_ACCEPTOR, ""),
    ]


def test_close_waves_have_every_role_once_and_the_cleaner_last() -> None:
    closing = [role for wave in CLOSE_WAVES for role in wave]
    assert sorted(closing) == sorted({"acceptor", "processor", "handler", "controller", "cleaner"})
    assert closing[-1] == CLEANER.role
    assert set(WRITERS) == {"handler", "controller", "cleaner"}
