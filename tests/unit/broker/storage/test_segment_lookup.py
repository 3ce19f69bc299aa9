"""Look-ups in a segment: batches by offset and by time, and damage that they meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.storage.log import LogConfig
from kproc.broker.storage.segment_lookup import headers_before, headers_from, locate
from kproc.common.errors import Corrupt
from kproc.wire.batch_header import BASE_OFFSET
from tests.support.filled_log import filled
from tests.support.logs import LogRig, append_one, batch


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0", config=LogConfig(segment_bytes=1000, index_interval_bytes=150))


def test_locate_returns_the_batch_of_an_offset_or_none(tmp_path: Path) -> None:
    log = LogRig(tmp_path / "t-0", config=LogConfig(index_interval_bytes=150)).open()
    ends = [append_one(log, batch("a", "b")).last_offset + 1 for _ in range(20)]
    segment = log.state.active
    size = segment.size // 20
    assert [locate(segment, offset) for offset in range(40)] == [(n // 2 * size, size) for n in range(40)]
    assert locate(segment, ends[-1]) is None
    log.close()


def test_headers_before_an_offset_begin_at_an_earlier_entry(tmp_path: Path) -> None:
    log = LogRig(tmp_path / "t-0", config=LogConfig(index_interval_bytes=150)).open()
    for _ in range(20):
        append_one(log, batch("a"))
    segment = log.state.active
    offsets = [header[BASE_OFFSET] for header in headers_before(segment, 15, 2)]
    assert offsets == list(range(offsets[0], 15))
    assert 0 < offsets[0] < 14
    assert [header[BASE_OFFSET] for header in headers_before(segment, 15, 1000)] == list(range(15))
    assert len(list(headers_from(segment, segment.size // 2))) == 10
    log.close()


def test_every_offset_is_found_with_and_without_the_tail_cache(rig: LogRig) -> None:
    log = filled(rig)
    cached = [log.read(offset, 10_000) for offset in range(60)]
    log.state.tail.reset(log.state.end_offset)
    assert [log.read(offset, 10_000) for offset in range(60)] == cached
    log.close()


def test_a_batch_between_two_entries_is_found_though_it_has_none(tmp_path: Path) -> None:
    """Large and small ones mixed: before a large one's entry stand batches that are in no entry."""
    log = LogRig(tmp_path / "t-0").open()
    sizes = [30_000, 10, 10, 20_000, 1000, 10, 10_000, 5000, 10, 50_000, 10]
    for size in sizes * 4:
        append_one(log, batch(bytes(size)))
    cached = [log.read(offset, 100) for offset in range(log.state.end_offset)]
    log.state.tail.reset(log.state.end_offset)
    assert [log.read(offset, 100) for offset in range(log.state.end_offset)] == cached
    assert [log.read(offset, 100) for offset in reversed(range(log.state.end_offset))] == cached[::-1]
    log.close()


def test_damage_met_while_reading_is_corrupt(rig: LogRig) -> None:
    log = filled(rig, 3)
    path = rig.directory / f"{0:020d}.log"
    path.write_bytes(bytes(path.stat().st_size))
    log.state.tail.reset(log.state.end_offset)
    with pytest.raises(Corrupt):
        log.read(0, 100)
    log.close(clean=False)
