"""Log.append: numbering, rejections and results."""

from __future__ import annotations

import pytest

from kproc.broker.storage.log import LogConfig
from kproc.broker.storage.validate import COORDINATOR
from kproc.common.errors import ErrorCode
from kproc.wire.record_batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, check_batch, parse_header
from tests.support.failing_fs import FailingFs
from tests.support.logs import NOW_MS, LogRig, append_one, batch, read_all
from tests.support.proc import open_descriptors

HOUR_MS = 3_600_000


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
    assert (log.state.start_offset, log.state.end_offset, log.state.active_bytes) == (
        0,
        4,
        len(first) + len(second),
    )
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
