"""TailCache: a consumer at the tail needs one read for each Fetch."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.tail_cache import BATCHES_KEPT_MAX, TailCache
from tests.support.logs import LogRig, append_one, batch, records_in


class CountingFs(OsFs):
    """Counts what is read."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self, descriptor: int, length: int, *, position: int) -> bytes:
        self.reads += 1
        return super().read(descriptor, length, position=position)


@pytest.mark.parametrize("record_bytes", [10, 3000, 9000, 40_000])
def test_catching_up_consumer_costs_one_file_read_per_fetch(tmp_path: Path, record_bytes: int) -> None:
    """One block of index entries serves many fetches, and a batch that has an entry is not walked to."""
    fs = CountingFs()
    log = LogRig(tmp_path / "t-0", fs=fs).open()
    for number in range(400):
        append_one(log, batch(f"{number}".encode().ljust(record_bytes)))
    log.state.tail.reset(log.state.end_offset)
    fs.reads = fetches = 0
    offset = 0
    while offset < log.state.end_offset:
        found = log.read(offset, 4 * record_bytes)
        with open(found.ranges[0].path, "rb") as file:
            file.seek(found.ranges[0].position)
            offset = records_in(file.read(found.bytes))[-1].offset + 1
        fetches += 1
    assert fetches >= 400 // 4
    assert fs.reads <= fetches + 12  # Index entries: the first search, then a block now and then.
    log.close()


def test_the_tail_cache_forgets_the_oldest() -> None:
    cache = TailCache(0)
    for number in range(3 * BATCHES_KEPT_MAX):
        cache.lasts.append(number)
        cache.positions.append(10 * number)
        if len(cache.lasts) > BATCHES_KEPT_MAX:
            cache.trim()
    end = 30 * BATCHES_KEPT_MAX
    assert cache.floor_offset > BATCHES_KEPT_MAX
    for offset in range(cache.floor_offset, 3 * BATCHES_KEPT_MAX):
        assert cache.locate(offset, end) == (10 * offset, 10)
    count = len(cache.lasts)
    cache.truncate(count - 1)
    assert cache.locate(3 * BATCHES_KEPT_MAX - 2, end - 10) == (end - 20, 10)
