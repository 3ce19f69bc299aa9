"""A log in the directory of a broker that does not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.storage.log import Log, LogConfig
from tests.support.logs import NOW_MS, LogRig, append_one, batch

PER_BATCH = 5


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "data" / "t-0", LogConfig(segment_bytes=1024, index_interval_bytes=200))


@pytest.fixture
def log(rig: LogRig) -> Log:
    """Several segments of batches of five records, ten milliseconds apart."""
    rig.directory.parent.mkdir(exist_ok=True)
    log = rig.open()
    for number in range(60):
        values = [b"%06d" % (number * PER_BATCH + each) for each in range(PER_BATCH)]
        append_one(log, batch(*values, timestamp=NOW_MS + number * 50, step_ms=10))
    log.close()
    return log
