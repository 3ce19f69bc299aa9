"""record_check: how many records of a produced batch are looked at, and what their fields may be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kproc.broker.storage.log import Log, LogConfig
from kproc.common.errors import ErrorCode
from kproc.wire import record_check
from kproc.wire.compression import compress
from kproc.wire.primitives import encode_varint
from kproc.wire.record_check import LENGTHS_WALKED_MAX, SMALL_COMPRESSED_BYTES
from tests.support import hostile
from tests.support.hostile import INSIDE, empty_records, record, sealed
from tests.support.logs import LogRig, append_one

DEPTHS = ("lengths", "full")
INVALID = ErrorCode.INVALID_RECORD


@pytest.fixture(params=DEPTHS)
def log(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Log]:
    """A log for each value of kproc.validate.records."""
    log = LogRig(tmp_path / "t-0", config=LogConfig(validate_records=request.param)).open()
    yield log
    log.close(clean=False)


def test_append_with_lengths_reads_the_first_records_only(lengths_log: Log, full_log: Log) -> None:
    """SECURITY.md says that the others are not looked at."""
    good = empty_records(LENGTHS_WALKED_MAX)
    view = bytes(sealed(good + b"\xff" * 70, count=LENGTHS_WALKED_MAX + 10))
    assert append_one(lengths_log, memoryview(bytearray(view))).error_code == 0
    assert append_one(full_log, memoryview(bytearray(view))).error_code == INVALID


@pytest.mark.parametrize("codec", range(1, 5))
def test_append_with_lengths_inflates_a_limited_amount(
    lengths_log: Log, full_log: Log, monkeypatch: pytest.MonkeyPatch, *, codec: int
) -> None:
    limits: list[int | None] = []

    def decompress(codec: int, data: bytes, limit_bytes: int | None = None) -> bytes:
        limits.append(limit_bytes)
        return real(codec, data, limit_bytes)

    real = record_check.decompress
    monkeypatch.setattr(record_check, "decompress", decompress)
    large = bytes(hostile.bomb(codec, 1 << 20))
    assert append_one(lengths_log, memoryview(bytearray(large))).error_code == 0
    is_small = len(large) - 61 <= SMALL_COMPRESSED_BYTES
    assert limits == ([record_check.SMALL_INFLATED_BYTES] if is_small else [])


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("story", INSIDE)
def test_append_with_full_refuses_malformed_fields(full_log: Log, story: str, codec: int) -> None:
    result = append_one(full_log, sealed(compress(codec, INSIDE[story]), codec=codec))
    assert (ErrorCode(result.error_code), full_log.state.end_offset) == (INVALID, 0)


@pytest.mark.parametrize("records", [1, 3])
def test_append_with_full_limits_headers(
    full_log: Log, monkeypatch: pytest.MonkeyPatch, *, records: int
) -> None:
    """900,000 empty headers, 251 B as zstd, once held the Handler up for 0.3 s."""
    monkeypatch.setattr(record_check, "HEADERS_CHECKED_MAX", 30)
    for count, code in ((30 // records, 0), (30 // records + 1, ErrorCode.MESSAGE_TOO_LARGE)):
        body = b"\1\1" + encode_varint(count) + b"\0\0" * count
        payload = b"".join(record(b"\0\0" + encode_varint(number) + body) for number in range(records))
        assert append_one(full_log, sealed(payload, count=records)).error_code == code
