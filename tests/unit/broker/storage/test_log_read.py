"""Finding records: by offset, by timestamp, by epoch, in transactions; and handing a log over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kproc.broker.storage import timestamp_search
from kproc.broker.storage.fs import OsFs
from kproc.broker.storage.log import Log, LogConfig
from kproc.broker.storage.tail_cache import BATCHES_KEPT_MAX, TailCache
from kproc.broker.storage.timestamp_search import SearchPaused, TimestampSearch
from kproc.broker.storage.validate import COORDINATOR
from kproc.common.errors import Corrupt, ErrorCode, KafkaError
from kproc.wire.record_batch import TRANSACTIONAL, ControlType, encode_end_transaction
from tests.support.logs import (
    NOW_MS,
    LogRig,
    append_one,
    batch,
    dated,
    read_all,
    records_in,
    sequenced,
)


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0", config=LogConfig(segment_bytes=1000, index_interval_bytes=150))


def filled(rig: LogRig, count: int = 30) -> Log:
    """Batches of two records, 5 ms apart, 10 ms between batches."""
    log = rig.open()
    for number in range(count):
        append_one(log, batch(f"a{number}", f"b{number}", timestamp=NOW_MS + 10 * number, step_ms=5))
    return log


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


def test_every_offset_is_found_with_and_without_the_tail_cache(rig: LogRig) -> None:
    log = filled(rig)
    cached = [log.read(offset, 10_000) for offset in range(60)]
    log.state.tail.reset(log.state.end_offset)
    assert [log.read(offset, 10_000) for offset in range(60)] == cached
    log.close()


class CountingFs(OsFs):
    """Counts what is read."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self, descriptor: int, length: int, *, position: int) -> bytes:
        self.reads += 1
        return super().read(descriptor, length, position=position)


@pytest.mark.parametrize("record_bytes", [10, 3000, 9000, 40_000])
def test_catching_up_consumer_costs_one_file_read_per_fetch(
    tmp_path: Path, record_bytes: int
) -> None:
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


def test_the_tail_cache_forgets_the_oldest() -> None:
    cache = TailCache(0)
    for number in range(3 * BATCHES_KEPT_MAX):
        cache.extend([number], [10 * number])
    end = 30 * BATCHES_KEPT_MAX
    assert cache.floor_offset > BATCHES_KEPT_MAX
    for offset in range(cache.floor_offset, 3 * BATCHES_KEPT_MAX):
        assert cache.locate(offset, end) == (10 * offset, 10)


def test_every_timestamp_finds_its_first_record(rig: LogRig) -> None:
    log = filled(rig)
    dated = [NOW_MS + 5 * number for number in range(60)]
    for timestamp in range(NOW_MS - 3, NOW_MS + 300):
        expected = next(((n, at) for n, at in enumerate(dated) if at >= timestamp), None)
        assert log.reader.offset_for_timestamp(timestamp) == expected
    assert log.reader.max_timestamp() == (59, dated[-1])
    log.close()


def test_timestamps_out_of_order(rig: LogRig) -> None:
    log = rig.open()
    for number, at in enumerate([50, 10, 90, 20, 90, 30]):
        append_one(log, batch(str(number), timestamp=NOW_MS + at))
    assert [log.reader.offset_for_timestamp(NOW_MS + at) for at in (0, 50, 51, 90, 91)] == [
        (0, NOW_MS + 50), (0, NOW_MS + 50), (2, NOW_MS + 90), (2, NOW_MS + 90), None,
    ]  # fmt: skip
    assert log.reader.max_timestamp() == (2, NOW_MS + 90)
    log.close()


def test_timestamp_search_result_always_fits_answer(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, dated(0, 2**63 - 1, 1, base=NOW_MS, largest=NOW_MS + 60))
    append_one(log, dated(0, -(2**63), base=-5, largest=NOW_MS + 70))
    found = [log.reader.offset_for_timestamp(NOW_MS + at) for at in (0, 1, 2, 70, 71)]
    wrapped = (4, 2**63 - 5)
    assert found == [(0, NOW_MS), (2, NOW_MS + 1), wrapped, wrapped, None]
    assert log.reader.max_timestamp() == wrapped
    log.retention.advance_start(1)
    assert log.reader.max_timestamp() == wrapped
    log.close()


def test_lying_headers_are_searched_in_bounded_slices(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timestamp_search, "SLICE_RECORDS", 6)
    log = rig.open()
    for _ in range(10):
        append_one(log, dated(0, 1, 2, largest=NOW_MS + 50))
    append_one(log, dated(0, 60, largest=NOW_MS + 60))
    for look in (lambda each: log.reader.offset_for_timestamp(NOW_MS + 40, each), log.reader.max_timestamp):
        search, pauses = TimestampSearch(), 0
        while True:
            try:
                found = look(search)
                break
            except SearchPaused:
                pauses += 1
        assert found == (31, NOW_MS + 60)
        assert pauses == (5 if look != log.reader.max_timestamp else 0)
    monkeypatch.setattr(timestamp_search, "SEARCH_RECORDS_MAX", 13)
    # Looked into the first record of the fifth batch: that and all before are too early.
    assert log.reader.offset_for_timestamp(NOW_MS + 40) == (13, NOW_MS + 50)
    monkeypatch.setattr(timestamp_search, "SEARCH_RECORDS_MAX", 12)
    assert log.reader.offset_for_timestamp(NOW_MS + 40) == (12, NOW_MS + 50)
    log.close()


def test_max_timestamp_behind_inner_start_is_sliced(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timestamp_search, "SLICE_RECORDS", 4)
    log = rig.open()
    for number in range(10):
        append_one(log, batch("a", "b", timestamp=NOW_MS + (90 - number) % 88, step_ms=-2))
    log.retention.advance_start(7)
    search, pauses = TimestampSearch(), 0
    while True:
        try:
            found = log.reader.max_timestamp(search)
            break
        except SearchPaused:
            pauses += 1
    # The batch of offsets 6 and 7 begins below the start: its larger timestamp does not count.
    assert found == (8, NOW_MS + 86)
    assert pauses == 2
    monkeypatch.setattr(timestamp_search, "SEARCH_RECORDS_MAX", 1)
    assert log.reader.max_timestamp() == (7, NOW_MS + 87), "too much to look into: as the header says"
    log.close()


def test_batches_that_lie_are_inflated_only_so_far(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timestamp_search, "DECOMPRESSED_BYTES_MAX", 1500)
    log = rig.open()
    for _ in range(4):
        append_one(log, dated(*([0] * 100), largest=NOW_MS + 50, codec=4))
    assert log.reader.offset_for_timestamp(NOW_MS + 40) == (100, NOW_MS + 50)
    assert log.reader.offset_for_timestamp(NOW_MS) == (0, NOW_MS)
    log.close()


def test_search_pauses_inside_a_batch(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of 60 B may hold 200,000 records, which once took one slice of 0.2 s; it is inflated once."""
    monkeypatch.setattr(timestamp_search, "SLICE_RECORDS", 30)
    inflated: list[int] = []
    real = timestamp_search.decompress
    monkeypatch.setattr(
        timestamp_search, "decompress", lambda codec, *rest: inflated.append(codec) or real(codec, *rest)
    )
    log = rig.open()
    append_one(log, dated(*range(100), largest=NOW_MS + 99, codec=4))
    search, pauses = TimestampSearch(), 0
    while True:
        search.start_slice()
        try:
            found = log.reader.offset_for_timestamp(NOW_MS + 95, search)
            break
        except SearchPaused:
            pauses += 1
    assert (found, pauses, inflated) == ((95, NOW_MS + 95), 3, [4])
    log.close()


def test_timestamps_below_the_start_do_not_count(rig: LogRig) -> None:
    log = filled(rig)
    log.retention.advance_start(5)
    assert log.reader.offset_for_timestamp(0) == (5, NOW_MS + 25)
    log.close()


def test_no_timestamps(rig: LogRig) -> None:
    log = rig.open()
    assert (log.reader.max_timestamp(), log.reader.offset_for_timestamp(0)) == (None, None)
    for value in "abc":
        append_one(log, batch(value, timestamp=-1))
    assert (log.reader.max_timestamp(), log.reader.offset_for_timestamp(0)) == ((0, -1), None)
    log.retention.advance_start(1)
    assert log.reader.max_timestamp() == (1, -1)
    log.retention.advance_start(3)
    assert log.reader.max_timestamp() is None
    log.close()


def test_damage_met_while_reading_is_corrupt(rig: LogRig) -> None:
    log = filled(rig, 3)
    path = rig.directory / f"{0:020d}.log"
    path.write_bytes(bytes(path.stat().st_size))
    log.state.tail.reset(log.state.end_offset)
    with pytest.raises(Corrupt):
        log.read(0, 100)
    log.close(clean=False)


def test_only_few_sealed_segments_keep_their_descriptors(rig: LogRig) -> None:
    log = filled(rig, 100)
    assert log.state.segment_count > 6
    assert len(read_all(log)) == 200
    for offset in range(0, 200, 3):
        log.read(offset, 10)
    assert sum(segment.fd >= 0 for segment in log.state.segments.all()) <= 3
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


def handed_over(rig: LogRig, log: Log) -> Log:
    """The log in the hands of another owner, by way of bytes."""
    state: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(log.export_state()))
    log.close(clean=False)
    return Log.import_state(
        rig.identity,
        rig.config,
        state,
        clock=rig.clock,
        fs=rig.fs,
    )


def test_a_log_goes_on_after_a_transfer_as_if_nothing_had_been(rig: LogRig) -> None:
    other = LogRig(rig.directory.with_name("other-0"), config=rig.config)
    log, unbroken = rig.open(leader_epoch=3), other.open(leader_epoch=3)
    for number in range(60):
        for both in (log, unbroken):
            assert append_one(both, sequenced(1, number, timestamp=NOW_MS + number)).error_code == 0
        if number % 7 == 0:
            log = handed_over(rig, log)
    assert append_one(log, sequenced(1, 56)).base_offset == 56  # The fifth last: all five were handed over.
    assert log.state.recovery_point == 0
    point = log.durability.sync_point()
    assert len(point.segments) == log.state.segment_count
    log.durability.run_sync(point)
    log.durability.mark_synced(point)
    for both in (log, unbroken):
        both.close()
    for name, content in other.files.items():
        assert rig.files[name] == content, name


def test_files_that_wait_for_deletion_are_handed_over(rig: LogRig) -> None:
    log = filled(rig)
    log.retention.delete_segments_before(30, "test")
    start = log.state.start_offset
    log = handed_over(rig, log)
    assert log.state.start_offset == start
    assert log.retention.unlink_due(NOW_MS + 60_000) > 0
    assert not list(rig.directory.glob("*.deleted"))
    log.close()


def test_files_that_changed_behind_a_transfer_are_refused(rig: LogRig) -> None:
    log = filled(rig, 2)
    state = log.export_state()
    append_one(log, batch("late"))
    log.close(clean=False)
    with pytest.raises(Corrupt, match="handed over"):
        Log.import_state(
            rig.identity,
            rig.config,
            state,
            clock=rig.clock,
            fs=rig.fs,
        )
