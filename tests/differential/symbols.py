"""Placeholders: in the requests of a script for values that only a run knows, in answers for values that are not
compared.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

NO_TOPIC_ID = b"\xee" * 16  # An id that no topic has.


def no_topic_id(name: str) -> bytes:
    """Another for each name: a request must not name one twice by chance."""
    return zlib.crc32(name.encode()).to_bytes(4, "big") + NO_TOPIC_ID[4:]


class WireId(bytes):
    """A UUID in an answer."""


class Moment(int):
    """A time: milliseconds from half an hour before the sequence began."""

    def __repr__(self) -> str:
        return f"T0{int(self):+}"


class Subscription(NamedTuple):
    """A consumer's metadata in JoinGroup."""

    version: int
    topics: tuple[str, ...]


class Batch(dict[str, Any]):
    """A record batch. `records`: (key, value or its size, ms after `time`, headers). Else what is unusual about it."""

    def __repr__(self) -> str:
        return "Batch(" + ", ".join(f"{key}={value!r}" for key, value in self.items()) + ")"


class Words(str):
    """What a person reads: only whether it is empty is compared."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Words) and bool(self) == bool(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


class Ref(NamedTuple):
    """What a broker chose, as it was learnt from an answer; `other` as long as it was not."""

    kind: str
    name: Any
    other: Any = ""
    add: int = 0

    def __repr__(self) -> str:
        return f"<{self.kind}:{self.name}{f'{self.add:+}' if self.add else ''}>"
