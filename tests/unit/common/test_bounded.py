"""Bounded caches and short names."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator import topic_coordinators
from kproc.common.bounded import NAME_MAX, BoundedCache, shared_text, short_name

LONG = "n" * 32_000


# -- names ----------------------------------------------------------------------------------------------------


def test_short_name_keeps_long_names_apart() -> None:
    assert short_name("x" * NAME_MAX) == "x" * NAME_MAX
    first, second = short_name(LONG + "1"), short_name(LONG + "2")
    assert first != second
    assert len(first) == len(second) == NAME_MAX
    assert short_name("\ud800" * 300)


def test_equal_texts_of_a_name_are_shared() -> None:
    for length in (1, NAME_MAX):
        assert shared_text("".join(["x"] * length)) is shared_text("".join(["x"] * length))
    first, second = LONG + "a", "".join([LONG, "a"])
    assert (shared_text(first) is first, shared_text(second) is second) == (True, True)


def test_bounded_cache_is_emptied_at_its_entries_or_bytes() -> None:
    cache: BoundedCache[int, int] = BoundedCache(entries_max=10, bytes_max=1_000)
    for number in range(1_000):
        cache.put(number, number, 1)
        assert len(cache) <= 10
    for number in range(1_000):
        cache.put(number, number, 100)
        assert cache.size_bytes <= 1_000
    assert cache[999] == 999
    cache.clear()
    cache.put(1, 1, 101)
    assert len(cache) == 0, "one entry must not fill the cache"


@pytest.mark.long
def test_hashes_of_long_group_names_are_cached_in_few_bytes() -> None:
    for number in range(200):
        topic_coordinators.partition_for(f"{number}{LONG}", 50)
    assert topic_coordinators._hash_of_long_name.cache_info().currsize <= 64
    assert topic_coordinators._hash_of_name.cache_info().maxsize == 4096
