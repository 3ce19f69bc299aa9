"""KeyMap: flags of offsets take bounded memory, and gaps keep the newest record."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kproc.broker.storage import compaction_records
from kproc.broker.storage.compaction_map import KeyMap
from kproc.broker.storage.compaction_records import OffsetFlags, records_of
from kproc.broker.storage.log import Log, LogConfig
from kproc.common.errors import Corrupt
from kproc.wire.batch_header import HEADER
from kproc.wire.compression import compress
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support import hostile
from tests.support.compaction import compact
from tests.support.logs import NOW_MS, LogRig, append_one, read_all

"""Of 4096 records: 2 to 4 ms."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = LogRig(tmp_path / "t-0").open()
    yield log
    log.close(clean=False)


def keyed(count: int, *, codec: int = 0, keys: int = 10**9) -> bytes:
    records = [Record(b"%d" % (number % keys), b"v", NOW_MS) for number in range(count)]
    return bytes(encode_batch(records, codec=codec))


def compacting(rig_log: Log) -> None:
    """Seal what was written, and change the topic's policy to compaction."""
    rig_log.state.roll(rig_log.state.end_offset, NOW_MS)
    rig_log.state.reconfigure(replace(rig_log.state.config, cleanup_policy=frozenset({"compact"})))


def test_map_keys_yields_inside_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both readings of a batch, and its rebuilding, go in steps of a bounded number of records."""
    monkeypatch.setattr(compaction_records, "RECORDS_PER_STEP", 100)
    rig = LogRig(tmp_path / "t-0", config=LogConfig(max_message_bytes=4 << 20))
    log = rig.open()
    append_one(log, memoryview(bytearray(keyed(5_000, codec=4, keys=2_500))))
    compacting(log)
    steps: list[int] = []

    real = compaction_records.steps_of

    def counted(count: int) -> Iterator[Iterator[None]]:
        for step in real(count):
            steps.append(count)
            yield step

    monkeypatch.setattr(compaction_records, "steps_of", counted)
    done = compact(rig, log)
    assert (done.swaps, len(steps)) == (1, 100)
    assert len(read_all(log)) == 2_500
    log.close(clean=False)


def test_flags_of_claimed_offsets_take_no_memory() -> None:
    """Emptied batches and gaps may span billions of offsets; one byte for each was once allocated."""
    key_map = KeyMap(0, memory_bytes=1 << 20)
    key_map.advance(2**40)
    tracemalloc.start()
    try:
        survivors = next(done for done in key_map.finish() if done is not None)
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()
    assert (key_map.is_full, survivors.flags.count(0, 2**40)) == (False, None)


def test_offset_flags_count_across_pages() -> None:
    flags = OffsetFlags()
    size = OffsetFlags.PAGE_OFFSETS
    for number in (0, 5, size - 1, size, 3 * size + 7):
        flags.set(number, 1)
    flags.set(6, 2)
    assert flags.count(0, 4 * size) == (5, 1)
    assert flags.count(5, 6) == (1, 1)
    assert flags.count(size - 1, size) == (2, 0)
    assert flags.count(size + 1, 3 * size + 6) == (0, 0)


def test_compaction_over_large_gaps_keeps_the_newest(tmp_path: Path) -> None:
    """Offsets 2^31 apart, as compaction leaves them, with one key in both ends."""
    rig = LogRig(tmp_path / "t-0")
    log = rig.open()
    append_one(log, memoryview(encode_batch([Record(b"k", b"old", NOW_MS), Record(b"a", b"1", NOW_MS)])))
    log.state.end_offset = 3_000_000_000
    log.state.roll(log.state.end_offset, NOW_MS)
    append_one(log, memoryview(encode_batch([Record(b"k", b"new", NOW_MS)])))
    compacting(log)
    compact(rig, log)
    assert read_all(log) == [(1, b"1"), (3_000_000_000, b"new")]
    log.close(clean=False)


def test_batch_of_too_many_records_is_not_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_records, "RECORDS_MAX", 10)
    view = hostile.sealed(compress(4, hostile.empty_records(11)), count=11, codec=4)
    with pytest.raises(Corrupt, match="claims 11 records"):
        records_of(HEADER.unpack_from(view), bytes(view), 0)
