"""SegmentList: a log of many segments is synced in parts, with bounded descriptors."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.storage.log import Log, LogConfig
from kproc.broker.storage.segments import ColdSegments
from tests.support.logs import NOW_MS, LogRig, append_one, batch, read_all
from tests.support.proc import open_descriptors

SEGMENTS = 200
DESCRIPTORS_MAX = 110


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0", config=LogConfig(segment_ms=1))


def rolled(rig: LogRig) -> Log:
    """A log in which each batch is dated so that it begins a segment. Nothing is synced."""
    log = rig.open()
    for number in range(SEGMENTS):
        assert append_one(log, batch(str(number), timestamp=NOW_MS + 10 * number)).error_code == 0
    assert log.state.segment_count == SEGMENTS
    return log


def test_sync_point_of_many_segments_covers_a_part(rig: LogRig) -> None:
    """Each sealed segment costs three descriptors. 3,000 rolls once took 3,482, and other topics had none left."""
    log = rolled(rig)
    before = len(open_descriptors())
    ends = []
    while log.state.recovery_point < log.state.end_offset:
        point = log.durability.sync_point()
        assert len(open_descriptors()) - before <= DESCRIPTORS_MAX
        log.durability.run_sync(point)
        log.durability.mark_synced(point)
        ends.append(log.state.recovery_point)
    assert ends == sorted(set(ends))
    assert log.state.unsynced.segments == []
    log.close()


@pytest.mark.parametrize("ending", ["sync", "close"])
def test_sync_of_many_segments_confirms_all(rig: LogRig, ending: str) -> None:
    log = rolled(rig)
    before = len(open_descriptors())
    if ending == "sync":
        log.durability.sync()
        assert len(open_descriptors()) <= before + 10
    log.close()
    assert log.state.recovery_point == log.state.end_offset == SEGMENTS
    again = rig.open()
    assert [offset for offset, _ in read_all(again)] == list(range(SEGMENTS))
    again.close()


def test_failed_sync_of_a_part_confirms_nothing(rig: LogRig) -> None:
    log = rolled(rig)
    point = log.durability.sync_point()
    log.durability.sync_failed(point, "a test says so")
    assert (log.state.recovery_point, log.state.is_offline) == (0, True)
    log.close(clean=False)


def test_cold_segments_share_a_budget_over_logs(tmp_path: Path) -> None:
    """A Handler has one budget for all of its logs; the segment that was read least recently is closed."""
    cold = ColdSegments(5)
    rigs = [LogRig(tmp_path / f"t-{number}", config=LogConfig(segment_ms=1)) for number in range(3)]
    logs = [rig.open() for rig in rigs]
    for log in logs:
        log.state.segments.cold = cold
        for number in range(10):
            append_one(log, batch(str(number), timestamp=NOW_MS + 10 * number))
        log.durability.sync()
    before = len(open_descriptors())
    for offset in range(9):
        for log in logs:
            log.read(offset, 100)
            assert len(cold) <= 5
    assert len(open_descriptors()) <= before + 5
    kept = [segment for log in logs for segment in log.state.segments.all()[:-1] if segment.fd >= 0]
    assert {segment.base_offset for segment in kept} == {7, 8}
    logs[0].close()
    assert len(cold) == 4
    for log in logs[1:]:
        log.close()
    assert len(cold) == 0
