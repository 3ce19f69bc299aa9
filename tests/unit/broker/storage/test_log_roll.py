"""When a log rolls to a new segment: size, time, index, offsets and config."""

from __future__ import annotations

from kproc.broker.storage.log import LogConfig
from kproc.common.errors import ErrorCode
from tests.support.logs import NOW_MS, LogRig, append_one, batch, read_all


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
    assert [facts.base_offset for facts in log.state.segment_info()] == [0, 4]
    log.close()


def test_the_smallest_index_does_not_roll_at_every_batch(rig: LogRig) -> None:
    rig.config = LogConfig(segment_index_bytes=4, index_interval_bytes=0)
    log = rig.open()
    for number in range(4):
        append_one(log, batch("x", timestamp=NOW_MS + number))
    assert [facts.base_offset for facts in log.state.segment_info()] == [0, 2]
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
