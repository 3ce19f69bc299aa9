"""The sizes of a share coordinator's records, when __share_group_state allows only small ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.share.state.messages import PersistedState
from kproc.broker.storage.log_config import LogConfig
from kproc.common.errors import ErrorCode
from tests.support.share_states import ShareRig

COLD_MS = 5 * 60_000


def types_in(rig: ShareRig) -> str:
    """Return S for each snapshot and U for each update in the log."""
    return "".join(type(value).__name__[0] for value in rig.records())


def count_of(rig: ShareRig) -> int:
    """Return how many batches the state has."""
    state = rig.read()
    assert isinstance(state, PersistedState)
    return len(state.batches)


def test_snapshot_above_max_message_bytes_is_put_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = ShareRig(tmp_path, share_coordinator_snapshot_update_records_per_snapshot=2)
    rig.files.config = LogConfig(max_message_bytes=1_000)
    rig.reopen()
    rig.initialize(start=0)
    # From 37 batches on, a snapshot would be too large. Updates go on.
    for at in range(60):
        assert rig.write((2 * at, 2 * at, 2, 1)) == 0
    assert types_in(rig) == "SUU" * 12 + "S" + "U" * 24
    assert count_of(rig) == 60
    too_many = [(2 * at, 2 * at, 4, 1) for at in range(60)]
    assert rig.write(*too_many) == ErrorCode.UNKNOWN_SERVER_ERROR
    rig.clock.advance_ms(COLD_MS)
    rig.coordinator.start_sweep()
    rig.settle()
    assert types_in(rig)[-1] == "U"
    (line,) = [record.getMessage() for record in caplog.records]
    assert "max.message.bytes of __share_group_state allows 840: increase it" in line
    rig.files.config = LogConfig()
    rig.reopen()
    assert rig.write((1, 1, 2, 1)) == 0
    assert types_in(rig)[-1] == "S"
    assert count_of(rig) == 59
    rig.log.close()
