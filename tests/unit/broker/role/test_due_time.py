"""DueTime: the earliest time counts, and a press asks for the timers at once."""

from __future__ import annotations

from kproc.broker.role.due_time import DueTime


def test_earliest_due_time_counts_until_a_press() -> None:
    due = DueTime()
    assert due.ns == 0, "the first duty cycle runs the timers"
    due.ns = 500
    due.bring_forward(700)
    assert due.ns == 500
    due.bring_forward(300)
    assert due.ns == 300
    due.press()
    due.bring_forward(100)
    assert due.ns == 0
