"""InspectionBudget, and an append that stops when a duty cycle has read enough records."""

from __future__ import annotations

import pytest

from kproc.broker.storage.inspection import INSPECTED_MAX, ROLL_COST, InspectionBudget, InspectionPaused
from kproc.broker.storage.log_config import LogConfig
from tests.support.logs import LogRig
from tests.support.raw import batch


def test_append_stops_when_the_budget_is_used_up(rig: LogRig) -> None:
    rig.config = LogConfig(compression_type="gzip")
    log = rig.open()
    budget = log.state.inspection = InspectionBudget()
    views = [memoryview(bytearray(batch(b"v", timestamp_ms=-1))) for _ in range(3)]
    budget.spend(INSPECTED_MAX - 1, 0)
    with pytest.raises(InspectionPaused) as paused:
        log.append(views, hidden_from=0)
    assert [each.base_offset for each in paused.value.results] == [0]
    assert (log.state.end_offset, log.state.high_watermark) == (1, 0)
    budget.renew()
    assert [each.base_offset for each in log.append(views[1:], hidden_from=0)] == [1, 2]
    assert list(log.state.unconfirmed) == [(0, 1), (1, 3)]
    log.close()


def test_batches_that_roll_the_log_use_the_budget(rig: LogRig) -> None:
    """A later batch that fits the segment must not overtake a paused one."""
    rig.config = LogConfig(segment_ms=1_000)
    log = rig.open()
    budget = log.state.inspection = InspectionBudget()
    views = [memoryview(bytearray(batch(b"v", timestamp_ms=1_000_000 + 5_000 * at))) for at in range(40)]
    with pytest.raises(InspectionPaused) as paused:
        log.append(views)
    done = len(paused.value.results)
    assert done == log.state.end_offset == 1 + INSPECTED_MAX // ROLL_COST
    budget.pause(log.state)
    fits = memoryview(bytearray(batch(b"v", timestamp_ms=1_000_000 + 5_000 * done - 5_000)))
    with pytest.raises(InspectionPaused):
        log.append([fits])
    budget.renew()
    budget.unpause(log.state)
    assert [each.base_offset for each in log.append(views[done:])] == list(range(done, 40))
    assert log.append([fits])[0].base_offset == 40
    log.close()


def test_batch_that_is_read_and_rolls_the_log_makes_progress(rig: LogRig) -> None:
    """Reading it uses up the budget, before and after the roll."""
    rig.config = LogConfig(segment_ms=1_000, compression_type="gzip")
    log = rig.open()
    budget = log.state.inspection = InspectionBudget()
    waiting = [memoryview(bytearray(batch(b"v", timestamp_ms=1_000_000 + 5_000 * at))) for at in range(3)]
    cycles = 0
    while waiting and cycles < 9:
        budget.renew()
        budget.spend(INSPECTED_MAX - 1, 0)
        cycles += 1
        try:
            waiting = waiting[len(log.append(waiting)) :]
        except InspectionPaused as paused:
            waiting = waiting[len(paused.results) :]
    assert (log.state.end_offset, cycles) == (3, 5)
    log.close()


def test_paused_log_accepts_no_batch_although_budget_is_left(rig: LogRig) -> None:
    rig.config = LogConfig(compression_type="gzip")
    log = rig.open()
    budget = log.state.inspection = InspectionBudget()
    budget.pause(log.state)
    with pytest.raises(InspectionPaused):
        log.append([memoryview(bytearray(batch(b"v")))])
    assert log.state.end_offset == 0
    log.close()


def test_decompressed_bytes_count_like_records() -> None:
    budget = InspectionBudget()
    budget.spend(1, INSPECTED_MAX * 64)
    with pytest.raises(InspectionPaused):
        budget.check(None)  # type: ignore[arg-type]
