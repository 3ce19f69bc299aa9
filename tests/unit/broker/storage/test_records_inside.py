"""Records inside a batch: timestamps, and how many errors are named."""

from __future__ import annotations

import tracemalloc

import pytest

from kproc.broker.storage import records_inside
from kproc.broker.storage.log import LogConfig
from kproc.common.errors import ErrorCode
from kproc.wire.compression import DECOMPRESSED_BYTES_MAX, decompress
from tests.support.logs import LogRig, append_one, batch, dated

HOUR_MS = 3_600_000


def test_a_lower_bound_is_checked_on_each_record(rig: LogRig) -> None:
    rig.config = LogConfig(timestamp_before_max_ms=1000)
    log = rig.open()
    early, late = batch("a", "b", step_ms=-1001), batch("a", "b", step_ms=-1000)
    assert append_one(log, early).error_code == ErrorCode.INVALID_TIMESTAMP
    assert append_one(log, late).error_code == 0
    log.close()


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_record_above_the_limit_is_rejected(rig: LogRig, *, codec: int) -> None:
    """max.decompressed.message.bytes bounds one record without its length, and no uncompressed record, as in Kafka."""
    large = batch("small", "x" * 5000, "small", codec=codec)
    size = 5007  # The value, its length of two bytes, and five fields of one byte.
    rig.config = LogConfig(max_decompressed_message_bytes=size - 1)
    log = rig.open()
    result = append_one(log, large)
    assert result.error_code == ErrorCode.INVALID_RECORD
    assert result.message == (
        f"Invalid record size: {size} exceeds the configured maximum record size of {size - 1}."
    )
    assert append_one(log, batch("small", "x" * 5000)).error_code == 0
    assert append_one(log, batch("small", "x" * 100, codec=codec)).error_code == 0
    log.state.reconfigure(LogConfig(max_decompressed_message_bytes=size))
    assert append_one(log, large).error_code == 0
    log.close()


def test_limit_that_no_record_reaches_costs_nothing() -> None:
    assert not LogConfig().looks_inside
    assert not LogConfig(max_decompressed_message_bytes=DECOMPRESSED_BYTES_MAX).looks_inside
    assert LogConfig(max_decompressed_message_bytes=DECOMPRESSED_BYTES_MAX - 1).looks_inside


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


def test_record_errors_name_some_and_count_all(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
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
