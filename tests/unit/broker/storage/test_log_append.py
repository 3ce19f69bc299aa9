"""Log.append: numbering, what is refused and why, rolling, results."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from kproc.broker.storage import records_inside
from kproc.broker.storage.log import LogConfig
from kproc.broker.storage.validate import COORDINATOR
from kproc.common.errors import ErrorCode
from kproc.wire.compression import decompress
from kproc.wire.record_batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, check_batch, parse_header
from tests.support.failing_fs import FailingFs
from tests.support.logs import NOW_MS, LogRig, append_one, batch, dated, read_all
from tests.support.proc import open_descriptors

HOUR_MS = 3_600_000


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0")


def test_no_view_is_kept(rig: LogRig) -> None:
    rig.fs = fs = FailingFs()
    log = rig.open()
    for story in ("taken", "refused", "no room"):
        buffer = bytearray(batch("a"))
        buffer[-1] ^= story == "refused"
        if story == "no room":
            fs.fail_write(after_bytes=5)
        with memoryview(buffer) as view:
            log.append([view])
        buffer.append(0)  # BufferError if any view of it were left.
    log.close()


def test_small_log_costs_one_descriptor_also_when_reopened(rig: LogRig) -> None:
    before = len(open_descriptors())
    for ends in (1, 2):
        log = rig.open()
        append_one(log, batch("a"))
        assert (log.state.end_offset, len(open_descriptors())) == (ends, before + 1)
        log.close()


def test_batches_are_numbered_in_place_and_come_back_as_sent(rig: LogRig) -> None:
    log = rig.open(leader_epoch=7)
    first, second = batch("a", "b", "c"), batch("d")
    results = log.append([first, second])
    assert [(r.error_code, r.base_offset, r.last_offset) for r in results] == [(0, 0, 2), (0, 3, 3)]
    assert [parse_header(view).base_offset for view in (first, second)] == [0, 3]
    assert parse_header(first).partition_leader_epoch == 7
    check_batch(first)  # The CRC still matches: what was stamped lies before its bytes.
    assert read_all(log) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
    assert (log.state.start_offset, log.state.end_offset, log.state.active_bytes) == (0, 4, len(first) + len(second))
    log.close()


def test_a_refused_batch_does_not_hold_back_the_others(rig: LogRig) -> None:
    log = rig.open()
    broken = batch("b")
    broken[-1] ^= 1
    results = log.append([batch("a"), broken, batch("c")])
    assert [r.error_code for r in results] == [0, ErrorCode.CORRUPT_MESSAGE, 0]
    assert (results[1].base_offset, results[1].message is not None) == (-1, True)
    assert read_all(log) == [(0, b"a"), (1, b"c")]
    log.close()


def test_more_batches_than_one_writev_takes(rig: LogRig) -> None:
    log = rig.open()
    results = log.append([batch(str(number)) for number in range(2500)])
    assert [r.base_offset for r in results] == list(range(2500))
    assert [value for _, value in read_all(log)] == [str(number).encode() for number in range(2500)]
    log.close()


def two_in_one() -> memoryview:
    return memoryview(bytearray(bytes(batch("a")) + bytes(batch("b"))))


def damaged(sound: memoryview) -> memoryview:
    sound[-1] ^= 1
    return sound


PRODUCER = {"producer_id": 1, "producer_epoch": 0}
REFUSALS = {
    "two batches in one": (two_in_one, "INVALID_RECORD"),
    "half a batch": (lambda: batch("abc")[:-1], "INVALID_RECORD"),
    "nothing": (lambda: memoryview(bytearray()), "INVALID_RECORD"),
    "a base offset": (lambda: batch("a", base_offset=5), "INVALID_RECORD"),
    "a control record": (lambda: batch("a", flags=CONTROL, **PRODUCER), "INVALID_RECORD"),
    "a producer id without a sequence": (lambda: batch("a", **PRODUCER), "INVALID_RECORD"),
    "a broker's timestamp type": (lambda: batch("a", flags=LOG_APPEND_TIME), "INVALID_TIMESTAMP"),
    "a time too far ahead": (lambda: batch("a", timestamp=NOW_MS + HOUR_MS + 1), "INVALID_TIMESTAMP"),
    "more than max.message.bytes": (lambda: batch(bytes(1001)), "MESSAGE_TOO_LARGE"),
    "more than that, and damaged": (lambda: damaged(batch(bytes(1001))), "MESSAGE_TOO_LARGE"),
    "more than that, and a control record": (
        lambda: batch(bytes(1001), flags=CONTROL, **PRODUCER),
        "MESSAGE_TOO_LARGE",
    ),
    "more than that, and a base offset": (lambda: batch(bytes(1001), base_offset=5), "INVALID_RECORD"),
}


@pytest.mark.parametrize("story", REFUSALS)
def test_refuses(rig: LogRig, story: str) -> None:
    make, code = REFUSALS[story]
    rig.config = LogConfig(max_message_bytes=1000)
    log = rig.open()
    result = append_one(log, make())
    assert (ErrorCode(result.error_code).name, log.state.end_offset, log.state.active_bytes) == (code, 0, 0)
    log.close()


def test_a_batch_larger_than_a_segment_is_refused(rig: LogRig) -> None:
    rig.config = LogConfig(segment_bytes=200)
    log = rig.open()
    assert append_one(log, batch(bytes(200))).error_code == ErrorCode.RECORD_LIST_TOO_LARGE
    log.close()


def test_a_time_at_the_bound_is_taken(rig: LogRig) -> None:
    log = rig.open()
    assert append_one(log, batch("a", timestamp=NOW_MS + HOUR_MS)).error_code == 0
    assert append_one(log, batch("old", timestamp=0)).error_code == 0
    assert append_one(log, batch("undated", timestamp=-1)).error_code == 0
    log.close()


def test_a_lower_bound_is_checked_on_each_record(rig: LogRig) -> None:
    rig.config = LogConfig(timestamp_before_max_ms=1000)
    log = rig.open()
    early, late = batch("a", "b", step_ms=-1001), batch("a", "b", step_ms=-1000)
    assert append_one(log, early).error_code == ErrorCode.INVALID_TIMESTAMP
    assert append_one(log, late).error_code == 0
    log.close()


@pytest.mark.parametrize("count", [3, 4])
def test_batch_with_too_many_records_is_rejected_uninflated(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch, *, count: int
) -> None:
    """Some kB may hold millions of them. MESSAGE_TOO_LARGE has a producer split its batch."""
    monkeypatch.setattr(records_inside, "RECORDS_INSIDE_MAX", 3)
    inflated = []
    monkeypatch.setattr(
        records_inside, "decompress", lambda codec, *rest: inflated.append(codec) or decompress(codec, *rest)
    )
    rig.config = LogConfig(compression_type="gzip")
    log = rig.open()
    result = append_one(log, dated(*[0] * count, codec=4))
    assert result.error_code == (ErrorCode.MESSAGE_TOO_LARGE if count > 3 else 0)
    assert inflated == ([] if count > 3 else [4])
    log.close()


@pytest.mark.long
def test_records_inside_are_looked_at_one_by_one(rig: LogRig) -> None:
    rig.config = LogConfig(cleanup_policy=frozenset({"compact"}))
    log = rig.open()
    many = dated(*[0] * 20_000, key=b"k", codec=4)
    tracemalloc.start()
    try:
        assert append_one(log, many).error_code == 0
        assert tracemalloc.get_traced_memory()[1] < 1_500_000
    finally:
        tracemalloc.stop()
    log.close()


def test_so_many_bad_records_are_named_and_all_are_counted(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records_inside, "BAD_RECORDS_NAMED_MAX", 2)
    rig.config = LogConfig(cleanup_policy=frozenset({"compact"}))
    log = rig.open()
    result = append_one(log, batch("a", "b", "c"))
    assert [number for number, _ in result.record_errors] == [0, 1]
    assert "due to 3 record errors in total" in (result.message or "")
    log.close()


@pytest.mark.parametrize("after_max_ms", [HOUR_MS, 2**63 - 1])
@pytest.mark.parametrize("codec", ["producer", "gzip", "uncompressed"])
def test_timestamps_beyond_64_bits_are_read_like_clients_do(
    rig: LogRig, codec: str, after_max_ms: int
) -> None:
    rig.config = LogConfig(
        compression_type=codec, cleanup_policy=frozenset({"compact"}), timestamp_after_max_ms=after_max_ms
    )
    log = rig.open()
    # -2 - 2^63 wraps to 2^63 - 2, and the other way round.
    wraps_up = append_one(log, dated(-(2**63), base=-2, key=b"k", codec=1))
    taken = 0 if after_max_ms > HOUR_MS else ErrorCode.INVALID_TIMESTAMP
    assert wraps_up.error_code == taken
    assert append_one(log, dated(2**63 - 1, key=b"k")).error_code == ErrorCode.INVALID_TIMESTAMP
    assert append_one(log, dated(-1, base=-(2**63), largest=-1, key=b"k")).error_code == taken
    if not taken:
        assert log.reader.max_timestamp() == (1, 2**63 - 1)
    log.close()


def test_append_time_dates_the_batch_and_its_crc(rig: LogRig) -> None:
    rig.config = LogConfig(timestamp_type="LogAppendTime")
    log = rig.open()
    view = batch("a", "b", timestamp=NOW_MS - 10 * HOUR_MS, codec=1)
    result = append_one(log, view)
    header = check_batch(view)
    assert (result.append_time_ms, header.max_timestamp, header.is_log_append_time) == (NOW_MS, NOW_MS, True)
    log.close()


def test_the_coordinator_may_write_what_a_client_may_not(rig: LogRig) -> None:
    log = rig.open()
    assert append_one(log, batch("a", timestamp=NOW_MS + 10 * HOUR_MS), origin=COORDINATOR).error_code == 0
    log.close()


def test_transactional_batches_hold_the_last_stable_offset(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, batch("before"))
    append_one(log, batch("in", producer_id=9, producer_epoch=0, base_sequence=0, flags=TRANSACTIONAL))
    append_one(log, batch("after"))
    assert (log.state.last_stable_offset, log.state.end_offset) == (1, 3)
    assert [value for _, value in read_all(log, committed=True)] == [b"before"]
    assert log.read(1, 1000, committed=True).ranges == []
    outside = batch("out", producer_id=9, producer_epoch=0, base_sequence=1)
    assert append_one(log, outside).error_code == ErrorCode.INVALID_TXN_STATE
    log.close()


def test_rolls_by_size_and_reads_on_over_the_border(rig: LogRig) -> None:
    rig.config = LogConfig(segment_bytes=300)
    log = rig.open()
    results = log.append([batch(bytes(100)) for _ in range(5)])
    assert [r.base_offset for r in results] == [0, 1, 2, 3, 4]
    assert log.state.segment_count == 5
    assert log.state.active_base == 4
    assert len(log.read(0, 1 << 20).ranges) == 5
    assert [offset for offset, _ in read_all(log)] == [0, 1, 2, 3, 4]
    log.close()
    assert {name for name in rig.files if name.endswith(".snapshot")} == {
        f"{offset:020d}.snapshot" for offset in (1, 2, 3, 4, 5)
    }


def test_rolls_by_the_records_time_and_not_by_the_clock(rig: LogRig) -> None:
    rig.config = LogConfig(segment_ms=1000)
    log = rig.open()
    append_one(log, batch("a", timestamp=NOW_MS))
    rig.clock.advance_ns(5_000_000_000)
    append_one(log, batch("b", timestamp=NOW_MS + 1000))
    assert log.state.segment_count == 1
    append_one(log, batch("c", timestamp=NOW_MS + 1001))
    assert (log.state.segment_count, log.state.active_base) == (2, 2)
    log.close()


def test_rolls_by_the_clock_where_records_have_no_time(rig: LogRig) -> None:
    rig.config = LogConfig(segment_ms=1000)
    log = rig.open()
    append_one(log, batch("a", timestamp=-1))
    rig.clock.advance_ns(1_000_000_000)
    append_one(log, batch("b", timestamp=-1))
    assert log.state.segment_count == 1
    rig.clock.advance_ns(1_000_000)
    append_one(log, batch("c", timestamp=-1))
    assert log.state.segment_count == 2
    log.close()


def test_jitter_brings_each_roll_forward_by_another_time(rig: LogRig) -> None:
    rig.config = LogConfig(segment_ms=1000, segment_jitter_ms=400, index_interval_bytes=0)
    log = rig.open()
    at, ages = NOW_MS, []
    while len(ages) < 6:
        began, base = at, log.state.active_base
        append_one(log, batch("x", timestamp=at))
        while log.state.active_base == base:
            at += 10
            append_one(log, batch("x", timestamp=at))
        ages.append(at - began)
    assert all(600 <= age <= 1010 for age in ages), ages
    assert len(set(ages)) > 1, "by chance"
    log.close()


def test_rolls_when_an_index_is_full(rig: LogRig) -> None:
    rig.config = LogConfig(segment_index_bytes=48, index_interval_bytes=0)
    log = rig.open()
    for number in range(8):
        append_one(log, batch("x", timestamp=NOW_MS + number))
    # Three time entries (of four, one is kept for the seal) and so four batches a segment.
    assert [facts.base_offset for facts in log.state.segment_facts()] == [0, 4]
    log.close()


def test_the_smallest_index_does_not_roll_at_every_batch(rig: LogRig) -> None:
    rig.config = LogConfig(segment_index_bytes=4, index_interval_bytes=0)
    log = rig.open()
    for number in range(4):
        append_one(log, batch("x", timestamp=NOW_MS + number))
    assert [facts.base_offset for facts in log.state.segment_facts()] == [0, 2]
    log.close()


def test_rolls_before_an_offset_no_longer_fits_the_index(rig: LogRig) -> None:
    log = rig.open(start_offset=5)
    append_one(log, batch("a"))
    log.state.end_offset = 5 + 2**31 - 1  # As after compaction: offsets may jump.
    results = log.append([batch("b"), batch("c")])
    assert [r.base_offset for r in results] == [5 + 2**31 - 1, 5 + 2**31]
    assert log.state.active_base == 5 + 2**31
    log.close()


def test_an_empty_segment_never_rolls(rig: LogRig) -> None:
    rig.config = LogConfig(segment_ms=1)
    log = rig.open()
    rig.clock.advance_ns(10**10)
    append_one(log, batch("a", timestamp=NOW_MS))
    assert log.state.segment_count == 1
    log.close()


def test_a_new_config_counts_from_the_next_append(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, batch(bytes(100)))
    log.state.reconfigure(LogConfig(max_message_bytes=100))
    assert append_one(log, batch(bytes(100))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    log.close()


def test_a_new_config_counts_where_the_old_one_has_been_used(rig: LogRig) -> None:
    log = rig.open()
    for _ in range(3):
        append_one(log, batch(bytes(100)))
    log.state.reconfigure(LogConfig(max_message_bytes=100))
    assert append_one(log, batch(bytes(100))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    log.state.reconfigure(LogConfig(segment_bytes=300, segment_ms=1000))
    append_one(log, batch(bytes(100)))
    assert log.state.segment_count == 2
    append_one(log, batch(bytes(10), timestamp=NOW_MS + 2000))
    assert log.state.segment_count == 3
    log.close()


def test_records_without_timestamp_roll_by_clock(rig: LogRig) -> None:
    rig.config = LogConfig(segment_ms=1000)
    log = rig.open()
    for _ in range(3):
        append_one(log, batch("a", timestamp=-1))
    rig.clock.advance_ns(2 * 10**9)
    append_one(log, batch("a", timestamp=-1))
    assert log.state.segment_count == 2
    log.close()


def test_many_batches_of_idempotent_producers_write_one_too(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kproc.broker.storage.log_append.SNAPSHOT_BATCHES", 4)
    log = rig.open()
    for _ in range(8):
        log.append([batch("v")])
    assert not [name for name in rig.files if name.endswith(".snapshot")], "nobody to remember"
    for number in range(4):
        log.append([batch("v", producer_id=1, producer_epoch=0, base_sequence=number)])
    log.close(clean=False)
    assert [name for name in rig.files if name.endswith(".snapshot")]


@pytest.mark.parametrize("snapshot_at", [3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("rolls", [False, True])
def test_last_five_batches_are_known_after_crash(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch, *, snapshot_at: int, rolls: bool
) -> None:
    """A snapshot has the newest one only, and a client may have five requests whose answers died with their Handler."""
    log = rig.open()

    def sent(number: int, producer_id: int = 1) -> bytearray:
        return batch("v", "w", producer_id=producer_id, producer_epoch=0, base_sequence=2 * number)

    for number in range(8):
        append_one(log, sent(number))
        append_one(log, sent(number, producer_id=2))
        if number == snapshot_at - 1:
            if rolls:
                log.state.roll(log.state.end_offset, 0)
            else:
                log.state.write_snapshot()
    log.close(clean=False)
    log = rig.open()
    for producer_id in (1, 2):
        for number in range(3, 8):
            again = append_one(log, sent(number, producer_id))
            assert (again.error_code, again.base_offset) == (0, 4 * number + 2 * (producer_id - 1))
        too_old = append_one(log, sent(2, producer_id))
        assert too_old.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.state.end_offset == 32
    log.close(clean=False)


@pytest.mark.parametrize("rolls", [0, 3], ids=["one segment", "several segments"])
def test_last_batches_are_known_behind_many_of_others(
    rig: LogRig, *, rolls: int
) -> None:
    rig.config = LogConfig(index_interval_bytes=0)  # Each batch has its entry: 40 of them are as 160 KiB.
    log = rig.open()

    def sent(number: int, producer_id: int = 1) -> bytearray:
        return batch("v", producer_id=producer_id, producer_epoch=0, base_sequence=number)

    for number in range(8):
        append_one(log, sent(number))
    for number in range(40):
        if rolls and number % 13 == 12:
            log.state.roll(log.state.end_offset, 0)
        append_one(log, sent(number, producer_id=2))
    log.state.roll(log.state.end_offset, 0)
    append_one(log, sent(40, producer_id=2))
    log.close(clean=False)
    log = rig.open()
    assert [append_one(log, sent(number)).base_offset for number in range(3, 8)] == [3, 4, 5, 6, 7]
    assert append_one(log, sent(8)).base_offset == log.state.end_offset - 1
    log.close(clean=False)


def test_a_snapshot_is_written_every_64_mb(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kproc.broker.storage.log_append.SNAPSHOT_BYTES", 1000)
    log = rig.open()
    for _ in range(4):
        log.append([batch(bytes(500)), batch(bytes(500))])
    log.close(clean=False)
    # Only the newest is kept: the others stand at no segment's base.
    assert [name for name in rig.files if name.endswith(".snapshot")] == [f"{8:020d}.snapshot"]
