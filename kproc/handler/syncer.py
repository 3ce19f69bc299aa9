"""Group commit: fdatasync in a thread of its own, for many waiting appends at once.

While one round of fdatasync runs, appends go on and new requests wait; the next round syncs for all of them. A round
covers what is dirty at its start, so an append waits for at most two rounds. The Handler starts the thread after the
fork; it only ever calls fdatasync on descriptors that it is given.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from kproc.storage.log import Log, SyncPoint

logger = logging.getLogger(__name__)

# What a round did to one log: its sync point, and the error that fdatasync gave, if any.
Outcome = tuple[Log, SyncPoint, OSError | None]


class Syncer(Protocol):
    """Runs rounds of fdatasync; the Handler collects the outcomes."""

    def submit(self, points: Sequence[tuple[Log, SyncPoint]]) -> None: ...
    def take(self) -> list[Outcome]: ...
    def close(self) -> None: ...


def sync_one(log: Log, point: SyncPoint) -> Outcome:
    """Sync one point, in any thread; return the outcome for the log's owner."""
    try:
        log.run_sync(point)
    except OSError as error:
        return (log, point, error)
    return (log, point, None)


class InlineSyncer:
    """Syncs at once, in the caller: for the inline transport, where nothing may run beside the test."""

    def __init__(self) -> None:
        self._done: list[Outcome] = []

    def submit(self, points: Sequence[tuple[Log, SyncPoint]]) -> None:
        self._done += [sync_one(log, point) for log, point in points]

    def take(self) -> list[Outcome]:
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Nothing to close."""


class ThreadSyncer:
    """One thread per Handler. `wake` is called from it when a round is done."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._rounds: queue.SimpleQueue[Sequence[tuple[Log, SyncPoint]] | None] = queue.SimpleQueue()
        self._done: deque[Outcome] = deque()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, points: Sequence[tuple[Log, SyncPoint]]) -> None:
        self._rounds.put(points)

    def take(self) -> list[Outcome]:
        done = self._done
        return [done.popleft() for _ in range(len(done))]

    def close(self) -> None:
        """Wait for the round in work, then join the thread."""
        self._rounds.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (points := self._rounds.get()) is not None:
            for log, point in points:
                self._done.append(sync_one(log, point))
            self._wake()
