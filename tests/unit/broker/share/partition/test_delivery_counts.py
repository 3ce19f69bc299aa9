"""The counts of records in flight: by state and by delivery count."""

from __future__ import annotations

from kproc.broker.share.partition.delivery_counts import count_records
from kproc.broker.share.state.messages import RecordState, StateBatch


def test_finished_records_are_not_in_flight() -> None:
    batches = [
        StateBatch(0, 1, RecordState.ACKNOWLEDGED, 1),
        StateBatch(2, 2, RecordState.ARCHIVED, 5),
        StateBatch(3, 5, RecordState.ACQUIRED, 2),
        StateBatch(6, 6, RecordState.AVAILABLE, 1),
        StateBatch(7, 7, RecordState.ARCHIVING, 5),
        StateBatch(8, 9, RecordState.AVAILABLE, 2),
    ]
    assert count_records(batches) == {"in_flight": 7, "acquired": 3, "deliveries": [[1, 1], [2, 5], [5, 1]]}


def test_empty_window_has_no_records_in_flight() -> None:
    assert count_records([]) == {"in_flight": 0, "acquired": 0, "deliveries": []}
