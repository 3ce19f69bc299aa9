"""Group commit: fdatasync in threads of its own, for many waiting appends at once.

While one round of fdatasync runs, appends go on and new requests wait; the next round syncs for all of them. A round
covers what is dirty at its start, so an append waits for at most two rounds. The Handler starts the thread after the
fork; it only ever calls fdatasync on descriptors that it is given.

The logs of a round are synced side by side: the file system's journal commits once for all that wait for it, while one
after the other each waits for a commit of its own. Their order says nothing: what must be durable before something else
is written waits for the end of its round.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from kproc.broker.storage.log import Log, SyncPoint

logger = logging.getLogger(__name__)

# Of one Handler. They are started for a round that has more logs than there are threads, and end when there is none.
_HELPERS_MAX: Final = 7
_IDLE_S: Final = 5.0

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
    """One per Handler. `wake` is called from its thread when a round is done."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._rounds: queue.SimpleQueue[Sequence[tuple[Log, SyncPoint]] | None] = queue.SimpleQueue()
        self._done: deque[Outcome] = deque()
        # What of the round in work nobody has begun with, and a token for each that a helper has ended.
        self._shares: queue.SimpleQueue[tuple[Log, SyncPoint] | None] = queue.SimpleQueue()
        self._helped: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._helpers: list[threading.Thread] = []  # As many as the largest round of late had use for.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, points: Sequence[tuple[Log, SyncPoint]]) -> None:
        self._rounds.put(points)

    def take(self) -> list[Outcome]:
        done = self._done
        return [done.popleft() for _ in range(len(done))]

    def close(self) -> None:
        """Wait for the round in work, then join the threads."""
        self._rounds.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (points := self._rounds.get()) is not None:
            self._sync(points)
            self._wake()
        for _ in self._helpers:
            self._shares.put(None)
        for helper in self._helpers:
            helper.join()

    def _sync(self, points: Sequence[tuple[Log, SyncPoint]]) -> None:
        """Sync a round, by as many threads as have a log each."""
        shares, count = self._shares, len(points) - 1
        for share in points[1:]:
            shares.put(share)
        if count:
            self._helpers = [each for each in self._helpers if each.is_alive()]
        while len(self._helpers) < min(count, _HELPERS_MAX):
            name = f"{self._thread.name}-{len(self._helpers) + 1}"
            self._helpers.append(threading.Thread(target=self._help, name=name, daemon=True))
            self._helpers[-1].start()
        self._done.append(sync_one(*points[0]))
        for _ in range(count):
            try:
                left = shares.get_nowait()
            except queue.Empty:
                self._helped.get()
            else:
                assert left is not None
                self._done.append(sync_one(*left))

    def _help(self) -> None:
        """Take shares until there has been none for a while. One that nobody takes the round's own thread takes."""
        while True:
            try:
                share = self._shares.get(timeout=_IDLE_S)
            except queue.Empty:
                return
            if share is None:
                return
            self._done.append(sync_one(*share))
            self._helped.put(None)
