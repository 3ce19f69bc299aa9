"""Gaps between segments, which Kafka's cleaner leaves, get an empty batch; damaged segments stay as they are."""

from __future__ import annotations

from pathlib import Path

from kproc.broker.storage.offset_gaps import fill_offset_gaps
from kproc.broker.storage.os_fs import OsFs
from kproc.wire.record_batch import parse_header
from tests.support.logs import LogRig, batch, read_all


def segment(rig: LogRig, base: int, *values: str) -> Path:
    rig.directory.mkdir(exist_ok=True)
    path = rig.directory / f"{base:020}.log"
    data = bytearray(batch(*values)) if values else bytearray()
    data[:8] = base.to_bytes(8) if values else b""
    path.write_bytes(data)
    return path


def test_gap_is_filled_up_to_the_next_segment_once(rig: LogRig) -> None:
    rig.open().close(clean=False)
    first = segment(rig, 0, "a", "b")
    before = first.read_bytes()
    segment(rig, 7, "c")
    assert fill_offset_gaps(OsFs(), rig.directory) == 1
    header = parse_header(first.read_bytes(), len(before))
    assert (header.base_offset, header.last_offset, header.record_count) == (2, 6, 0)
    assert first.read_bytes()[: len(before)] == before
    assert fill_offset_gaps(OsFs(), rig.directory) == 0
    log = rig.open()
    assert [value for _, value in read_all(log)] == [b"a", b"b", b"c"]
    log.close(clean=False)


def test_damaged_segment_stays_for_the_opening_to_judge(rig: LogRig) -> None:
    torn = segment(rig, 0, "a", "b")
    torn.write_bytes(torn.read_bytes()[:-3])
    before = torn.read_bytes()
    segment(rig, 7, "c")
    assert fill_offset_gaps(OsFs(), rig.directory) == 0
    assert torn.read_bytes() == before
