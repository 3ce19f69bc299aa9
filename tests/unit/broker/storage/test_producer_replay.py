"""ProducerReplay: producers after a start."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.storage.log import LogConfig
from tests.support.logs import NOW_MS, LogRig, append_one, sequenced


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0", config=LogConfig(index_interval_bytes=200))


# -- producers and epochs over starts


@pytest.mark.parametrize("clean", [True, False])
def test_producers_survive_a_start(rig: LogRig, clean: bool) -> None:
    rig.config = LogConfig(segment_bytes=600)
    log = rig.open()
    for number in range(10):
        append_one(log, sequenced(1, number))
        append_one(log, sequenced(2, 3 * number, count=3))
    log.close(clean=clean)
    log = rig.open(clean=clean)
    duplicate = append_one(log, sequenced(2, 27, count=3))
    assert (duplicate.is_duplicate, duplicate.base_offset, duplicate.last_offset) == (True, 37, 39)
    assert append_one(log, sequenced(1, 12)).error_code == 45
    assert append_one(log, sequenced(1, 10)).base_offset == 40
    log.close()


def test_idle_producers_are_forgotten_at_a_start(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, sequenced(1, 0))
    log.close()
    rig.clock.advance_ns(86_400_000 * 1_000_000)
    log = rig.open(clean=True)
    assert log.state.producers.get(1) is None
    log.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_producer_of_old_records_is_not_forgotten(rig: LogRig, clean: bool) -> None:
    log = rig.open()
    append_one(log, sequenced(1, 0, timestamp=5))
    assert log.state.expire_producers(NOW_MS + 1000) == 0
    log.close(clean=clean)
    log = rig.open(clean=clean)
    assert append_one(log, sequenced(1, 0, timestamp=5)).is_duplicate
    log.close()
