"""CleanerOffsets: a successor continues, and deleted topics get no entry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from kproc.broker.cleaner.cleaner_offsets import CleanerOffsets
from kproc.broker.storage.os_fs import OsFs
from tests.support.compactor_rig import Rig
from tests.support.in_memory_controller import topic


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack, tmp_path)


def test_successor_goes_on_at_the_cleaner_offset_of_the_topic_id(rig: Rig) -> None:
    log = rig.create("t")
    rig.fill("t", "a", "a")
    rig.run()
    rig.asked.clear()
    successor = rig.start()
    rig.run()
    t = rig.cluster.image.topics_by_name["t"]
    namesake = msgspec.structs.replace(t, topic_id=bytes(15) + b"n")
    assert successor.survey.offsets.get(t, 0) == log.state.active_base == 2
    assert successor.survey.offsets.get(namesake, 0) is None
    assert rig.asked == []
    assert rig.offsets() == {("t", 0): 2}


def test_cleaner_offset_of_deleted_topic_is_not_written(rig: Rig) -> None:
    """The pass began before the deletion, and a namesake exists when it ends."""
    rig.create("t")
    old = rig.cluster.image.topics_by_name["t"]
    rig.cluster.do("delete_topics", topics=[{"name": "t", "topic_id": bytes(16)}])
    rig.cluster.create(topic("t"))
    offsets = CleanerOffsets(OsFs(), rig.directory)
    offsets.put(rig.cluster.image, old, 0, 7)
    assert rig.offsets() == {}
    assert CleanerOffsets(OsFs(), rig.directory).get(rig.cluster.image.topics_by_name["t"], 0) is None
