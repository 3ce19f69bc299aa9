"""Parked Fetches of the fast path beside those of the general path."""

from __future__ import annotations

from functools import partial
from typing import Any

from kproc.broker.fetch.delayed_fetch import DelayedFetch
from kproc.broker.fetch.fetch_fast_path import FetchFastPath
from kproc.wire.header import ApiKey
from tests.support.fetch_frames import Asker, frame
from tests.support.handler_rig import Answer, HandlerRig, parts_of

KNOWN, GENERAL = 1, 50  # Connections.
END = 120


def is_of_fast_path(parked: DelayedFetch) -> bool:
    """Return True if the fast path has parked the request."""
    on_done = parked._on_done
    return isinstance(on_done, partial) and isinstance(on_done.func.__self__, FetchFastPath)  # type: ignore[attr-defined]


def operations(rig: HandlerRig, index: int = 0) -> list[bool]:
    """Of what is parked: whether its shape was known."""
    waiting = parts_of(rig.handler(index)).purgatory.deadlines
    return [is_of_fast_path(operation) for operation in waiting if isinstance(operation, DelayedFetch)]


def park(rig: HandlerRig, version: int, offset: int = END, **more: Any) -> None:
    """One of each kind waits at the end of the log."""
    more = {"max_wait_ms": 500, **more}
    ask = Asker(rig)
    ask.one(frame(rig, version, 30, **more), connection=KNOWN)
    assert ask.one(frame(rig, version, offset, **more), connection=KNOWN) == []
    assert ask.one(frame(rig, version, offset, **more), connection=GENERAL) == []
    assert sorted(operations(rig)) == [False, True]


def answers_alike(rig: HandlerRig, version: int) -> dict[str, Any] | None:
    """Return the partition's row, which must be the same in both responses. None while both wait."""
    answers: dict[int, Answer] = {each.connection_id: each for each in rig.processors[0].answers()}
    if not answers:
        return None
    assert set(answers) == {KNOWN, GENERAL}
    assert answers[KNOWN].frame == answers[GENERAL].frame
    assert operations(rig) == []
    row: dict[str, Any] = answers[KNOWN].fields(ApiKey.FETCH, version)["responses"][0]["partitions"][0]
    return row
