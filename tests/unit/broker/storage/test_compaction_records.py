"""Records of hostile batches in compaction: corrupt ones end it, and a step is bounded."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kproc.broker.storage import compaction
from kproc.broker.storage.compaction_records import collect_keys, records_of
from kproc.broker.storage.log import Log, LogConfig
from kproc.common.errors import Corrupt
from kproc.wire.batch_header import HEADER
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support import hostile
from tests.support.bytecodes import count_bytecodes
from tests.support.compaction import compact
from tests.support.logs import NOW_MS, LogRig, append_one, batch

STEP_BYTECODES_MAX = 1_500_000
"""Of 4096 records: 2 to 4 ms."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = LogRig(tmp_path / "t-0").open()
    yield log
    log.close(clean=False)


def keyed(count: int, *, codec: int = 0, keys: int = 10**9) -> bytes:
    records = [Record(b"%d" % (number % keys), b"v", NOW_MS) for number in range(count)]
    return bytes(encode_batch(records, codec=codec))


def unchecked(log: Log, view: memoryview) -> None:
    """Append a batch as an older broker, or another one, has stored it."""
    active = log.state.active
    base = log.state.end_offset
    header = HEADER.unpack_from(view)
    view[0:8] = base.to_bytes(8, "big")
    log.state.fs.write(active.descriptor(), [view], position=active.size)
    active.size += len(view)
    log.state.end_offset = base + header[6] + 1
    log.state.recovery_point = log.state.end_offset


def compacting(rig_log: Log) -> None:
    """Seal what was written, and change the topic's policy to compaction."""
    rig_log.state.roll(rig_log.state.end_offset, NOW_MS)
    rig_log.state.reconfigure(replace(rig_log.state.config, cleanup_policy=frozenset({"compact"})))


HOSTILE = {
    "a timestamp of 127 kB": lambda: hostile.sealed(hostile.long_timestamp(127 << 10)),
    "a timestamp of 11 bytes": lambda: hostile.sealed(hostile.long_timestamp(11)),
    "a length without end": lambda: hostile.sealed(b"\xff" * 100),
    "a count of 2^31 - 1": lambda: hostile.sealed(hostile.EMPTY_RECORD, count=2**31 - 1),
    "a count that the bytes cannot hold": lambda: hostile.sealed(hostile.EMPTY_RECORD, count=2),
    "an offset outside of the batch": lambda: hostile.sealed(hostile.record(b"\0\0\x7e\2k\2v\0")),
    "no zstd": lambda: hostile.sealed(b"garbage", codec=4),
}


@pytest.mark.parametrize("story", HOSTILE)
def test_compaction_of_hostile_batch_ends_with_corrupt(tmp_path: Path, story: str) -> None:
    """The cleaner marks such a log as uncleanable. It must not loop, and must not store by a claimed count."""
    rig = LogRig(tmp_path / "t-0")
    log = rig.open()
    append_one(log, batch("first"))
    unchecked(log, HOSTILE[story]())
    compacting(log)
    tracemalloc.start()
    try:
        used: list[int] = []
        with pytest.raises(Corrupt):
            used.append(count_bytecodes(lambda: compact(rig, log), unless_in=__file__))
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    log.close(clean=False)


def test_varint_of_127_kb_is_read_for_10_bytes() -> None:
    """One of 127 MiB, 4 kB as zstd, once stopped the cleaner for minutes."""
    view = hostile.sealed(hostile.long_timestamp(127 << 10))
    header = HEADER.unpack_from(view)

    def read() -> None:
        with pytest.raises(Corrupt):
            list(collect_keys({}, header, *records_of(header, bytes(view), 0)))

    assert count_bytecodes(read, unless_in=__file__) < 1000


@pytest.mark.long
@pytest.mark.parametrize("reading", ["keys", "survivors"])
def test_step_of_compaction_is_bounded(tmp_path: Path, reading: str) -> None:
    """The largest step between two yields, in bytecodes, over a batch of 25,000 records."""
    rig = LogRig(tmp_path / "t-0", config=LogConfig(max_message_bytes=4 << 20))
    log = rig.open()
    append_one(log, memoryview(bytearray(keyed(25_000, codec=4, keys=12_500))))
    compacting(log)
    costs: list[int] = []
    real = compaction.CompactionPass.map_keys if reading == "keys" else compaction.CompactionPass.rewrite

    def stepped(self: compaction.CompactionPass, *group: object) -> Iterator[int]:
        steps = real(self, *group)
        moved: list[int] = [0]
        while moved:
            moved.clear()
            costs.append(count_bytecodes(partial(_move, steps, moved), unless_in=__file__))
            yield from moved

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction.CompactionPass, real.__name__, stepped)
        compact(rig, log)
    assert len(costs) >= 6
    assert max(costs) < STEP_BYTECODES_MAX
    log.close(clean=False)


def _move(steps: Iterator[int], moved: list[int]) -> None:
    for each in steps:
        moved.append(each)
        return
