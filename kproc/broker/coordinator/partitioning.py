"""Find the partition of a group or a transactional id by Java's hash of its name, as every version of Kafka does."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kproc.common.bounded import NAME_MAX

_INT32_MIN: Final = -(2**31)


def partition_for(name: str, partition_count: int) -> int:
    """Return the partition of a group id or transactional id, of `partition_count` partitions."""
    if len(name) > NAME_MAX:
        return _hash_of_long_name(name) % partition_count
    return _hash_of_name(name) % partition_count


def _java_abs_hash(text: str) -> int:
    """Return the absolute value of Java's hash of a text. As in Kafka's `Utils.abs`, the smallest hash gives 0.

    The hash is that of the UTF-16 units.
    """
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFF_FFFF
    signed = value - (1 << 32) if value & 0x8000_0000 else value
    return 0 if signed == _INT32_MIN else abs(signed)


# Each heartbeat hashes the id of its group. Names can be 32 kB long, so only a few long ones are cached.
_hash_of_name = lru_cache(maxsize=4096)(_java_abs_hash)
_hash_of_long_name = lru_cache(maxsize=64)(_java_abs_hash)
