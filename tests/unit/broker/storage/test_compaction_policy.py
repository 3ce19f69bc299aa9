"""Choice of logs and groups of segments for a compaction, by table."""

from __future__ import annotations

from typing import Any

from kproc.broker.storage.compaction_policy import (
    CompactionLimits,
    DirtySection,
    SealedSegment,
    assess,
    group_segments,
)
from kproc.broker.storage.log_config import LogConfig
from kproc.broker.storage.retention import SegmentInfo
from tests.support.cases import in_one_test

COMPACT = frozenset({"compact"})


def facts(*rows: tuple[int, int]) -> list[SegmentInfo]:
    """Segments of ten offsets each with (size, largest timestamp); the last one is the active one."""
    return [SegmentInfo(10 * n, 10 * n + 10, size, timestamp) for n, (size, timestamp) in enumerate(rows)]


def section(segments: list[SegmentInfo], config: LogConfig | None = None, **fields: Any) -> DirtySection:
    end = segments[-1].next_offset
    limits = CompactionLimits(
        fields.pop("start_offset", 0), fields.pop("stable_offset", end), fields.pop("synced_offset", end)
    )
    arguments: dict[str, Any] = {
        "checkpoint": None,
        "now_ms": 1000,
        "first_timestamp": lambda base: base,
        **fields,
    }
    return assess(segments, config or LogConfig(cleanup_policy=COMPACT), limits, **arguments)


THREE = facts((100, 1), (200, 2), (400, 3), (50, 4))


@in_one_test(
    ("fields", "expected"),
    [
        ({}, (0, 30, 0, 700)),  # The active one never.
        ({"checkpoint": 10}, (10, 30, 100, 600)),
        ({"checkpoint": 30}, (30, 30, 700, 0)),
        ({"checkpoint": 99}, (0, 30, 0, 700)),  # The log is shorter than that: another log.
        ({"checkpoint": 10, "start_offset": 20}, (20, 30, 300, 400)),  # DeleteRecords went further.
        ({"stable_offset": 25}, (0, 20, 0, 300)),  # Whole segments only.
        ({"stable_offset": 20}, (0, 20, 0, 300)),
        ({"stable_offset": 0}, (0, 0, 0, 0)),
        ({"synced_offset": 29}, (0, 20, 0, 300)),  # The third may be gone after a power loss.
        ({"synced_offset": 20, "checkpoint": 10}, (10, 20, 100, 200)),
        ({"synced_offset": 5}, (0, 0, 0, 0)),
    ],
)
def test_sections(fields: dict[str, int], expected: tuple[int, int, int, int]) -> None:
    assert section(THREE, **fields)[:4] == expected


def test_young_segments_stay_and_what_follows_them() -> None:
    segments = facts((100, 500), (100, 950), (100, 600), (100, 990))
    config = LogConfig(cleanup_policy=COMPACT, min_compaction_lag_ms=100)
    assert section(segments, config).first_uncleanable == 10
    assert section(segments, config, now_ms=1051).first_uncleanable == 30


def test_due_by_share() -> None:
    config = LogConfig(cleanup_policy=COMPACT, min_cleanable_dirty_ratio=0.5)
    assert section(facts((100, 1), (100, 1), (9, 1)), config, checkpoint=10).ratio == 0.5
    assert not section(facts((100, 1), (100, 1), (9, 1)), config, checkpoint=10).is_due(config)  # More than.
    assert section(facts((100, 1), (101, 1), (9, 1)), config, checkpoint=10).is_due(config)
    nothing = section(facts((9, 1)), LogConfig(min_cleanable_dirty_ratio=0))
    assert nothing.ratio == 0
    assert not nothing.is_due(LogConfig(min_cleanable_dirty_ratio=0))


def test_due_by_age() -> None:
    config = LogConfig(cleanup_policy=COMPACT, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=900)
    segments = facts((100, 1), (1, 500), (9, 1))
    dated = {0: 5, 10: 99}
    for now_ms, is_due in ((999, False), (1000, True)):
        found = section(segments, config, checkpoint=10, now_ms=now_ms, first_timestamp=dated.__getitem__)
        assert found.is_due(config) is is_due
    undated = section(segments, config, checkpoint=10, now_ms=10**6, first_timestamp=lambda _: -1)
    assert not undated.is_due(config)


def sealed(*sizes: int, index_bytes: int = 10) -> list[SealedSegment]:
    return [SealedSegment(10 * n, 10 * n + 10, size, n, index_bytes, 12, 0) for n, size in enumerate(sizes)]


@in_one_test(
    ("sizes", "groups"),
    [
        ((), []),
        ((100,), [[0]]),
        ((60, 40, 1), [[0, 1], [2]]),
        ((101, 5), [[0], [1]]),
        ((0, 0, 100, 0), [[0, 1, 2, 3]]),
        ((1,) * 20, [list(range(16)), list(range(16, 20))]),
    ],
)
def test_groups_by_size_and_number(sizes: tuple[int, ...], groups: list[list[int]]) -> None:
    found = group_segments(sealed(*sizes), LogConfig(segment_bytes=100))
    assert [[segment.base_offset // 10 for segment in group] for group in found] == groups


def test_groups_respect_index_size_and_32_bit_offsets() -> None:
    config = LogConfig(segment_index_bytes=25)
    assert [len(group) for group in group_segments(sealed(1, 1, 1), config)] == [2, 1]
    far = [SealedSegment(0, 10, 1, 0, 0, 0, 0), SealedSegment(10, 2**31, 1, 1, 0, 0, 0)]
    assert len(group_segments(far, LogConfig())) == 1
    beyond = [far[0], SealedSegment(10, 2**31 + 1, 1, 1, 0, 0, 0)]
    assert len(group_segments(beyond, LogConfig())) == 2
