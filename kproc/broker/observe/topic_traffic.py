"""TopicTraffic: bytes, records and fetches by topic, for the operation `topics`. Runs in the controller.

Handlers count in their own memory, and the controller requests the counts of all of them. It does so only when a client
asks, so the counts cost an idle broker nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from kproc.broker.calls.call_links import AskHandler
from kproc.broker.calls.calls import Call, FromImage, Lost, Reply
from kproc.broker.cluster.image import ClusterImage
from kproc.common.clock import NS_PER_S

_PATIENCE_NS: Final = 2 * NS_PER_S
COUNTERS: Final = ("bytes_in", "records_in", "bytes_out", "fetches")
OnTraffic = Callable[[dict[str, Any]], None]


class TrafficReport(Reply):
    """The counts of one Handler since its start: by topic, in the order of COUNTERS."""

    traffic: dict[str, list[int]]
    long_polls: int = 0
    """Clients' Fetch and ShareFetch requests that wait for records now."""
    syncing: int = 0
    """Logs whose sync is requested or in progress now."""


TOPIC_TRAFFIC: Final[Call[FromImage, TrafficReport]] = Call("topic_traffic", FromImage, TrafficReport)


class TopicTraffic:
    """Collects the Handlers' counts. Requests of clients that come meanwhile share one collection."""

    def __init__(self, now_ns: Callable[[], int], image: Callable[[], ClusterImage], ask: AskHandler) -> None:
        self._now_ns = now_ns
        self._image = image
        self._ask = ask
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
        image = self._image()
        # Send no second request to a Handler that hangs, or its queue would grow with every client that asks.
        free = [index for index in range(image.handler_count) if index not in self._asked]
        self._asked.update(free)
        for index in free:
            self._ask(index, TOPIC_TRAFFIC, FromImage(image.version), partial(self._on_reply, index))

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
        if not self._asked:
            self._respond()

    def expire(self, now_ns: int) -> None:
        """Respond without the Handlers that have not replied in time."""
        if self._waiting and now_ns >= self._until_ns:
            self._respond()

    def _respond(self) -> None:
        existing = self._image().topics_by_name
        rows = [
            {"name": name, **dict(zip(COUNTERS, counts, strict=True))}
            for name, counts in self._sums.items()
            if name in existing
        ]
        waiting, self._waiting = self._waiting, []
        for on_traffic in waiting:
            on_traffic(
                {
                    "topics": rows,
                    "silent": sorted(self._asked),
                    "long_polls": self._long_polls,
                    "syncing": self._syncing,
                }
            )
