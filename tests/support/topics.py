"""Topics for tests, each with a name of its own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping

from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.wait import wait_until

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
        )[name].result(timeout=30)

        def visible() -> bool:
            # Kafka answers CreateTopics before its brokers know the topic.
            found = admin.list_topics(name, timeout=10).topics[name]
            return (
                found.error is None
                and len([p for p in found.partitions.values() if p.leader >= 0]) == partitions
            )

        wait_until(visible, seconds=10, what=f"topic {name} in Metadata")
        return name
