"""A partition's log: appending to its segment, and finding what a Fetch wants.

    batches --Log.append: check, stamp, pwritev--> .log in the page cache
    offset --Log.read: index, header walk--> a range of the file (sendfile would send it)

The question: what does an append cost, alone and with others in one go, and what a read at the end and in the middle?
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.timing import Benchmark, main
from kproc.broker.storage.log import Log, LogIdentity
from kproc.broker.storage.log_config import LogConfig
from kproc.broker.storage.os_fs import OsFs
from kproc.common.clock import SystemClock
from kproc.common.errors import ErrorCode
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record

FILLED_BATCHES = 2_000


@contextmanager
def open_log() -> Iterator[Log]:
    """A new log in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="bench-segment-") as directory:
        clock = SystemClock()
        log = Log.open(
            LogIdentity(Path(directory) / "t-0", "t", bytes(16), 0),
            LogConfig(),
            leader_epoch=0,
            clock=clock,
            fs=OsFs(),
        )
        try:
            yield log
        finally:
            log.close()


def make_batch(record_count: int, record_bytes: int) -> bytearray:
    now_ms = SystemClock().wall_ms()
    return bytearray(encode_batch([Record(None, bytes(record_bytes), now_ms)] * record_count))


def appending(record_count: int, together: int) -> Benchmark:
    """A benchmark: one loop is one batch; `together` of them in one call."""

    def run(loops: int) -> float:
        batch = make_batch(record_count, 100)
        batches = [memoryview(bytearray(batch)) for _ in range(together)]
        took = 0.0
        with open_log() as log:
            for _ in range(0, loops, together):
                for view in batches:
                    view[:8] = bytes(8)  # As a client sends it: the append before wrote its offset there.
                started = time.perf_counter()
                results = log.append(batches)
                took += time.perf_counter() - started
            calls = -(-loops // together)
            assert all(each.error_code == ErrorCode.NONE for each in results), results
            assert log.state.end_offset == calls * together * record_count, log.state.end_offset
        return took * loops / (calls * together)

    return run


def reading(*, at_end: bool) -> Benchmark:
    """A benchmark: one loop finds 64 KiB of a log of 2,000 batches."""

    def run(loops: int) -> float:
        with open_log() as log:
            batch = make_batch(10, 100)
            for _ in range(FILLED_BATCHES):
                log.append([memoryview(bytearray(batch))])
            last = FILLED_BATCHES * 10 - 10
            found = 0
            started = time.perf_counter()
            for number in range(loops):
                result = log.read(last if at_end else number * 7919 % last, 65_536)
                found += bool(result.ranges)
            took = time.perf_counter() - started
            assert found == loops, "records were not found"
        return took

    return run


BENCHMARKS = {
    "append, 1 record": appending(1, 1),
    "append, 1 record, 32 together": appending(1, 32),
    "append, 100 records": appending(100, 1),
    "read at the end": reading(at_end=True),
    "read anywhere": reading(at_end=False),
}

if __name__ == "__main__":
    raise SystemExit(main("bench.micro.segment", __doc__, BENCHMARKS))
