"""The state of a sequence so far, and the choices of its next requests. One seed decides everything."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.differential.steps import Step
from tests.differential.symbols import Ref, no_topic_id

_TIMEOUT_MS = 30_000
_ODDLY = 0.08
# The settings of a sequence's first topics, by their names.
KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "compact": {"cleanup.policy": "compact"},
    "late": {"message.timestamp.type": "LogAppendTime"},
    "small": {"max.message.bytes": "300"},
    "gzip": {"compression.type": "gzip"},
    "bare": {"compression.type": "uncompressed"},
    "bound": {"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": "60000"},
    "both": {"cleanup.policy": "compact,delete"},
    "lz4": {"compression.type": "lz4"},
    "tiny": {"segment.bytes": "1048576", "segment.ms": "100000"},
}
BAD_NAMES = ["~none", "~none", "~a b", ".", "..", "", "x" * 250, "~a/b", "é"]


class Scene:
    """The state of a sequence while it is made."""

    def __init__(self, seed: str, versions: dict[str, list[int]]) -> None:
        self.random = random.Random(seed)
        self.pick = self.random.choice
        self.versions = versions
        self.steps: list[Step] = []
        kinds = self.random.sample(list(KINDS), self.pick((1, 1, 2, 3)))
        self.topics = {f"~{kind}": self.pick((1, 2, 2, 3)) for kind in kinds}  # Partitions of each.
        self.sequences: dict[tuple[str, str, int], tuple[int, int]] = {}  # Epoch and next one, by producer.
        self.transactional: dict[
            str, Any
        ] = {}  # Producers with such an id, as themes/transactions.py has them.
        self.sessions: list[list[Any]] = []  # Of Fetch: name, epoch, connection.
        self.members_known: set[int] = set()
        self.share_epochs: dict[int, int] = {}  # The next epoch of each member's share session.
        self.queue: Any = None  # The share partition of themes/queues.py.
        self.spread: list[Any] = []  # Those of themes/spread.py, and the next epoch of each open session.
        self.spread_epochs: dict[int, int] = {}
        # The brokers compress to sizes that differ by a few bytes: no request may depend on them.
        self.is_compressing = not {"gzip", "lz4", "bare"}.isdisjoint(kinds)
        self.instances = {member: f"i{member}" for member in range(4) if self.chance(0.25)}
        # One for all members, because with equal votes Kafka compares the orders of two different hash maps. If these
        # differ, each heartbeat raises the group's epoch.
        self.assignor = self.pick(("uniform", "range"))
        rows = [
            {
                "name": name,
                "num_partitions": count,
                "replication_factor": 1,
                "configs": [{"name": key, "value": value} for key, value in KINDS[name[1:]].items()],
            }
            for name, count in self.topics.items()
        ]
        self.add("create_topics", {"topics": rows})

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def usually(self, usual: list[Any], *odd: Any) -> Any:
        """One of the usual values, now and then an odd one."""
        return self.pick(odd) if odd and self.chance(_ODDLY) else self.pick(usual)

    def version(self, api: str) -> int:
        """Any that both brokers serve, the newest more often."""
        versions = self.versions[api]
        return self.pick(versions) if self.chance(0.8) else versions[-1]

    def add(
        self,
        api: str,
        body: dict[str, Any],
        *,
        version: int | None = None,
        connection: int | None = None,
        may_wait: bool = False,
        is_unanswered: bool = False,
        learning: dict[tuple[str, Any], str] | None = None,
    ) -> None:
        """One request more."""
        if connection is None:
            connection = self.pick((0, 0, 0, 1))
        if version is None:
            version = self.version(api)
        body = {"timeout": _TIMEOUT_MS, **body}
        self.steps.append(Step(connection, api, version, body, may_wait, is_unanswered, learning or {}))

    def topic(self, bad: float = 0.06) -> str:
        """The name of one that may be there."""
        return self.pick(BAD_NAMES) if self.chance(bad) else self.pick(list(self.topics))

    def topic_rows(
        self, key: str, part: Callable[[str, int], Any], bad: float = 0.06
    ) -> list[dict[str, Any]]:
        """Topics by name and by id, with a row for each of some partitions under `key`."""
        names = dict.fromkeys(self.topic(bad) for _ in range(self.pick((1, 1, 1, 2, 3))))
        return [self._topic_row(name, key, part) for name in names]

    def _topic_row(self, name: str, key: str, part: Callable[[str, int], Any]) -> dict[str, Any]:
        count = self.topics.get(name, 1)
        indexes = self.random.sample(range(count), self.random.randint(1, count))
        if self.chance(0.06):
            indexes.append(self.pick((7, -1)))
        if self.chance(0.01):
            indexes.append(indexes[0])
        rows = [part(name, index) for index in indexes]
        return {"name": name, "topic": name, "topic_id": Ref("id", name, no_topic_id(name)), key: rows}
