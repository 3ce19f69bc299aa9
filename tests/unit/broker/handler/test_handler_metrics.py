"""HandlerMetrics: the row of a Handler after a tick."""

from __future__ import annotations

from pathlib import Path

from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig
from tests.support.in_memory_controller import topic
from tests.support.raw import NO_TOPIC_ID, batch, fetch_fields, produce_fields


def test_tick_adds_counts_once_and_sets_gauges(tmp_path: Path) -> None:
    with HandlerRig(tmp_path) as rig:
        rig.cluster.create(topic("t", 1))
        rig.tell()
        processor = rig.processors[0]
        for _ in range(3):
            processor.ask(ApiKey.PRODUCE, 8, produce_fields([("t", NO_TOPIC_ID, [(0, bytes(batch(b"v")))])]))
        processor.send(ApiKey.FETCH, 12, fetch_fields([("t", NO_TOPIC_ID, [(0, 3)])], max_wait_ms=10_000))
        assert processor.answers() == []
        rig.advance_ms(100)
        row = rig.slab.read(0)
        assert (row["requests"], row["batches_appended"], row["append_calls"]) == (4, 3, 3)
        assert (row["parked"], row["logs_open"]) == (1, 1)
        rig.advance_ms(100)
        again = rig.slab.read(0)
        assert [again[name] for name in ("requests", "batches_appended", "bytes_appended")] == [
            row[name] for name in ("requests", "batches_appended", "bytes_appended")
        ]
