"""SegmentSwap: segments that compaction has replaced."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kproc.broker.storage.log import Log, LogConfig
from kproc.common.errors import Corrupt
from tests.support.compacted_log import ClosingRig, batches_of, contents, keyed
from tests.support.compaction import compact
from tests.support.logs import NOW_MS, LogRig, append_one

COMPACT = frozenset({"compact"})


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LogRig]:
    config = LogConfig(segment_bytes=300, cleanup_policy=COMPACT, index_interval_bytes=100)
    with ExitStack() as stack:
        yield ClosingRig(tmp_path / "t-0", config=config, stack=stack)


def roll(log: Log) -> None:
    """Seal what is there: the active segment is never compacted."""
    log.state.roll(log.state.end_offset, NOW_MS)


def compacted(rig: LogRig) -> Log:
    """A compacted segment with two batches, and one behind it."""
    log = rig.open()
    append_one(log, keyed(("a", "1")))
    append_one(log, keyed(("b", "1"), ("b", "2")))
    roll(log)
    append_one(log, keyed(("c", "1")))
    log.durability.sync()
    compact(rig, log)
    assert [header.base_offset for header in batches_of(log)] == [0, 1, 3]
    log.close()
    return log


@pytest.mark.parametrize("is_clean", [True, False])
def test_compacted_segment_cut_between_two_batches_is_rejected(rig: LogRig, *, is_clean: bool) -> None:
    log = compacted(rig)
    first = log.state.segments.all()[0].path(".log")
    os.truncate(first, batches_of(log)[0].total_bytes)
    with pytest.raises(Corrupt, match="had been synced"):
        rig.open(clean=is_clean)


@pytest.mark.parametrize("is_clean", [True, False])
def test_lost_segment_behind_a_compacted_one_is_noticed(rig: LogRig, *, is_clean: bool) -> None:
    log = compacted(rig)
    log.state.active.path(".log").unlink()
    with pytest.raises(Corrupt, match="no segment from offset 3 on"):
        rig.open(clean=is_clean)


def test_small_segments_become_one(rig: LogRig) -> None:
    log = rig.open()
    for number in range(6):
        append_one(log, keyed((f"k{number % 2}", "v")))
        roll(log)
    assert log.state.segment_count == 7
    assert compact(rig, log).swaps == 2
    assert log.state.segment_count == 3  # 68 bytes each before, and 300 are the limit.
    assert [offset for offset, _, _ in contents(log)] == [4, 5]
    compact(rig, log, checkpoint=0)
    assert log.state.segment_count == 2


def test_a_segment_that_loses_nothing_is_not_swapped(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, keyed(("a", "1" * 200)))
    append_one(log, keyed(("b", "1" * 200)))
    roll(log)
    inode = log.state.segments.all()[0].inode
    assert compact(rig, log).swaps == 0
    assert log.state.segments.all()[0].inode == inode
    assert not list(rig.directory.glob("*.cleaned"))
