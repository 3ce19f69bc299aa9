"""TopicTraffic: bytes, records and fetches by topic, for the operation `topics`. Runs in the controller.

Handlers count in their own memory, and the controller requests the counts of all of them. It does so only when a client
asks, so the counts cost an idle broker nothing. It also asks the cleaner if it is busy, for `wait_until_idle`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from kproc.broker.calls.call_links import AskHandler
from kproc.broker.calls.calls import Call, FromImage, Lost, Reply
from kproc.broker.calls.cleaner_calls import SHOW_CLEANER_ACTIVITY, CleanerActivity
from kproc.broker.cluster.image import ClusterImage
from kproc.common.clock import NS_PER_S

_PATIENCE_NS: Final = 2 * NS_PER_S
COUNTERS: Final = ("bytes_in", "records_in", "bytes_out", "fetches")
OnTraffic = Callable[[dict[str, Any]], None]
AskCleaner = Callable[[Call[Any, Any], Any, Callable[[Any], None]], None]


class TrafficReport(Reply):
    """The counts of one Handler since its start: by topic, in the order of COUNTERS."""

    traffic: dict[str, list[int]]
    long_polls: int = 0
    """Clients' Fetch and ShareFetch requests that wait for records now."""
    syncing: int = 0
    """Logs whose sync is requested, due or in progress now."""


TOPIC_TRAFFIC: Final[Call[FromImage, TrafficReport]] = Call("topic_traffic", FromImage, TrafficReport)


class TopicTraffic:
    """Collects the Handlers' counts. Requests of clients that come meanwhile share one collection."""

    def __init__(
        self,
        now_ns: Callable[[], int],
        image: Callable[[], ClusterImage],
        ask: AskHandler,
        ask_cleaner: AskCleaner,
    ) -> None:
        self._now_ns = now_ns
        self._image = image
        self._ask = ask
        self._ask_cleaner = ask_cleaner
        self._is_cleaner_asked = False  # True until the cleaner replies.
        # True while this collection waits for the cleaner. A cleaner that hangs delays only the first collection.
        self._waits_for_cleaner = False
        self._cleaner: CleanerActivity | None = None  # None if the cleaner has not replied.
        self._asked: set[int] = set()  # Handlers that have not replied.
        self._sums: dict[str, list[int]] = {}
        self._long_polls = self._syncing = 0
        self._waiting: list[OnTraffic] = []
        self._until_ns = 0

    @property
    def is_collecting(self) -> bool:
        """True while a client waits. `expire` must then be called several times a second."""
        return bool(self._waiting)

    def request(self, on_traffic: OnTraffic) -> None:
        """Call `on_traffic` with the counts of all Handlers, after 2 s without those that have not replied."""
        self._waiting.append(on_traffic)
        if len(self._waiting) > 1:
            return
        self._until_ns = self._now_ns() + _PATIENCE_NS
        self._sums = {}
        self._long_polls = self._syncing = 0
        self._cleaner = None
        image = self._image()
        # Send no second request to a Handler that hangs, or its queue would grow with every client that asks.
        free = [index for index in range(image.handler_count) if index not in self._asked]
        self._waits_for_cleaner, self._is_cleaner_asked = not self._is_cleaner_asked, True
        self._asked.update(free)
        for index in free:
            self._ask(index, TOPIC_TRAFFIC, FromImage(image.version), partial(self._on_reply, index))
        if self._waits_for_cleaner:
            self._ask_cleaner(SHOW_CLEANER_ACTIVITY, FromImage(image.version), self._on_activity)

    def _on_reply(self, index: int, reply: TrafficReport | Lost) -> None:
        self._asked.discard(index)
        if not self._waiting:
            return
        if isinstance(reply, TrafficReport):
            self._long_polls += reply.long_polls
            self._syncing += reply.syncing
            for topic, counts in reply.traffic.items():
                sums = self._sums.setdefault(topic, [0] * len(COUNTERS))
                for at, count in enumerate(counts):
                    sums[at] += count
        self._respond_if_complete()

    def _on_activity(self, reply: CleanerActivity | Lost) -> None:
        self._is_cleaner_asked = self._waits_for_cleaner = False
        if self._waiting:
            self._cleaner = reply if isinstance(reply, CleanerActivity) else None
            self._respond_if_complete()

    def _respond_if_complete(self) -> None:
        if not self._asked and not self._waits_for_cleaner:
            self._respond()

    def expire(self, now_ns: int) -> None:
        """Respond without the Handlers, and the cleaner, that have not replied in time."""
        if self._waiting and now_ns >= self._until_ns:
            self._respond()

    def _respond(self) -> None:
        existing = self._image().topics_by_name
        rows = [
            {"name": name, **dict(zip(COUNTERS, counts, strict=True))}
            for name, counts in self._sums.items()
            if name in existing
        ]
        activity = self._cleaner
        cleaner = activity and {
            "checks_retention": activity.checks_retention,
            "compacts": activity.compacts,
        }
        waiting, self._waiting = self._waiting, []
        for on_traffic in waiting:
            on_traffic(
                {
                    "topics": rows,
                    "silent": sorted(self._asked),
                    "long_polls": self._long_polls,
                    "syncing": self._syncing,
                    "cleaner": cleaner,
                }
            )
