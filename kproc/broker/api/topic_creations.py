"""TopicCreations: which internal topics of streams groups a Handler may ask the controller to create now (KIP-1071).

Each heartbeat of a group without its internal topics would create them again: up to 1,000 topics from a request of 100
bytes. Kafka's AutoTopicCreationManager therefore remembers the topics in creation, and recent failures. Each Handler
has one such object for its clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kproc.broker.streams.topology import StreamsTopic

# The time after a failure in which the topic is not requested again. Kafka waits for two heartbeat intervals, 10 s by
# default; a shorter time lets the group continue soon after somebody has solved the problem.
BACKOFF_NS: Final = 1_000_000_000
# Limit of remembered failures, as in Kafka. Above it the oldest failure is discarded.
FAILURES_MAX: Final = 1_000
# Longest reason that is remembered, because a reason can repeat a value of 32 KB that the client has sent.
REASON_CHARACTERS_MAX: Final = 249
# Limit of the groups whose missing topics are remembered. A topology has at most 1,000 topics.
GROUPS_MAX: Final = 16

Topics = tuple[StreamsTopic, ...]


class TopicCreations:
    """The internal topics that are being created, and the reasons of recent failures."""

    def __init__(self) -> None:
        self._in_creation: set[str] = set()
        # Topic -> end of its back-off, reason. The ends rise from the first to the last entry.
        self._failures: dict[str, tuple[int, str]] = {}
        # Group id -> hash of its missing topics, and the topics. The most recently used group is the last.
        self._missing: dict[str, tuple[int, Topics]] = {}

    def known_hash(self, group_id: str) -> int:
        """Return the hash of the group's missing topics that this Handler has stored, or 0 if it has stored none."""
        return self._missing[group_id][0] if group_id in self._missing else 0

    def remember(self, group_id: str, missing_hash: int, topics: Topics) -> Topics:
        """Store and return a group's missing topics. `missing_hash` is 0 if no topic is missing.

        `topics` is empty if the coordinator found, by the hash, that this Handler has stored them.
        The result is empty if the Handler has discarded them, because more than 16 other groups came in between. The
        response to the next heartbeat then has them again.
        """
        known = self._missing.pop(group_id, (0, ()))
        if not missing_hash:
            return ()
        if not topics and known[0] == missing_hash:
            topics = known[1]
        if topics:
            self._missing[group_id] = missing_hash, topics
            if len(self._missing) > GROUPS_MAX:
                del self._missing[next(iter(self._missing))]
        return topics

    def start(self, topics: Iterable[StreamsTopic], now_ns: int) -> list[StreamsTopic]:
        """Return those topics that are neither being created nor in the back-off after a failure.

        They now count as in creation. The caller must create all of them, and pass them to `finish` afterwards.
        """
        self._discard_expired(now_ns)
        chosen = [
            topic
            for topic in topics
            if topic.name not in self._in_creation and topic.name not in self._failures
        ]
        self._in_creation.update(topic.name for topic in chosen)
        return chosen

    def finish(self, topics: Sequence[StreamsTopic], failures: Mapping[str, str], now_ns: int) -> None:
        """Record that the creation of topics has ended. `failures`: the reason for each topic that was not created."""
        self._in_creation.difference_update(topic.name for topic in topics)
        for name, reason in failures.items():
            self._failures.pop(name, None)
            self._failures[name] = now_ns + BACKOFF_NS, reason[:REASON_CHARACTERS_MAX]
        while len(self._failures) > FAILURES_MAX:
            del self._failures[next(iter(self._failures))]

    def failures_of(self, topics: Iterable[StreamsTopic], now_ns: int) -> dict[str, str]:
        """Return, by topic name, the reasons of creations that failed within the last BACKOFF_NS."""
        self._discard_expired(now_ns)
        failures = self._failures
        return {topic.name: failures[topic.name][1] for topic in topics if topic.name in failures}

    def _discard_expired(self, now_ns: int) -> None:
        while self._failures:
            name = next(iter(self._failures))
            if self._failures[name][0] > now_ns:
                return
            del self._failures[name]
