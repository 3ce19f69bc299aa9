"""ShareCounters: acknowledged records by type, and what a drain resets."""

from __future__ import annotations

from kproc.broker.share.partition.messages import AcknowledgeBatch, AcknowledgeType
from kproc.broker.share.partition.share_counters import ShareCounters


def test_one_type_counts_for_all_offsets_of_its_batch() -> None:
    counters = ShareCounters()
    accept, release, reject = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
    counters.add_acknowledgements(
        [
            AcknowledgeBatch(10, 19, [accept]),
            AcknowledgeBatch(20, 23, [release, reject, AcknowledgeType.GAP, release]),
        ]
    )
    counters.expired += 2
    counters.dead_letters += 1
    assert counters.drain() == (10, 2, 1, 2, 1, 0)
    assert counters.drain() == (0, 0, 0, 0, 0, 0)
