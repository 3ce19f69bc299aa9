"""ListOffsets: the leader epoch in an answer is that of the offset found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kproc.broker.api.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP, Search, find_offset
from kproc.broker.cluster.image import PartitionImage
from kproc.broker.storage.timestamp_search import TimestampSearch
from tests.support.logs import NOW_MS, LogRig, batch


def looked_up(log: Any, timestamp: int) -> tuple[int, int]:
    """(offset, leader epoch) that a partition whose leader is in epoch 4 answers."""
    owned: Any = SimpleNamespace(log=log)
    partition = PartitionImage(index=0, slot=0, slot_generation=0, owner=0, leader_epoch=4)
    row = find_offset(owned, partition, Search(timestamp, -1, 0, TimestampSearch()))
    assert row["error_code"] == 0
    return row["offset"], row["leader_epoch"]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    """Offsets 0 and 1 of epoch 0, 2 and 3 of epoch 2, and a leader in epoch 4 that has written nothing."""
    rig = LogRig(tmp_path)
    for epoch, time_ms in ((0, NOW_MS), (2, NOW_MS + 1000)):
        opened = rig.open(leader_epoch=epoch)
        opened.append([batch("a", "b", timestamp=time_ms)])
        opened.close()
    opened = rig.open(leader_epoch=4)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("timestamp", "found"),
    [(EARLIEST, (0, 0)), (LATEST, (4, 4)), (MAX_TIMESTAMP, (2, 2)), (NOW_MS, (0, 0)), (NOW_MS + 1, (2, 2))],
)
def test_the_epoch_is_that_of_the_offset_found(log: Any, timestamp: int, found: tuple[int, int]) -> None:
    assert looked_up(log, timestamp) == found


def test_an_empty_log_begins_in_the_epoch_of_its_leader(tmp_path: Path) -> None:
    log = LogRig(tmp_path).open(leader_epoch=4)
    assert looked_up(log, EARLIEST) == (0, 4)
    assert looked_up(log, NOW_MS) == (-1, -1)
    log.close()
