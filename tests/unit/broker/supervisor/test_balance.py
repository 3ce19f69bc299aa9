"""Which connections a rebalance moves: from those above the mean to those below it."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from kproc.broker.role.roles import processor_id
from kproc.broker.supervisor.balance import _moves
from kproc.broker.supervisor.roles_table import ManagedRole
from kproc.broker.supervisor.supervisor_operations import SupervisorOperations
from tests.support.cases import in_one_test


def moves(loads: list[float], held: list[int]) -> list[tuple[int, int, int]]:
    roles = [ManagedRole(processor_id(index)) for index in range(len(loads))]
    by_load = {role.agent: load for role, load in zip(roles, loads, strict=True)}
    by_count = {role.agent: count for role, count in zip(roles, held, strict=True)}
    return [(one.agent.index, two.agent.index, count) for one, two, count in _moves(roles, by_load, by_count)]


@in_one_test(
    ("held", "wanted"),
    [
        ([90, 0, 0], [(0, 1, 30), (0, 2, 30)]),
        ([60, 60, 0], [(0, 2, 20), (1, 2, 20)]),
        ([30, 30, 30], []),
        ([2, 1], []),
        ([0, 0], []),
    ],
)
def test_connections_are_made_even(held: list[int], wanted: list[tuple[int, int, int]]) -> None:
    assert moves([float(count) for count in held], held) == wanted


def test_busy_connections_count_by_what_they_do() -> None:
    # 10 connections that make 10,000 requests a second beside 1000 that make none: five of the ten go.
    assert moves([10_000.0, 0.0], [10, 1000]) == [(0, 1, 5)]


def test_the_only_connection_of_a_busy_processor_stays() -> None:
    assert moves([10_000.0, 0.0], [1, 0]) == []


def test_plan_of_a_rebalance_moves_nothing() -> None:
    """The planned moves are those of `Balancer.plan`, and neither `advance` nor a Processor hears of them."""
    roles = [ManagedRole(processor_id(index)) for index in range(2)]
    scaler, children = Mock(), Mock()
    scaler.changes.balancer.plan.return_value = [(roles[0], roles[1], 5)]
    children.table.pools.return_value = ["clients"]
    operations = SupervisorOperations(children, scaler, Mock())
    replies: list[dict[str, Any]] = []
    operations.handle("plan_rebalance", {}, replies.append)
    assert replies == [{"moves": [{"from": 0, "to": 1, "connections": 5}]}]
    assert not operations.is_busy
    assert not children.send_request.called
