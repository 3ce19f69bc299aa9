"""HandlerWatches: the request lines of several Handlers, of which one hangs or dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import OwnAnswer
from kproc.broker.calls.own_operations import ReadMonitor
from kproc.broker.observe.request_lines import IDLE_NS, WATCHES_MAX, HandlerWatches, RequestLine, WatchedLines
from kproc.common.clock import NS_PER_MS, ManualClock


class Rig:
    """Two Handlers that reply when they are told to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.asked: list[tuple[int, Callable[[WatchedLines | Lost], None]]] = []
        self.answers: list[OwnAnswer] = []
        self.watches = HandlerWatches(self.clock.now_ns, lambda: 2, self._ask)

    def _ask(self, index: int, _call: Any, _body: Any, on_reply: Callable[[Any], None]) -> None:
        self.asked.append((index, on_reply))

    def read(self, watch: str = "w", *, is_last: bool = False) -> None:
        self.watches.read(ReadMonitor(watch=watch, is_last=is_last), self.answers.append)

    def reply(self, index: int, reply: WatchedLines | Lost) -> None:
        (at,) = [at for at, (asked, _) in enumerate(self.asked) if asked == index]
        self.asked.pop(at)[1](reply)

    def advance_ms(self, ms: int) -> None:
        self.clock.advance_ms(ms)
        self.watches.expire(self.clock.now_ns())

    def times(self) -> list[int]:
        """Return the times of the lines of the last answer."""
        return [row["time_ms"] for row in self.answers[-1].result["lines"]]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def lines(*times_ms: int, lost: int = 0) -> WatchedLines:
    made = [
        RequestLine(time_ms, "Fetch", 4, [], [], 0, "", "c", "::1", 1, 1, 1, "Send", "") for time_ms in times_ms
    ]
    return WatchedLines(lines=made, lost=lost)


def test_lines_of_all_handlers_are_joined_by_time(rig: Rig) -> None:
    rig.read()
    rig.reply(1, lines(1, 3, lost=4))
    assert not rig.answers
    assert rig.watches.is_waiting
    rig.reply(0, lines(2, lost=5))
    assert rig.times() == [1, 2, 3]
    assert rig.answers[0].result["lost"] == 9
    assert rig.answers[0].result["silent"] == []
    assert not rig.watches.is_waiting


def test_hung_handler_is_silent_and_its_lines_come_later(rig: Rig) -> None:
    """It is called once, however often the client calls, and its lines are in the next answer after its reply."""
    rig.read()
    rig.reply(1, lines(1))
    rig.advance_ms(999)
    assert not rig.answers
    rig.advance_ms(1)
    assert rig.times() == [1]
    assert rig.answers[-1].result["silent"] == [0]
    rig.read()
    rig.reply(1, lines(5))
    assert len(rig.asked) == 1
    rig.reply(0, lines(2))
    assert rig.times() == [2, 5]
    assert rig.answers[-1].result["silent"] == []


def test_handler_that_dies_is_not_waited_for(rig: Rig) -> None:
    rig.read()
    rig.reply(0, Lost())
    rig.reply(1, lines(7))
    assert rig.times() == [7]


def test_refusal_of_a_handler_is_the_answer(rig: Rig) -> None:
    rig.read()
    rig.reply(0, WatchedLines(refused="no more"))
    rig.reply(1, lines(7))
    assert rig.answers[-1].error == "no more"


def test_watches_are_limited_and_end_unread(rig: Rig) -> None:
    for number in range(WATCHES_MAX + 1):
        rig.read(str(number))
    assert rig.answers == [OwnAnswer(error="8 monitors run already, which is the limit", is_retriable=True)]
    rig.advance_ms(1000 + IDLE_NS // NS_PER_MS)
    assert len(rig.answers) == 1 + WATCHES_MAX
    rig.read("one more")
    assert len(rig.answers) == 1 + WATCHES_MAX


def test_last_calls_make_room_for_other_watches(rig: Rig) -> None:
    rig.read("never begun", is_last=True)
    assert rig.times() == []
    for number in range(WATCHES_MAX + 1):
        rig.read(str(number), is_last=False)
        for index in (0, 1):
            rig.reply(index, lines())
        rig.read(str(number), is_last=True)
        for index in (0, 1):
            rig.reply(index, lines(number))
        assert rig.answers[-1].error is None
        assert rig.times() == [number] * 2
