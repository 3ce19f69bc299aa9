"""Calls about groups between Handlers: collected, in order, and not kept for a Handler that leaves."""

from __future__ import annotations

from types import NoneType, SimpleNamespace
from typing import Any

import pytest

from kproc.broker.calls.calls import Answers
from kproc.broker.peers.coordinator_call import Item, ItemOperation, ItemsRequest, OnOutcome
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.peers.owners import finish_calls_of_leavers
from kproc.common.containment import Containment
from kproc.common.errors import ErrorCode, KafkaError

LOADING = 9


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, OnOutcome[Any]]]:
    """An operation "wait" that answers when the test says so: (group id, where the outcome goes)."""
    kept: list[tuple[str, OnOutcome[Any]]] = []

    def wait(_coordinator: Any, group_id: str, _arguments: Any, on_outcome: OnOutcome[Any]) -> None:
        kept.append((group_id, on_outcome))

    operation = ItemOperation(GROUPS, "wait", NoneType, dict)
    operation.handler(wait)
    monkeypatch.setitem(GROUPS.operations, "wait", operation)
    return kept


@pytest.fixture
def services() -> Any:
    given_up: list[int] = []

    def coordinator(index: int) -> object:
        if index == LOADING:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return object()

    return SimpleNamespace(
        containment=Containment(),
        owner=SimpleNamespace(
            coordinators={
                GROUPS.topic: SimpleNamespace(
                    coordinator=coordinator,
                    park=lambda _index, on_wake: on_wake(),
                    reload=given_up.append,
                )
            },
            forwarded={},
        ),
        given_up=given_up,
        image=SimpleNamespace(handler_count=3, version=7),
    )


def call(services: Any, home: int, *items: tuple[int, str]) -> list[Any]:
    replies: list[Any] = []
    rows = [(partition, Item(group_id, None)) for partition, group_id in items]
    body = ItemsRequest(7, home, "wait", rows)
    GROUPS.handle_call(services, body, replies.append)
    return replies


def test_a_call_is_answered_once_with_all_outcomes_in_order(services: Any, waiting: list[Any]) -> None:
    replies = call(services, 1, (0, "a"), (LOADING, "b"), (1, "c"))
    for group_id, on_outcome in reversed(waiting):
        assert not replies
        on_outcome({"group": group_id})
    outcomes = [{"group": "a"}, int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), {"group": "c"}]
    assert replies == [Answers(outcomes, 7)]
    assert not services.owner.forwarded


def test_calls_of_leaving_handler_get_not_coordinator(services: Any, waiting: list[Any]) -> None:
    leaving, staying = call(services, 2, (0, "a")), call(services, 0, (0, "b"))
    services.image.handler_count = 2
    finish_calls_of_leavers(services)
    assert (leaving, staying) == ([Answers([ErrorCode.NOT_COORDINATOR], 7)], [])
    for _, on_outcome in waiting:
        on_outcome({})  # The join ends all the same; nobody is told twice.
    assert (len(leaving), staying) == (1, [Answers([{}], 7)])


def test_nothing_waits_for_a_handler_that_has_left_the_table(services: Any, waiting: list[Any]) -> None:
    assert call(services, 3, (0, "a")) == [Answers([ErrorCode.NOT_COORDINATOR], 7)]
    assert len(waiting) == 1


def test_a_surprise_is_the_outcome_of_its_item_alone(
    services: Any, waiting: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    operation = GROUPS.operations["wait"]
    wait = operation.handle

    def stumble(coordinator: Any, group_id: str, arguments: Any, on_outcome: OnOutcome[Any]) -> None:
        if group_id == "b":
            raise ZeroDivisionError
        wait(coordinator, group_id, arguments, on_outcome)

    operation.handler(stumble)
    replies = call(services, 1, (0, "a"), (0, "b"), (1, "c"))
    for _, on_outcome in waiting:
        on_outcome({})
    assert replies == [Answers([{}, ErrorCode.UNKNOWN_SERVER_ERROR, {}], 7)]
    assert "wait of group 'b' failed" in caplog.text
