"""Group commit: fdatasync in separate threads, one round for many waiting appends.

While a round runs, appends go on and new requests wait. The next round syncs for all of them. A round covers the
records that were appended before its start, so an append waits for at most two rounds. The Handler starts the thread
after the fork. The thread only calls fdatasync on the descriptors of the round.

The logs of a round are synced in parallel, because the file system's journal then commits once for all of them. One
after the other, each log would wait for its own commit. The order of logs in a round has no meaning: if something must
be durable before something else is written, the writer waits for the end of the round.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from kproc.broker.storage.log import Log, SyncPoint

logger = logging.getLogger(__name__)

# Helper threads of one Handler. A round with more logs than threads starts them; they end after 5 s without work.
_HELPERS_MAX: Final = 7
_IDLE_S: Final = 5.0

# The result of a round for one log: its sync point, and the error of fdatasync or None.
Outcome = tuple[Log, SyncPoint, OSError | None]


def sync_one(log: Log, point: SyncPoint) -> Outcome:
    """Sync a log up to one sync point, in any thread. Return the outcome for the log's owner."""
    try:
        log.durability.run_sync(point)
    except OSError as error:
        return (log, point, error)
    # For example a MemoryError. Without an outcome, the round would never end, and every later request of this Handler
    # with acks=all would wait for ever.
    except Exception as error:  # noqa: BLE001 - contained: the log counts as not synced
        return (log, point, OSError(f"a sync failed: {error!r}"))
    return (log, point, None)


class InlineSyncer:
    """Syncs at once in the calling thread. For the inline transport, where nothing may run beside the test."""

    def __init__(self) -> None:
        self._done: list[Outcome] = []

    def submit(self, points: Sequence[tuple[Log, SyncPoint]]) -> None:
        self._done += [sync_one(log, point) for log, point in points]

    def collect(self) -> list[Outcome]:
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Do nothing: there is no thread."""


class ThreadSyncer:
    """Runs rounds in a thread with helpers. One per Handler. The thread calls `wake` at the end of each round."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._rounds: queue.SimpleQueue[Sequence[tuple[Log, SyncPoint]] | None] = queue.SimpleQueue()
        self._done: deque[Outcome] = deque()
        # Logs of the running round that no thread has started with. None ends a helper.
        self._shares: queue.SimpleQueue[tuple[Log, SyncPoint] | None] = queue.SimpleQueue()
        # The sync thread gets one token from here for each log that a helper has finished.
        self._helped: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Helpers end when they are idle, so the largest recent round determines their number.
        self._helpers: list[threading.Thread] = []
        self._is_short = False  # The last start of a helper failed, and was logged.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, points: Sequence[tuple[Log, SyncPoint]]) -> None:
        self._rounds.put(points)

    def collect(self) -> list[Outcome]:
        done = self._done
        return [done.popleft() for _ in range(len(done))]

    def close(self) -> None:
        """Wait for the running round, then join the threads."""
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
        """Sync a round in parallel, with at most one thread per log."""
        shares, count = self._shares, len(points) - 1
        for share in points[1:]:
            shares.put(share)
        if count:
            self._helpers = [each for each in self._helpers if each.is_alive()]
        while len(self._helpers) < min(count, _HELPERS_MAX):
            name = f"{self._thread.name}-{len(self._helpers) + 1}"
            helper = threading.Thread(target=self._help, name=name, daemon=True)
            try:
                helper.start()
            except RuntimeError as error:
                # The user or the control group has as many threads as it may have. This thread must not end, because
                # every later round would wait for ever: it syncs one log after the other.
                if not self._is_short:
                    logger.warning(
                        "syncing with %d helper threads, because no more can start: %s",
                        len(self._helpers),
                        error,
                    )
                self._is_short = True
                break
            self._helpers.append(helper)
            self._is_short = False
        self._done.append(sync_one(*points[0]))
        for _ in range(count):
            # Sync a log that no helper has started with. If there is none, wait until a helper has finished one.
            try:
                left = shares.get_nowait()
            except queue.Empty:
                self._helped.get()
            else:
                assert left is not None
                self._done.append(sync_one(*left))

    def _help(self) -> None:
        """Sync logs until there has been none for 5 s. The round's own thread syncs what no helper takes."""
        while True:
            try:
                share = self._shares.get(timeout=_IDLE_S)
            except queue.Empty:
                return
            if share is None:
                return
            self._done.append(sync_one(*share))
            self._helped.put(None)


# The Handler submits a round and collects its outcomes in a later duty cycle.
Syncer = InlineSyncer | ThreadSyncer
