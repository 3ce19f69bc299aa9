"""Both brokers as one worker sees them: when a change has reached all their parts, and what is left over is deleted."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable
from typing import Any

from tests.differential.side import ANSWER_SECONDS, Side, new_prefix
from tests.differential.steps import Pair

# A subscription to client metrics that is changed to see when earlier changes have reached all parts of a broker.
_BARRIER_KIND, _BARRIER_KEY = 16, "interval.ms"
_LEAST_INTERVAL_MS, _LARGEST_INTERVAL_MS = 1000, 3_000_000
_SET, _DELETE = 0, 1
_POLL_SECONDS = 0.002
_TOPICS_AT_ONCE = 40


class Upkeep:
    """Connections of the tool's own, for one process."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self._sides = [Side(bootstrap) for bootstrap in pair]
        self._changes = 0
        self._topics: list[str] = []
        self._groups: list[str] = []
        # Named as that of another sequence: no answer shows it.
        self._barrier = {"resource_type": _BARRIER_KIND, "resource_name": f"{new_prefix()}barrier"}

    def pass_barrier(self) -> None:
        """Make two changes, one after the other, and wait until each is seen.

        Kafka shows a change in Metadata and DescribeConfigs before its partitions have it, and makes the changes one
        after the other: when the second of two later ones is seen, all parts have what was changed before them.
        """
        for _ in range(2):
            self._changes += 1
            value = str(_LEAST_INTERVAL_MS + self._changes % (_LARGEST_INTERVAL_MS - _LEAST_INTERVAL_MS))
            self._alter_barrier({"config_operation": _SET, "value": value})
            for side in self._sides:
                self._await_barrier(side, value)

    def _await_barrier(self, side: Side, value: str) -> None:
        resource = {**self._barrier, "configuration_keys": [_BARRIER_KEY]}
        end = time.monotonic() + ANSWER_SECONDS
        while True:
            (row,) = side.ask("describe_configs", 4, {"resources": [resource]})["results"]
            if not row["error_code"] and [each["value"] for each in row["configs"]] == [value]:
                return
            if time.monotonic() > end:
                raise TimeoutError(f"a change is not seen after {ANSWER_SECONDS} s: {row}")
            select.select([], [], [], _POLL_SECONDS)

    def _alter_barrier(self, config: dict[str, Any]) -> None:
        rows = [{**self._barrier, "configs": [{"name": _BARRIER_KEY, **config}]}]
        for answer in self._ask_both("incremental_alter_configs", 1, {"resources": rows}):
            if answer["responses"][0]["error_code"]:
                raise RuntimeError(f"the barrier cannot be changed: {answer}")

    def _ask_both(self, api: str, version: int, body: dict[str, Any]) -> list[dict[str, Any]]:
        for side in self._sides:
            side.send("own", api, version, body)
        return [side.own_answer(api, version) for side in self._sides]

    def discard(self, topics: Iterable[str], groups: Iterable[str]) -> None:
        """Take these for waste: deleted now or later."""
        self._topics += topics
        self._groups += groups
        if len(self._topics) >= _TOPICS_AT_ONCE:
            self._delete()

    def _delete(self) -> None:
        if self._groups:
            self._ask_both("delete_groups", 2, {"groups_names": self._groups})
        if self._topics:
            self._ask_both("delete_topics", 5, {"topic_names": self._topics, "timeout": 30000})
        self._topics, self._groups = [], []

    def close(self) -> None:
        self._delete()
        if self._changes:
            self._alter_barrier({"config_operation": _DELETE, "value": None})
        for side in self._sides:
            side.close()
