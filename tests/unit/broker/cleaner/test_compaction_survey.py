"""The choice of the log to compact: the dirtiest one that is due and not damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.storage.log_compact import SegmentSwap
from tests.support.compactor_rig import BACKOFF_MS, Rig
from tests.support.in_memory_controller import delete_wish


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack, tmp_path)


def test_the_dirtiest_comes_first_and_both_are_done(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("clean", "dirty"):
        rig.create(name)
        rig.fill(name, "a", "a", "b")
        rig.after(BACKOFF_MS)
    assert rig.offsets() == {("clean", 0): 3, ("dirty", 0): 3}
    rig.after(BACKOFF_MS)
    rig.fill("clean", "a")
    rig.fill("dirty", *"aabbccdd")
    swapped: list[str] = []
    original = SegmentSwap.swap_segments

    def swap_segments(swap: SegmentSwap, *arguments: Any) -> None:
        swapped.append(swap._state.topic)
        original(swap, *arguments)

    monkeypatch.setattr(SegmentSwap, "swap_segments", swap_segments)
    rig.after(BACKOFF_MS)
    assert swapped[0] == "dirty"
    assert rig.offsets() == {("clean", 0): 4, ("dirty", 0): 11}
    assert rig.value("compactions") == 4
    assert rig.value("compaction_dirty_percent_max") == 0


def test_nothing_before_the_metadata_and_nothing_of_plain_topics(rig: Rig) -> None:
    rig.create("plain", cleanup_policy="delete")
    rig.fill("plain", "a", "a")
    rig.run()
    assert rig.asked == []


def test_a_log_that_is_not_dirty_enough_waits(rig: Rig) -> None:
    rig.create("t", min_cleanable_dirty_ratio="0.5")
    rig.fill("t", *"aabbccdd")
    rig.run()
    assert rig.offsets() == {("t", 0): 8}
    rig.fill("t", "a")
    rig.after(BACKOFF_MS)
    assert rig.value("compaction_dirty_percent_max") == 20
    assert rig.offsets() == {("t", 0): 8}


def test_damaged_log_is_uncleanable_until_its_topic_is_deleted(rig: Rig) -> None:
    """The others are compacted, and the damaged one is not tried again."""
    for name in ("bad", "good"):
        rig.create(name)
        rig.fill(name, "a", "a", "b")
    rig.fill("bad", "a")
    path = rig.directory / "bad-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    rig.after(BACKOFF_MS)
    rig.after(BACKOFF_MS)
    found = rig.compactor.survey.uncleanable()
    assert list(found) == [("bad", 0)]
    assert "CRC-32C" in found["bad", 0].reason
    assert rig.value("compaction_uncleanable_partitions") == 1
    assert rig.value("compaction_uncleanable_bytes") == found["bad", 0].size_bytes > 0
    assert ("good", 0) in rig.offsets()
    asked = len(rig.asked)
    rig.after(10 * BACKOFF_MS)
    assert len(rig.asked) == asked
    rig.cluster.do("delete_topics", topics=[delete_wish("bad")])
    rig.after(BACKOFF_MS)
    assert (rig.compactor.survey.uncleanable(), rig.value("compaction_uncleanable_partitions")) == ({}, 0)
