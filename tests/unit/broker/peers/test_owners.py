"""One request to many owners: answers in order, once, also if an owner dies, rejects a part or is slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest

from kproc.broker.calls.calls import Answers, Lost
from kproc.broker.peers.owners import HandledCall, Join, OwnersRequest

HERE, THERE, ELSEWHERE = 0, 1, 2


class Asked(NamedTuple):
    """A call that another owner has not answered."""

    owner: int
    parts: list[str]
    on_reply: Callable[[Answers | Lost], None]

    def answer(self, *answers: str | None, known: int = 7) -> None:
        self.on_reply(Answers(list(answers), known))

    def lose(self) -> None:
        self.on_reply(Lost())


class Rig:
    """One Handler's services, and a question whose parts are names: their owners stand in `owners`."""

    handler_index = HERE

    def __init__(self, **owners: int) -> None:
        self.image = self.owner = self.transfers = self
        self.forwarded: dict[object, None] = {}
        self.version = 7
        self.owners = owners
        self.slow: dict[str, Callable[[str | None], None]] = {}  # Ours that are answered later.
        self.calls: list[Asked] = []
        self.served: list[str] = []
        self.waiting: list[tuple[int, Callable[[], None]]] = []
        self.done: list[list[str]] = []
        self.on_gone: list[Callable[[], None]] = []

    def when_image(self, version: int, on_image: Callable[[], None]) -> None:
        self.waiting.append((version, on_image))

    def learn(self, version: int, **owners: int) -> None:
        """The metadata gets here."""
        self.version = version
        self.owners.update(owners)
        for _, on_image in [each for each in self.waiting if each[0] <= version]:
            on_image()

    def route(self, part: str) -> int:
        return self.owners.get(part, HERE)

    def handle(self, part: str, on_answer: Callable[[str | None], None], _request: Any) -> None:
        self.served.append(part)
        if part in self.slow:
            self.slow[part] = on_answer
        else:
            on_answer(f"{part} here" if part in self.owners else f"{part} nowhere")

    def send(self, owner: int, parts: Sequence[str], on_reply: Callable[[Answers | Lost], None]) -> None:
        self.calls.append(Asked(owner, list(parts), on_reply))

    def unknown(self, part: str) -> str:
        return f"{part} lost"

    def when_gone(self, on_gone: Callable[[], None]) -> None:
        self.on_gone.append(on_gone)

    def gather(self, *parts: str) -> OwnersRequest[str, str]:
        services: Any = self
        return OwnersRequest(services, self, parts, self.done.append)

    def start(self, *parts: str) -> None:
        self.gather(*parts).start()


def test_answers_keep_request_order_in_any_order_of_replies() -> None:
    rig = Rig(a=THERE, b=HERE, c=ELSEWHERE, d=THERE)
    rig.start("a", "b", "c", "d")
    there, elsewhere = rig.calls
    assert (there[:2], elsewhere[:2]) == ((THERE, ["a", "d"]), (ELSEWHERE, ["c"]))
    elsewhere.answer("C")
    assert rig.done == []
    there.answer("A", "D")
    assert rig.done == [["A", "b here", "C", "D"]]


def test_request_of_own_partitions_sends_no_call() -> None:
    rig = Rig(a=HERE)
    rig.start("a", "unknown")
    assert (rig.done, rig.calls) == ([["a here", "unknown nowhere"]], [])


def test_nothing_asked_is_answered_once() -> None:
    rig = Rig()
    rig.start()
    assert rig.done == [[]]


def test_dead_owner_fails_only_its_parts_without_retry() -> None:
    rig = Rig(a=THERE, b=ELSEWHERE, c=THERE)
    rig.start("a", "b", "c")
    there, elsewhere = rig.calls
    there.lose()
    elsewhere.answer("B")
    assert rig.done == [["a lost", "B", "c lost"]]
    assert len(rig.calls) == 2


def test_transferred_part_is_requested_from_next_owner() -> None:
    rig = Rig(a=THERE, b=THERE)
    rig.start("a", "b")
    rig.calls.pop().answer(None, "B", known=8)
    assert (rig.calls, rig.done) == ([], [])
    rig.learn(8, a=ELSEWHERE)
    (asked,) = rig.calls
    assert asked[:2] == (ELSEWHERE, ["a"])
    asked.answer("A", known=8)
    assert rig.done == [["A", "B"]]


def test_a_part_that_came_to_us_meanwhile_is_answered_here() -> None:
    rig = Rig(a=THERE, b=THERE)
    rig.start("a", "b")
    rig.calls.pop().answer("A", None, known=8)
    rig.learn(8, b=HERE)
    assert (rig.done, rig.calls) == ([["A", "b here"]], [])


def test_owner_without_newer_metadata_is_not_asked_again() -> None:
    """Two images of one version are the same: it would give it back each time."""
    rig = Rig(a=THERE, b=THERE)
    rig.start("a", "b")
    rig.calls.pop().answer(None, "B", known=7)
    assert (rig.done, rig.waiting, rig.calls) == ([["a lost", "B"]], [], [])


def test_each_time_that_a_part_goes_on_takes_newer_metadata() -> None:
    rig = Rig(a=THERE)
    rig.start("a")
    rig.calls.pop().answer(None, known=8)
    rig.learn(8, a=ELSEWHERE)
    rig.calls.pop().answer(None, known=8)
    assert rig.done == [["a lost"]]


def test_part_waiting_for_transferred_log_goes_to_next_owner() -> None:
    rig = Rig(a=HERE, b=HERE)
    rig.slow["a"] = lambda _answer: None
    rig.start("a", "b")
    rig.owners["a"] = THERE
    rig.slow.pop("a")(None)
    rig.calls.pop().answer("A")
    assert rig.done == [["A", "b here"]]


def test_disconnected_client_gets_no_answer_or_new_request() -> None:
    rig = Rig(a=THERE, b=HERE)
    rig.slow["b"] = lambda _answer: None
    client: Any = rig
    rig.gather("a", "b").start_for(client)
    rig.on_gone.pop()()
    rig.calls.pop().answer("A")
    rig.slow["b"](None)
    assert (rig.done, rig.served, rig.calls) == ([], ["b"], [])


def test_answered_request_does_not_watch_for_disconnect() -> None:
    rig = Rig(a=HERE)
    client: Any = rig
    rig.gather("a").start_for(client)
    assert (rig.done, rig.on_gone) == ([["a here"]], [])


def test_owner_replies_once_with_all_answers_in_order() -> None:
    rig = Rig(a=HERE, b=HERE)
    rig.slow["a"] = lambda _answer: None
    replies: list[Answers | None] = []
    services: Any = rig
    handled: HandledCall[str | None] = HandledCall(services, [None, None], replies.append)
    for at, part in enumerate("ab"):
        rig.handle(part, partial(handled.on_answer, at), handled)
    assert replies == []
    rig.version = 9
    rig.slow["a"](None)
    assert replies == [Answers([None, "b here"], 9)]


def test_a_part_is_answered_once() -> None:
    join: Join[str] = Join(["?"], lambda _answers: None)
    join.add(0, "a")
    with pytest.raises(AssertionError, match="twice"):
        join.add(0, "b")
