"""Offsets: one JSON, fair limits, tasks that a second run makes alike, and what counts as a loss. Pure."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproc.spark.offsets import (
    Offsets,
    Range,
    TopicPartition,
    from_json,
    ids_of,
    limited,
    losses,
    ranges_of,
    split,
    start_of,
    to_json,
    waiting,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

partitions = st.builds(TopicPartition, st.sampled_from(["a", "b.c", "Z-1"]), st.integers(0, 12))
backlogs = st.dictionaries(partitions, st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)), min_size=1)


def test_offsets_json_is_sorted_by_topic_and_partition_number() -> None:
    offsets = {TopicPartition("b", 0): 1, TopicPartition("a", 10): 2, TopicPartition("a", 9): 3}
    assert json.dumps(to_json(offsets)) == '{"a": {"9": 3, "10": 2}, "b": {"0": 1}}'
    assert from_json(to_json(offsets)) == offsets


def test_start_recorded_in_first_end_offset_wins() -> None:
    end = to_json({A0: 1010}, start={A0: 1000})
    assert from_json(end) == {A0: 1010}
    assert start_of(to_json({A0: 1110}), end) == {A0: 1000}
    # Of every later batch Spark's own start counts.
    assert start_of(end, to_json({A0: 1200})) == {A0: 1010}
    # Checkpoints of earlier versions have the start as one object.
    assert start_of(to_json({A0: 1110}), {"@start": {"a": {"0": 1000}}, "a": {"0": 1010}}) == {A0: 1000}


def test_notes_are_topics_without_partitions_for_other_readers() -> None:
    """Spark's own connector reads a document as {topic: {partition: offset}}."""
    ids = {"a": bytes(range(16)), "b": bytes(16), "unread": b"x" * 16}
    document = to_json({A0: 1010, B0: 4}, ids=ids, start={A0: 1000, A1: 0})
    assert {topic: rows for topic, rows in document.items() if rows} == {"a": {"0": 1010}, "b": {"0": 4}}
    assert ids_of(document) == {"a": bytes(range(16)), "b": bytes(16)}
    assert start_of({}, document) == {A0: 1000, A1: 0}
    assert from_json(document) == {A0: 1010, B0: 4}


def test_start_of_recreated_topic_is_not_the_former_ones_end() -> None:
    before = to_json({A0: 10, B0: 5}, ids={"a": b"1" * 16, "b": b"3" * 16})
    end = to_json({A0: 4, B0: 7}, ids={"a": b"2" * 16, "b": b"3" * 16})
    assert start_of(before, end) == {B0: 5}
    # Of a broker without ids nothing is known.
    assert start_of(to_json({A0: 10}), end) == {A0: 10}


@pytest.mark.parametrize("bad", [[], {"a": 1}, {"a": {"x": 1}}, {"a": {"0": "1"}}, {"a": {"0": True}}])
def test_invalid_offsets_json_is_rejected(bad: object) -> None:
    with pytest.raises(ValueError, match=r"form|partition"):
        from_json(bad)  # type: ignore[arg-type]


@given(backlogs, st.integers(1, 10**6))
def test_offset_limit_is_kept_without_starvation(
    backlog: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    start = {partition: begin for partition, (begin, _) in backlog.items()}
    end = {partition: begin + size for partition, (begin, size) in backlog.items()}
    got = limited(limit, start, end)
    assert got.keys() == end.keys()
    for partition, (begin, size) in backlog.items():
        assert begin <= got[partition] <= end[partition]
        assert (got[partition] > begin) == (size > 0)
    assert waiting(start, got) <= limit + len(backlog)
    if waiting(start, end) > limit:
        # Rounding down costs less than one for each partition.
        assert waiting(start, got) > limit - len(backlog)


def test_offset_limit_is_shared_by_lag_and_new_partition_at_0() -> None:
    assert limited(10, {A0: 0, A1: 100}, {A0: 900, A1: 200, B0: 0}) == {A0: 9, A1: 101, B0: 0}
    assert limited(10, {}, {A0: 100}) == {A0: 10}
    assert limited(10, {A0: 50}, {A0: 40}) == {A0: 40}


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)), min_size=1, max_size=8),
    st.one_of(st.none(), st.integers(1, 50)),
    st.one_of(st.none(), st.integers(1000, 10**5)),
)
def test_tasks_cover_every_offset_once(
    rows: list[tuple[int, int]], partitions_min: int | None, records_max: int | None
) -> None:
    whole = [Range(TopicPartition("t", i), begin, begin + size) for i, (begin, size) in enumerate(rows)]
    pieces = split(whole, records_max=records_max, partitions_min=partitions_min)
    for each in whole:
        own = [piece for piece in pieces if piece.partition == each.partition]
        assert all(piece.size > 0 for piece in own)
        assert all(before.end == after.start for before, after in itertools.pairwise(own))
        if each.size:
            assert (own[0].start, own[-1].end) == (each.start, each.end)
        else:
            assert own == []
    if records_max is not None:
        assert all(piece.size <= records_max for piece in pieces)
    assert pieces == split(whole, records_max=records_max, partitions_min=partitions_min)


@pytest.mark.parametrize(
    ("sizes", "wanted", "expected"),
    [
        # What Spark's KafkaOffsetRangeCalculator makes of the same sizes.
        ([1], 3, [1]),
        ([5], 3, [1, 2, 2]),
        ([2, 2], 3, [1, 1, 1, 1]),
        ([1, 2, 3], 3, [1, 2, 3]),
        ([1, 1, 100], 3, [1, 1, 100]),
        ([1, 1, 100], 4, [1, 1, 50, 50]),
        ([10_000, 1], 5, [2500, 2500, 2500, 2500, 1]),
        ([3, 1], 2**31 - 1, [1, 1, 1, 1]),
    ],
)
def test_min_partitions_cuts_the_large_ones(sizes: list[int], wanted: int, expected: list[int]) -> None:
    whole = [Range(TopicPartition("t", index), 0, size) for index, size in enumerate(sizes)]
    assert [piece.size for piece in split(whole, partitions_min=wanted)] == expected


def test_new_partition_is_read_from_its_start() -> None:
    assert ranges_of({A0: 5}, {A0: 5, A1: 3}) == [Range(A1, 0, 3)]


@pytest.mark.parametrize(
    ("start", "end", "log_starts", "words"),
    [
        ({A0: 5}, {A0: 9}, {A0: 5}, []),
        ({A0: 5}, {A0: 9, A1: 3}, {A1: 0}, []),
        ({A0: 5}, {A0: 9}, {A0: 7}, ["a-0 is to be read from offset 5, its log starts at 7"]),
        ({A0: 5}, {A0: 3}, {}, ["a-0 was read up to offset 5 and ends at 3 now"]),
        ({A0: 5, B0: 2}, {A0: 5}, {}, ["b-0 does not exist or is not subscribed any more; it was read up to offset 2"]),
        ({}, {A1: 9}, {A1: 4}, ["a-1 is new and its log starts at 4 instead of 0"]),
        # Read to the end, then everything deleted: nothing was missed.
        ({A0: 9}, {A0: 9}, {A0: 9}, []),
    ],
)
def test_losses(start: Offsets, end: Offsets, log_starts: Offsets, words: list[str]) -> None:
    found = losses(start, end, log_starts)
    assert len(found) == len(words)
    assert all(sentence.startswith(word) for sentence, word in zip(found, words, strict=True))
