"""Counts and times of requests in shared memory: a successor continues them, and they are bounded."""

from __future__ import annotations

import mmap

import pytest

from kproc.broker.metrics.histogram import Histogram
from kproc.broker.metrics.requests import ERRORS, HANDLERS_PART, REQUESTS, ROLES_MAX, TIMINGS, TOTAL, Count
from kproc.broker.metrics.slab import SLAB_BYTES, Slab
from kproc.broker.role.roles import ROLE_COUNT_MAX

TIMES = (1, 2, 3, 4, 5, 6, 21)


@pytest.fixture
def slab() -> Slab:
    return Slab(memoryview(mmap.mmap(-1, SLAB_BYTES, mmap.MAP_PRIVATE)).cast("Q"), is_new=True)


def test_there_is_a_part_for_every_role() -> None:
    assert ROLES_MAX == ROLE_COUNT_MAX


def test_counts_are_seen_at_store_by_kind_api_and_version(slab: Slab) -> None:
    counts = slab.counts(HANDLERS_PART + 3)
    counts.add(REQUESTS, 0, 9, 5)
    counts.add(REQUESTS, 0, 11)
    counts.add(ERRORS, 30_000, -1)
    assert not list(slab.read_counts(HANDLERS_PART + 3))
    counts.store()
    assert set(slab.read_counts(HANDLERS_PART + 3)) == {
        Count(REQUESTS, 0, 9, 5),
        Count(REQUESTS, 0, 11, 1),
        Count(ERRORS, 30_000, -1, 1),
    }
    assert not list(slab.read_counts(HANDLERS_PART + 2))
    assert not list(slab.read_counts(HANDLERS_PART + 4))


def test_successor_goes_on_where_the_dead_one_stored_last(slab: Slab) -> None:
    first = slab.counts(0)
    first.add(REQUESTS, 3, 12, 7)
    first.store()
    first.add(REQUESTS, 3, 12)  # Lost with it.
    second = slab.counts(0)
    second.add(REQUESTS, 3, 12)
    second.add(REQUESTS, 18, 4)
    second.store()
    assert list(slab.read_counts(0)) == [Count(REQUESTS, 3, 12, 8), Count(REQUESTS, 18, 4, 1)]


def test_excess_count_kinds_do_not_overwrite_neighbours(slab: Slab) -> None:
    counts = slab.counts(0)
    for version in range(2000):
        counts.add(REQUESTS, 1, version)
    counts.store()
    assert len(list(slab.read_counts(0))) == 1024
    assert not list(slab.read_counts(1))


def test_timings_are_kept_by_api_and_found_again(slab: Slab) -> None:
    timings = slab.timings(5)
    timings.add(1, TIMES, 100)
    timings.add(0, TIMES, 200)
    again = slab.timings(5)
    again.add(0, TIMES, 300)
    found: dict[int, list[Histogram]] = {}
    slab.read_timings(5, found)
    assert {key: rows[TOTAL].count for key, rows in found.items()} == {1: 1, 0: 2}
    assert [rows.total for rows in found[0]] == [2, 4, 6, 8, 10, 12, 42, 500]
    assert len(found[0]) == len(TIMINGS)
    slab.read_timings(4, found)
    slab.read_timings(6, found)
    assert found[0][TOTAL].count == 2, "other Processors have timed nothing"


def test_clock_skew_between_processes_gives_no_negative_time(slab: Slab) -> None:
    timings = slab.timings(0)
    timings.add(0, (-1, 0, 0, 0, -5, 0, 0), 10)
    found: dict[int, list[Histogram]] = {}
    slab.read_timings(0, found)
    assert found[0][0].buckets[0] == 1
    assert found[0][4].total == 0


def test_apis_beyond_the_room_are_left_out(slab: Slab) -> None:
    timings = slab.timings(0)
    for key in range(100):
        timings.add(key, TIMES, 1)
    found: dict[int, list[Histogram]] = {}
    slab.read_timings(0, found)
    assert sorted(found) == list(range(64))
    neighbour: dict[int, list[Histogram]] = {}
    slab.read_timings(1, neighbour)
    assert not neighbour
