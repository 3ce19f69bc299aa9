"""Retention in a Handler: deletes expired segments of the partitions that it owns."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.cleaner_calls import Deleted, PartitionRequest
from kproc.broker.handler.owner_calls import enforce_retention
from kproc.common.errors import ErrorCode
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.partition_requests import directories, fetch, produce

Start = Callable[..., HandlerRig]


def test_retention_deletes_what_is_past_it_and_the_table_says_so(start: Start) -> None:
    rig = start()
    rig.create_topic("t", retention_bytes="1000000", segment_bytes="1048576")
    for _ in range(5):
        produce(rig, "t", random.Random(1).randbytes(600_000))
    assert rig.open("t").log.state.start_offset == 0
    assert rig.partitions().enforce_retention(("t", 0)) == 3
    row = rig.table.read(rig.image_of("t"))
    assert row is not None
    assert row.start_offset == rig.open("t").log.state.start_offset == 3
    assert rig.partitions().enforce_retention(("t", 0)) == 0
    assert fetch(rig, "t", 0) == (int(ErrorCode.OFFSET_OUT_OF_RANGE), [])


def test_retention_of_a_partition_that_is_offline_is_silent(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    rig = start()
    rig.create_topic("offline")
    rig.create_topic("damaged")
    produce(rig, "offline")
    rig.open("offline").log.state.set_offline("a test says so")
    rig.partitions()._damaged["damaged", 0] = "a test says so, too"
    caplog.clear()
    replies: list[Deleted | Lost] = []
    for name in ("offline", "damaged"):
        body = PartitionRequest(0, name, 0)
        enforce_retention(rig.partitions(), parts_of(rig.handler()).transfers, body, replies.append)
    assert replies == [Deleted(0)] * 2
    assert not caplog.records, "it was said when it happened, and would be said at every round of the cleaner"


def test_retention_of_other_owners_partition_is_ignored(start: Start) -> None:
    rig = start(handlers=2)
    rig.create_topic("t", partitions=2)
    assert rig.partitions(1 - rig.owner("t")).enforce_retention(("t", 0)) == 0
    assert rig.partitions().enforce_retention(("unknown", 0)) == 0
    assert directories(rig) == []
