"""LogState: the state of a log that is transferred to another owner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kproc.broker.storage.log import Log, LogConfig
from kproc.common.errors import Corrupt
from tests.support.filled_log import filled
from tests.support.logs import NOW_MS, LogRig, append_one, batch, sequenced


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0", config=LogConfig(segment_bytes=1000, index_interval_bytes=150))


def handed_over(rig: LogRig, log: Log) -> Log:
    """The log in the hands of another owner, by way of bytes."""
    state: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(log.export_state()))
    log.close(clean=False)
    return Log.import_state(
        rig.identity,
        rig.config,
        state,
        clock=rig.clock,
        fs=rig.fs,
    )


def test_a_log_goes_on_after_a_transfer_as_if_nothing_had_been(rig: LogRig) -> None:
    other = LogRig(rig.directory.with_name("other-0"), config=rig.config)
    log, unbroken = rig.open(leader_epoch=3), other.open(leader_epoch=3)
    for number in range(60):
        for both in (log, unbroken):
            assert append_one(both, sequenced(1, number, timestamp=NOW_MS + number)).error_code == 0
        if number % 7 == 0:
            log = handed_over(rig, log)
    assert append_one(log, sequenced(1, 56)).base_offset == 56  # The fifth last: all five were handed over.
    assert log.state.recovery_point == 0
    point = log.durability.sync_point()
    assert len(point.segments) == log.state.segment_count
    log.durability.run_sync(point)
    log.durability.mark_synced(point)
    for both in (log, unbroken):
        both.close()
    for name, content in other.files.items():
        assert rig.files[name] == content, name


def test_files_that_wait_for_deletion_are_handed_over(rig: LogRig) -> None:
    log = filled(rig)
    log.retention.delete_segments_before(30, "test")
    start = log.state.start_offset
    log = handed_over(rig, log)
    assert log.state.start_offset == start
    assert log.retention.unlink_due(log.state.deletion_due_ms()) > 0
    assert not list(rig.directory.glob("*.deleted"))
    log.close()


def test_files_that_changed_behind_a_transfer_are_refused(rig: LogRig) -> None:
    log = filled(rig, 2)
    state = log.export_state()
    append_one(log, batch("late"))
    log.close(clean=False)
    with pytest.raises(Corrupt, match="has changed since"):
        Log.import_state(
            rig.identity,
            rig.config,
            state,
            clock=rig.clock,
            fs=rig.fs,
        )
