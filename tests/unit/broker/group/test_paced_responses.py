"""PacedResponses: a large group's responses are sent in their order, at most 64 in a duty cycle."""

from __future__ import annotations

from kproc.broker.group.paced_responses import RESPONSES_AT_ONCE, PacedResponses


class Rig:
    """Responses whose results are collected. `cycles` counts the requested later calls."""

    def __init__(self, count: int) -> None:
        self.sent: list[int] = []
        self.cycles = 0
        self.paced = PacedResponses(self._send_later)
        for number in range(count):
            self.paced.enqueue(self.sent.append, number)

    def _send_later(self) -> None:
        self.cycles += 1


def test_small_group_is_answered_at_once() -> None:
    rig = Rig(RESPONSES_AT_ONCE)
    rig.paced.send_soon()
    assert (rig.sent, rig.cycles) == (list(range(RESPONSES_AT_ONCE)), 0)


def test_large_group_is_answered_in_later_duty_cycles() -> None:
    count = 2 * RESPONSES_AT_ONCE + 1
    rig = Rig(count)
    rig.paced.send_soon()
    assert (rig.sent, rig.cycles) == ([], 1), "the decision has used this duty cycle"
    rig.paced.enqueue(rig.sent.append, count)
    rig.paced.send_soon()
    assert (rig.sent, rig.cycles) == ([], 1), "a later call is already requested"
    sizes = []
    while len(rig.sent) <= count:
        before = len(rig.sent)
        rig.paced.send()
        sizes.append(len(rig.sent) - before)
    assert sizes == [RESPONSES_AT_ONCE, RESPONSES_AT_ONCE, 2]
    assert rig.sent == list(range(count + 1))
    assert rig.cycles == 3


def test_resignation_sends_all_responses_in_steps() -> None:
    rig = Rig(3)
    assert len(list(rig.paced.send_all())) == 3
    assert rig.sent == [0, 1, 2]
