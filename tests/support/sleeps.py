"""The lengths of agents' sleeps, on a clock that does not move by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.ipc.wait import Sleeper

Poll = Callable[[float], list[Any]]


def note_sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every agent looks instead of sleeping; the milliseconds that it wanted, when nothing was there to be done."""
    wanted: list[float] = []

    def wait(
        sleeper: Sleeper, poll: Poll, timeout_s: float, has_work: Callable[[], bool], since_ns: int = 0
    ) -> list[Any]:
        del sleeper, since_ns
        if has_work():
            return []
        wanted.append(round(timeout_s * 1000))
        return poll(0)

    monkeypatch.setattr(Sleeper, "wait", wait)
    return wanted
