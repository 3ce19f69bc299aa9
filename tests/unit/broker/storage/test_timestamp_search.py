"""TimestampSearch: the first record of a timestamp, in slices and with bounded inflation."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.storage import timestamp_search
from kproc.broker.storage.log import LogConfig
from kproc.broker.storage.timestamp_search import SearchPaused, TimestampSearch
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.filled_log import filled
from tests.support.logs import NOW_MS, LogRig, append_one, batch, dated


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0", config=LogConfig(segment_bytes=1000, index_interval_bytes=150))


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


def test_lying_headers_are_searched_in_bounded_slices(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_max_timestamp_behind_inner_start_is_sliced(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_search_fails_at_a_compressed_record_above_the_limit(rig: LogRig) -> None:
    """The topic's limit was lowered after the record was produced. Records before it are found, as in Kafka."""
    log = rig.open()
    append_one(log, batch("a", "x" * 100, "b", timestamp=NOW_MS, step_ms=1, codec=1))
    append_one(log, batch("x" * 100, timestamp=NOW_MS + 50))
    log.state.reconfigure(LogConfig(max_decompressed_message_bytes=50))
    assert log.reader.offset_for_timestamp(NOW_MS) == (0, NOW_MS)
    assert log.reader.offset_for_timestamp(NOW_MS + 50) == (3, NOW_MS + 50)
    with pytest.raises(KafkaError, match=r"Invalid record size: 107 exceeds .* of 50\.$") as caught:
        log.reader.offset_for_timestamp(NOW_MS + 2)
    assert caught.value.code == ErrorCode.INVALID_RECORD
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
