"""LastStop: the start and the end of a log by checkpoints, and by the row that its dead owner published."""

from __future__ import annotations

from kproc.broker.storage.last_stop import LastStop, TrustedEnd


def row(*, start: int, end: int) -> TrustedEnd:
    return TrustedEnd(end, segment_base=0, position=0, start_offset=start)


def test_effective_start_is_the_larger_of_checkpoint_and_row() -> None:
    assert LastStop(start_offset=5).effective_start == 5
    assert LastStop(start_offset=5, trusted=row(start=3, end=9)).effective_start == 5
    assert LastStop(start_offset=5, trusted=row(start=7, end=9)).effective_start == 7


def test_confirmed_end_is_the_larger_of_sync_and_row() -> None:
    assert LastStop(recovery_point=8).confirmed_end == 8
    assert LastStop(recovery_point=8, trusted=row(start=0, end=6)).confirmed_end == 8
    assert LastStop(recovery_point=8, trusted=row(start=0, end=12)).confirmed_end == 12


def test_start_without_any_record_of_it_is_not_explained() -> None:
    assert LastStop().explained_start is None
    assert LastStop(recorded_start=4).explained_start == 4
    assert LastStop(start_offset=6, recorded_start=4).explained_start == 6
    assert LastStop(trusted=row(start=0, end=9)).explained_start == 0, "a row with a start of 0 is a fact"
