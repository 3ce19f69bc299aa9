"""Rounds of fdatasync: which logs are in one, and what its end confirms."""

from __future__ import annotations

import os
from collections.abc import Callable

from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig
from tests.support.partition_requests import NO_ID, produce
from tests.support.raw import batch, produce_fields

Start = Callable[..., HandlerRig]


def test_unsynced_records_of_dead_handler_are_synced_by_next(start: Start) -> None:
    """The clean start says what the broker before has synced, and nothing of who had the log open since."""
    rig = start(handlers=2, was_clean=True)
    rig.create_topic("t", partitions=2)
    (index,) = (each for each in range(2) if rig.owner("t", each) == 1)
    fields = produce_fields([("t", NO_ID, [(index, batch(b"v"))])], acks=1)
    rig.processors[1].ask(ApiKey.PRODUCE, 9, fields)
    rig.kill(1)
    rig.set_handler_count(1)
    log = rig.open("t", index).log
    assert (log.state.end_offset, log.state.recovery_point) == (1, 0)
    point = log.durability.sync_point()
    inodes = {os.fstat(descriptor).st_ino for descriptor in point.fds}
    assert (log.state.directory / "partition.metadata").stat().st_ino in inodes
    log.durability.mark_synced(point)


def test_flush_ms_syncs_without_a_waiter(start: Start) -> None:
    rig = start()
    rig.create_topic("t", flush_ms="5000")
    produce(rig, "t")
    rig.advance_ms(100)
    assert rig.syncers[0].sizes == []
    assert rig.partitions().count_syncs() == 0
    rig.clock.advance_ms(5000)
    assert rig.partitions().count_syncs() == 1, "a sync is due, although no tick has requested it"
    for _ in range(100):
        rig.advance_ms(100)
    assert rig.syncers[0].sizes == [1]
    assert rig.partitions().count_syncs() == 1
    rig.syncers[0].end_round()
    rig.settle()
    assert rig.partitions().count_syncs() == 0
    assert rig.open("t").log.state.recovery_point == 1
    assert rig.syncers[0].sizes == [1], "nothing became due while the round ran"
