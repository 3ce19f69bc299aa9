"""Well-formed requests that mean little: every field of every served version, filled with words that bite.

The codec's own schemas say which fields there are, so an API that is added is attacked without a line here. Words
fit the field by its name: topics that exist and do not, group ids, config names, entity types.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kproc.broker.cluster.topic_config import TOPIC_CONFIGS
from kproc.wire import codec
from kproc.wire.header import ApiKey
from kproc.wire.schema import Field, Schema
from tests.support.raw import batch

Fields = dict[str, Any]

NUMBERS: Final = {
    "int8": (0, 1, 2, -1, 4, 8, 127, -128),
    "int16": (0, 1, -1, 5, 2**15 - 1, -(2**15)),
    "uint16": (0, 1, 2**16 - 1),
    "int32": (0, 1, 2, -1, -2, 100, 30_000, 2**31 - 1, -(2**31)),
    "uint32": (0, 1, 2**32 - 1),
    "int64": (0, 1, -1, -2, -5, 1_000, 2**63 - 1, -(2**63)),
    "float64": (0.0, -1.0, 1.5, 1e300, float("inf"), float("nan")),
}
WORDS: Final = ("", " ", ".", "*", "a", "тема-日本", "a\0b", "\n", "x" * 250, "y" * 32_000)
VALUES: Final = (
    "",
    "-1",
    "0",
    "1",
    str(2**63),
    "9" * 400,
    "true",
    "word",
    "compact,delete",
    "gzip",
    "1e3",
    " 5 ",
)
SETTINGS: Final = (
    *TOPIC_CONFIGS,
    "listeners",
    "node.id",
    "log.cleaner.threads",
    "max.connections",
    "log.retention.ms",
    "consumer.session.timeout.ms",
    "metrics",
    "interval.ms",
    "producer_byte_rate",
    "metadata.version",
    "transaction.version",
)


def pool_of(name: str, inside: str) -> str:
    """Which words fit a field, by its name and that of the struct around it."""
    if name == "value":
        return "value"
    if "group" in name or "coordinator" in name or (name == "key" and not inside):
        return "group"
    if "config" in inside + name or name in ("key", "feature"):
        return "config"
    return "resource" if name == "resource_name" else "topic"


class WellFormed:
    """Makes them; one seeded source, so that a failure repeats."""

    def __init__(self, source: random.Random, topics: Mapping[str, bytes], groups: Sequence[str]) -> None:
        self._source = source
        names = (*topics, "__consumer_offsets", "__cluster_metadata", "absent")
        ids = (*topics.values(), bytes(16), source.randbytes(16))
        self._pools: dict[str, Sequence[Any]] = {
            "topic": names,
            "group": (*groups, "absent-group"),
            "config": SETTINGS,
            "id": ids,
            "resource": (*names, *groups, "1", "0"),
        }

    def request(self, api_key: ApiKey, version: int) -> Fields:
        """One request's fields."""
        return self._struct(codec.schema_of(api_key, version, "request"), "")

    def _struct(self, schema: Schema, inside: str) -> Fields:
        return {field.name: self._field(field, inside) for field in schema.fields}

    def _field(self, field: Field, inside: str) -> Any:
        pick = self._source
        if field.is_nullable and pick.random() < 0.15:
            return None
        if field.is_array:
            count = pick.choice((0, 1, 1, 1, 2, 2, 3))
            items = [self._value(field, inside) for _ in range(count)]
            return items + items[:1] if pick.random() < 0.1 else items
        return self._value(field, inside)

    def _value(self, field: Field, inside: str) -> Any:
        pick = self._source
        if field.kind == "struct":
            assert field.struct is not None
            return self._struct(field.struct, field.name)
        if field.kind == "string":
            return self._word(field.name, inside)
        if field.kind == "bool":
            return pick.random() < 0.5
        if field.kind == "uuid":
            return pick.choice(self._pools["id"])
        if field.kind == "bytes":
            if field.name == "records":
                return pick.choice((batch(b"v"), batch(b"v")[:-1], b"", pick.randbytes(80)))
            return pick.choice(
                (b"", b"\0", pick.randbytes(20), b"\0\0\0\0\0\1\0\1a" + bytes(4), bytes(5_000))
            )
        return pick.choice(NUMBERS[field.kind])

    def _word(self, name: str, inside: str) -> str:
        pick = self._source
        if pick.random() < 0.2:
            return str(pick.choice(WORDS))
        pool = pool_of(name, inside)
        return str(pick.choice(VALUES if pool == "value" else self._pools[pool]))
