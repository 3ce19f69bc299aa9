"""A Handler's partition without its Handler: a log, and sync rounds that end when a test says so."""

from __future__ import annotations

from collections.abc import Callable

from kproc.broker.storage.log import Log


class OwnedLog:
    """The part of an OwnedPartition that a CoordinatorLog uses."""

    def __init__(self, log: Log) -> None:
        self.key = (log.state.topic, log.state.partition)
        self.log = log
        self.published_offset = 0
        self.waiting: list[tuple[int, Callable[[int], None]]] = []

    def after_append(self) -> None:
        self.published_offset = self.log.state.end_offset

    def after_start_moved(self) -> None:
        """Do nothing, because no row is published here."""

    def when_synced(self, offset: int, on_done: Callable[[int], None]) -> None:
        self.waiting.append((offset, on_done))

    def sync(self, code: int = 0) -> None:
        """End the sync rounds that were waited for, with an error if `code` is not 0."""
        if not code:
            self.log.durability.sync()
        waiting, self.waiting = self.waiting, []
        for _, on_done in waiting:
            on_done(code)
