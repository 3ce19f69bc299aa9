"""A log with several segments of keyed records."""

from __future__ import annotations

from kproc.broker.storage.log import Log
from tests.support.logs import NOW_MS, LogRig, append_one, batch


def filled(rig: LogRig, count: int = 30) -> Log:
    """Batches of two records, 5 ms apart, 10 ms between batches."""
    log = rig.open()
    for number in range(count):
        append_one(log, batch(f"a{number}", f"b{number}", timestamp=NOW_MS + 10 * number, step_ms=5))
    return log
