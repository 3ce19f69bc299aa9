"""The shared partition table: a row is read whole, of this very partition, or not at all."""

from __future__ import annotations

import pytest

from kproc.broker.cluster.image import SLOT_COUNT, PartitionImage
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.role.partition_table import (
    NOBODY,
    ROW_WORDS,
    TABLE_BYTES,
    PartitionRow,
    PartitionTable,
    holder_word,
)
from tests.support.ring_pair import Forked

ROW = (holder_word(NOBODY), 7, 10, 20, 10, 4096, 15, 18)


def partition(slot: int = 3, generation: int = 7) -> PartitionImage:
    return PartitionImage(index=0, slot=slot, slot_generation=generation, owner=0, leader_epoch=1)


@pytest.fixture
def words() -> memoryview:
    return memoryview(bytearray(8 * 8 * ROW_WORDS)).cast("Q")


@pytest.fixture
def table(words: memoryview) -> PartitionTable:
    return PartitionTable(words)


def test_row_that_was_never_written_is_none(table: PartitionTable) -> None:
    assert table.read(partition()) is None
    assert table.read(partition(generation=0)) is None
    assert table.is_untouched(partition())


def test_row_comes_back_by_name(table: PartitionTable) -> None:
    table.writer(3).publish(ROW)
    row = table.read(partition())
    assert row is not None
    assert (row.start_offset, row.end_offset, row.segment_base, row.position) == (10, 20, 10, 4096)
    assert (row.recovery_point, row.high_watermark) == (15, 18)
    assert (holder_word(NOBODY), *row.behind_holder) == ROW


def test_row_of_an_earlier_partition_of_the_slot_is_none(table: PartitionTable) -> None:
    table.writer(3).publish(ROW)
    assert table.read(partition(generation=8)) is None
    assert table.is_untouched(partition(generation=8))
    assert not table.is_untouched(partition())
    assert table.read(partition(slot=2)) is None
    assert table.read(partition(slot=4)) is None


def test_row_of_writer_killed_midway_is_invalid_until_rewritten(
    table: PartitionTable, words: memoryview
) -> None:
    table.writer(3).publish(ROW)
    words[3 * ROW_WORDS] += 1  # The version is odd while words are being stored.
    assert table.read(partition()) is None
    assert not table.is_untouched(partition()), "somebody had it open"
    table.writer(3).publish((*ROW[:3], 21, *ROW[4:]))
    row = table.read(partition())
    assert row is not None
    assert row.end_offset == 21


def test_table_has_a_row_for_every_slot() -> None:
    assert TABLE_BYTES == 8 * ROW_WORDS * SLOT_COUNT


def test_other_processes_see_what_the_owner_published() -> None:
    with Region.create(RegionKind.TABLE, TABLE_BYTES, 0, is_sparse=True) as region:

        def child() -> int:
            PartitionTable(region.words).writer(SLOT_COUNT - 1).publish(ROW)
            return 0

        assert Forked(child).result() == 0
        row = PartitionTable(region.words).read(partition(slot=SLOT_COUNT - 1))
        assert row is not None
        assert row == PartitionRow(NOBODY, *ROW[1:], has_producers=True)
        assert region.resident_bytes() < 1 << 20, "sparse: one row takes one page"
