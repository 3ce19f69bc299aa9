"""LogReader: finds records by offset, and reports damage and positions outside the log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kproc.broker.storage.log import LogConfig
from kproc.broker.storage.validate import COORDINATOR
from kproc.common.errors import Corrupt, ErrorCode, KafkaError
from kproc.wire.record_batch import TRANSACTIONAL
from kproc.wire.transaction_marker import ControlType, encode_end_transaction
from tests.support.filled_log import filled
from tests.support.logs import NOW_MS, LogRig, append_one, batch, read_all, sequenced


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0", config=LogConfig(segment_bytes=1000, index_interval_bytes=150))


def test_a_read_gives_whole_first_batches_and_then_a_cut_one(rig: LogRig) -> None:
    log = filled(rig)
    one = log.read(0, 1)
    assert (len(one.ranges), one.bytes) == (1, one.ranges[0].length)
    assert log.read(0, 1, minimum_one=False).ranges == []
    assert log.read(0, one.bytes + 10).bytes == one.bytes + 10
    assert (one.high_watermark, one.last_stable_offset, one.log_start_offset) == (60, 60, 0)
    # An offset in the middle of a batch gets the batch.
    assert log.read(1, 1).ranges == one.ranges
    log.close()


@pytest.mark.parametrize("offset", [-1, 61, 2**40])
def test_outside_the_log(rig: LogRig, offset: int) -> None:
    log = filled(rig)
    with pytest.raises(KafkaError) as caught:
        log.read(offset, 100)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(60, 100).ranges == []
    log.close()


def test_only_few_sealed_segments_keep_their_descriptors(rig: LogRig) -> None:
    log = filled(rig, 100)
    assert log.state.segment_count > 6
    assert len(read_all(log)) == 200
    for offset in range(0, 200, 3):
        log.read(offset, 10)
    assert sum(segment.fd >= 0 for segment in log.state.segments.all()) <= 3
    log.close()


def test_read_up_to_a_sealed_segment_whose_file_is_gone(rig: LogRig, tmp_path: Path) -> None:
    """Another program removed, cut or moved the file. The owner can still have it open, the Processor cannot."""
    log = filled(rig, 100)
    _, second, third = (segment.base_offset for segment in log.state.segments.all()[:3])
    whole = log.read(0, 10**6)
    path = rig.directory / f"{second:020}.log"
    for change in (path.unlink, lambda: os.truncate(path, 1), lambda: path.rename(tmp_path / "elsewhere")):
        content = path.read_bytes()
        log.read(second, 1)  # Opens the file.
        change()
        before = log.read(0, 10**6)
        assert [each.path for each in before.ranges] == [whole.ranges[0].path]
        with pytest.raises(
            Corrupt, match=f"another program has removed, replaced or truncated .*{second:020}.log"
        ):
            log.read(second, 10**6)
        assert log.read(third, 10**6).ranges == whole.ranges[2:]
        path.write_bytes(content)
        log.state.segments.all()[1].inode = path.stat().st_ino
    log.close()


def transactional(pid: int, sequence: int) -> memoryview:
    return sequenced(pid, sequence, flags=TRANSACTIONAL)


def marker(pid: int, outcome: ControlType) -> memoryview:
    return memoryview(
        encode_end_transaction(
            outcome, timestamp_ms=NOW_MS, producer_id=pid, producer_epoch=0, coordinator_epoch=1
        )
    )


def test_aborted_transaction_is_found_by_crossing_fetches(rig: LogRig) -> None:
    log = rig.open()
    for view in (transactional(1, 0), transactional(2, 0), batch("plain"), transactional(1, 1)):
        append_one(log, view)
    assert append_one(log, marker(1, ControlType.ABORT)).error_code == ErrorCode.INVALID_RECORD
    assert append_one(log, marker(1, ControlType.ABORT), origin=COORDINATOR).base_offset == 4
    assert log.state.last_stable_offset == 1
    assert append_one(log, marker(2, ControlType.COMMIT), origin=COORDINATOR).base_offset == 5
    assert log.state.last_stable_offset == 6
    assert [tuple(entry) for entry in log.reader.aborted_transactions(0, 6)] == [(1, 0, 4, 1)]
    assert log.reader.aborted_transactions(5, 6) == []
    content = (rig.directory / f"{0:020d}.txnindex").read_bytes()
    assert content.hex() == "0000" + "".join(f"{n:016x}" for n in (1, 0, 4, 1))
    log.close(clean=False)
    # After a crash before the index entry was written, the replay adds it.
    (rig.directory / f"{0:020d}.txnindex").unlink()
    for name in rig.directory.glob("*.snapshot"):
        name.unlink()
    log = rig.open()
    assert [tuple(entry) for entry in log.reader.aborted_transactions(0, 6)] == [(1, 0, 4, 1)]
    assert log.state.last_stable_offset == 6
    log.close()
