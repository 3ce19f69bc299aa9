"""Topics for tests, each with a name of its own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.support.wait import PATIENCE_SECONDS, wait_until

_numbers = itertools.count()


def fresh_name(stem: str = "t") -> str:
    """A topic name that no other test and no other run on the same broker uses."""
    return f"{stem}-{os.getpid()}-{next(_numbers)}"


class TopicFactory:
    """Creates topics on one broker."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def __call__(
        self, *, partitions: int = 1, configs: Mapping[str, str] | None = None, stem: str = "t"
    ) -> str:
        """The name of a new topic, once Metadata shows a leader for each partition."""
        name = fresh_name(stem)
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        admin.create_topics(
            [NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(configs or {}))]
        )[name].result(timeout=PATIENCE_SECONDS)

        def visible() -> bool:
            # Kafka answers CreateTopics before its brokers know the topic.
            found = admin.list_topics(name, timeout=PATIENCE_SECONDS).topics[name]
            return (
                found.error is None
                and len([p for p in found.partitions.values() if p.leader >= 0]) == partitions
            )

        wait_until(visible, seconds=10, what=f"topic {name} in Metadata")
        return name


def wait_for_markers(bootstrap: str, topic: str, *, partitions: int = 1, seconds: float = 60.0) -> None:
    """Wait until no transaction of the topic is undecided: every last stable offset is the high watermark.

    A broker answers EndTxn when the decision is durable, and writes the markers afterwards. A reader of committed
    records sees none of the transaction before its marker.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}

    def ends(isolation: IsolationLevel) -> list[int]:
        found = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=PATIENCE_SECONDS)
        return [each.result().offset for each in found.values()]

    def is_decided() -> bool:
        stable = ends(IsolationLevel.READ_COMMITTED)
        written = ends(IsolationLevel.READ_UNCOMMITTED)
        assert stable == written, f"last stable offsets {stable}, high watermarks {written}"
        return True

    wait_until(is_decided, seconds=seconds, what=f"the markers of all transactions of {topic}")
