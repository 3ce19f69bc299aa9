"""Bounds for tables that clients fill: caches with a limit of entries and of bytes, and short forms of long names.

A client chooses its client id, its group's name and much else, each up to 32 kB long. Every table whose keys come from
clients is bounded in entries and in bytes; SECURITY.md lists them.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

# Kafka's limit of a topic name, in characters. Longer names, such as those of groups, are stored complete and shortened
# everywhere else.
NAME_MAX: Final = 249
_DIGEST_CHARACTERS: Final = 16


def short_name(name: str) -> str:
    """Return `name`. If it is longer than NAME_MAX characters, return its beginning and a digest instead."""
    if len(name) <= NAME_MAX:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{name[: NAME_MAX - _DIGEST_CHARACTERS - 1]}~{digest}"


def shared_text(text: str) -> str:
    """Return a stored text that equals `text`, so that equal texts take memory once. Store `text` if there is none.

    Texts of more than NAME_MAX characters are returned without being stored. sys.intern() would keep the texts of all
    clients forever with Python 3.12.0 to 3.12.6.
    """
    return _cached_text(text) if len(text) <= NAME_MAX else text


@lru_cache(maxsize=4096)
def _cached_text(text: str) -> str:
    return text


class BoundedCache(Generic[K, V]):
    """A cache of results that can be computed again, with a limit of entries and of bytes.

    `put` clears it when it is full.
    """

    __slots__ = ("_bytes", "_bytes_max", "_entries", "_entries_max")

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._entries: dict[K, V] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """The sum of the entries' sizes, as given to `put`."""
        return self._bytes

    def __getitem__(self, key: K) -> V:
        return self._entries[key]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Add an entry of about `size_bytes`. An entry above a tenth of the limit of bytes is not stored."""
        # Do not store a large entry: a few of them would fill the cache again and again, and each time clear the
        # entries of all clients.
        if size_bytes * 10 > self._bytes_max:
            return
        if len(self._entries) >= self._entries_max or self._bytes + size_bytes > self._bytes_max:
            self.clear()
        self._entries[key] = value
        self._bytes += size_bytes

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._bytes = 0
