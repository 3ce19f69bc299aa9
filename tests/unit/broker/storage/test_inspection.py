"""InspectionBudget, and an append that stops when a duty cycle has read enough records."""

from __future__ import annotations

import pytest

from kproc.broker.storage.inspection import INSPECTED_MAX, InspectionBudget, InspectionPaused
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


def test_paused_log_accepts_no_batch_although_budget_is_left(rig: LogRig) -> None:
    rig.config = LogConfig(compression_type="gzip")
    log = rig.open()
    budget = log.state.inspection = InspectionBudget()
    budget.paused.add(log.state)
    with pytest.raises(InspectionPaused):
        log.append([memoryview(bytearray(batch(b"v")))])
    assert log.state.end_offset == 0
    log.close()


def test_decompressed_bytes_count_like_records() -> None:
    budget = InspectionBudget()
    budget.spend(1, INSPECTED_MAX * 64)
    with pytest.raises(InspectionPaused):
        budget.check(None)  # type: ignore[arg-type]
