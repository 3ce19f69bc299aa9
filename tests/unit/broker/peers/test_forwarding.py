"""Requests about many partitions: answers in order, whichever Handler owns them, dies, or is still getting its log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kproc.broker.calls.calls import Answers, Call, Lost
from kproc.broker.peers import forwarding
from kproc.broker.peers.registered_calls import REGISTERED_CALLS
from kproc.broker.request.context import PartitionMoving
from kproc.common.errors import ErrorCode, KafkaError

NAME = "test_operation"
HERE, THERE = 0, 1


class Partition:
    def __init__(self, index: int, owner: int) -> None:
        self.index, self.owner = index, owner


class Stub:
    """One Handler's services: even partitions are ours, odd ones another's; from 6 on there are none."""

    handler_index = HERE

    def __init__(self) -> None:
        self.image = self.owner = self.partitions = self.peers = self.transfers = self
        self.version = 7
        self.owners = {index: index % 2 for index in range(6)}
        self.on_image: list[tuple[int, Callable[[], None]]] = []
        self.errors: dict[int, KafkaError] = {}
        self.on_ready: list[Callable[[bool], None]] = []
        self.calls: list[tuple[int, str, Any, Callable[[Answers | Lost], None]]] = []

    def partition(self, topic: str, index: int) -> Partition | None:
        return Partition(index, self.owners[index]) if index in self.owners else None

    def get(self, topic: str, partition: Partition) -> None:
        if partition.index in self.errors:
            raise self.errors[partition.index]

    def when_ready(self, key: tuple[str, int], on_ready: Callable[[bool], None]) -> None:
        self.errors.pop(key[1])
        self.on_ready.append(on_ready)

    def when_image(self, version: int, on_image: Callable[[], None]) -> None:
        self.on_image.append((version, on_image))

    def ask(self, owner: int, call: Call[Any, Any], body: Any, on_reply: Callable[..., None]) -> None:
        self.calls.append((owner, call.name, body, on_reply))


@pytest.fixture
def services() -> Iterator[Stub]:
    def serve(services, owned, partition, wanted, on_answer):
        on_answer({"at": partition.index, "wanted": wanted})

    def failed(index, code, message):
        return {"at": index, "code": code}

    forwarding.operation(NAME, failed, Any)(serve)
    yield Stub()
    del forwarding.OPERATIONS[NAME], REGISTERED_CALLS[NAME]


def ask(services: Stub, *indexes: int) -> list[list[dict[str, Any]]]:
    done: list[list[dict[str, Any]]] = []
    forwarding.gather(services, NAME, [("t", index, f"w{index}") for index in indexes], done.append)
    return done


def test_answers_come_once_all_are_there_and_in_order(services):
    done = ask(services, 5, 0, 3, 9, 2)
    assert done == []
    ((owner, name, body, on_reply),) = services.calls
    assert (owner, name, body) == (
        THERE,
        NAME,
        forwarding.PartitionsRequest(7, [("t", 5, "w5"), ("t", 3, "w3")]),
    )
    on_reply(Answers([{"at": 5}, {"at": 3}], 7))
    assert done == [
        [
            {"at": 5},
            {"at": 0, "wanted": "w0"},
            {"at": 3},
            {"at": 9, "code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
            {"at": 2, "wanted": "w2"},
        ]
    ]


def test_nothing_asked_is_answered_at_once(services):
    assert ask(services) == [[]]


def test_dead_owner_gives_a_retriable_error(services):
    done = ask(services, 1, 0)
    services.calls[0][3](Lost())
    assert done[0][0] == {"at": 1, "code": ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_a_log_that_cannot_be_opened_costs_only_its_own_answer(services):
    services.errors[2] = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    assert ask(services, 0, 2) == [
        [{"at": 0, "wanted": "w0"}, {"at": 2, "code": ErrorCode.KAFKA_STORAGE_ERROR}]
    ]


@pytest.mark.parametrize(
    ("is_ready", "expected"),
    [(True, {"at": 2, "wanted": "w2"}), (False, {"at": 2, "code": ErrorCode.NOT_LEADER_OR_FOLLOWER})],
)
def test_a_log_on_its_way_here_is_waited_for(services, is_ready, expected):
    services.errors[2] = PartitionMoving(("t", 2), -1, -1)
    done = ask(services, 2, 0)
    assert done == []
    services.on_ready[0](is_ready)
    assert done == [[expected, {"at": 0, "wanted": "w0"}]]


def test_another_handlers_call_is_answered_the_same_way(services):
    services.errors[4] = PartitionMoving(("t", 4), -1, -1)
    replies: list[Answers] = []
    parts = [("t", 4, "w4"), ("t", 1, "w1"), ("t", 0, "w0")]
    REGISTERED_CALLS[NAME].handle(services, forwarding.PartitionsRequest(7, parts), replies.append)
    assert replies == []
    services.on_ready[0](True)
    assert replies == [Answers([{"at": 4, "wanted": "w4"}, None, {"at": 0, "wanted": "w0"}], 7)]


def test_rejected_part_goes_to_new_owner_after_newer_metadata(services):
    """Whoever was asked knows it first: nobody is asked before we know it, too."""
    done = ask(services, 1, 3)
    services.calls.pop()[3](Answers([None, {"at": 3}], 8))
    ((version, on_image),) = services.on_image
    assert (version, services.calls, done) == (8, [], [])
    services.version, services.owners[1] = 8, 2
    on_image()
    ((owner, _, body, on_reply),) = services.calls
    assert (owner, body) == (2, forwarding.PartitionsRequest(8, [("t", 1, "w1")]))
    on_reply(Answers([{"at": 1}], 8))
    assert done == [[{"at": 1}, {"at": 3}]]


def test_transferred_log_is_requested_from_next_owner(services):
    services.errors[2] = PartitionMoving(("t", 2), -1, -1)
    done = ask(services, 2)
    services.owners[2] = THERE
    services.on_ready[0](True)
    services.calls[0][3](Answers([{"at": 2}], 7))
    assert done == [[{"at": 2}]]
