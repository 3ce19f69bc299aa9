"""A log is made of parts: what an append and a read cost, in bytecodes, and that none of them holds the log.

The counts depend on the version of Python, and on nothing that the host does meanwhile. Lower a bound when a call has
become cheaper; raising one needs a reason.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kproc.broker.storage.log import Log
from kproc.common.clock import ManualClock
from tests.support.bytecodes import count_bytecodes
from tests.support.logs import NOW_MS, LogRig, append_one, batch, sequenced

counted = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions have other bytecodes")

APPEND_MAX = 506  # With the high watermark, which most appends move.
APPEND_EACH_MORE_MAX = 171
APPEND_IDEMPOTENT_MAX = 766
READ_MAX = 232
READ_COMMITTED_MAX = 239


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = LogRig(tmp_path / "t-0").open()
    for _ in range(3):
        append_one(log, batch())
    yield log
    log.close(clean=False)


class WatchedClock(ManualClock):
    """One of which somebody can know that nobody holds it any more."""


def cost(work: Callable[[], object]) -> int:
    return count_bytecodes(work, unless_in=__file__)


@counted
def test_append_of_plain_batches(log: Log) -> None:
    one, many = [batch()], [batch() for _ in range(11)]
    first = cost(lambda: log.append(one))
    assert first <= APPEND_MAX
    assert cost(lambda: log.append(many)) - first <= 10 * APPEND_EACH_MORE_MAX


@counted
def test_append_of_an_idempotent_producer(log: Log) -> None:
    append_one(log, sequenced(7, 0))
    views = [sequenced(7, 1)]
    assert cost(lambda: log.append(views)) <= APPEND_IDEMPOTENT_MAX


@counted
def test_read_at_the_end(log: Log) -> None:
    assert cost(lambda: log.read(2, 1 << 20)) <= READ_MAX
    assert cost(lambda: log.read(2, 1 << 20, committed=True)) <= READ_COMMITTED_MAX


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
