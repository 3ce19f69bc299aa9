"""Log: its parts do not hold each other."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

from kproc.common.clock import ManualClock
from tests.support.logs import NOW_MS, LogRig, append_one, sequenced


class WatchedClock(ManualClock):
    """One of which somebody can know that nobody holds it any more."""


def test_unreferenced_log_is_freed_without_garbage_collection(tmp_path: Path) -> None:
    rig = LogRig(tmp_path / "t-0", clock=WatchedClock(wall_ms=NOW_MS))
    log = rig.open()
    append_one(log, sequenced(7, 0))
    log.read(0, 1 << 20)
    log.durability.sync()
    log.retention.advance_start(1)
    clock = weakref.ref(rig.clock)  # Which the log's state holds.
    gc.disable()
    try:
        log.close()
        del log, rig
        assert clock() is None, "objects that hold each other"
    finally:
        gc.enable()
