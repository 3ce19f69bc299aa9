"""Batches with a correct CRC whose records contradict the header."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kproc.broker.storage import records_inside
from kproc.broker.storage.log import Log, LogConfig
from kproc.common.errors import ErrorCode
from kproc.wire import record_check
from kproc.wire.compression import compress
from kproc.wire.record_batch import decode_records
from kproc.wire.record_check import LENGTHS_WALKED_MAX
from tests.support import hostile
from tests.support.hostile import EMPTY_RECORD, INSIDE, empty_records, record, sealed
from tests.support.logs import NOW_MS, LogRig, append_one, batch, records_in

COUNT_MAX = 2**31 - 1
HOUR_MS = 3_600_000
DEPTHS = ("lengths", "full")
INVALID, CORRUPT = ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE


@pytest.fixture(params=DEPTHS)
def log(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Log]:
    """A log for each value of kproc.validate.records."""
    log = LogRig(tmp_path / "t-0", config=LogConfig(validate_records=request.param)).open()
    yield log
    log.close(clean=False)


GARBAGE = {
    "garbage": (lambda: sealed(b"\xff" * 40, count=3), INVALID),
    "one record of garbage": (lambda: sealed(b"\xff" * 40), INVALID),
    "no records": (lambda: sealed(b"", count=1), INVALID),
    "a record that ends early": (lambda: sealed(EMPTY_RECORD + b"\0"), INVALID),
    "a record that runs past the end": (lambda: sealed(record(bytes(20))[:-1]), INVALID),
    "a long record that runs past the end": (lambda: sealed(record(bytes(9000))[:-1]), INVALID),
    "a negative length": (lambda: sealed(b"\x0d" + bytes(6)), INVALID),
    "the second record runs past the end": (
        lambda: sealed(EMPTY_RECORD + b"\x40" + bytes(9), count=2),
        INVALID,
    ),
    "bytes behind the last record": (lambda: sealed(empty_records(3) + bytes(7), count=3), INVALID),
    "a length varint without end": (lambda: sealed(b"\xff" * 4000 + b"\1", count=2), INVALID),
    "2^31 - 1 records in 7 bytes": (lambda: sealed(EMPTY_RECORD, count=COUNT_MAX), INVALID),
    "one record too many": (lambda: sealed(empty_records(9), count=10), INVALID),
    "2^31 - 1 records in zstd": (
        lambda: sealed(compress(4, EMPTY_RECORD), codec=4, count=COUNT_MAX),
        INVALID,
    ),
    "three records in zstd that are two": (
        lambda: sealed(compress(4, empty_records(2)), codec=4, count=3),
        INVALID,
    ),
    "no zstd": (lambda: sealed(b"not zstd at all", codec=4), CORRUPT),
    "no gzip": (lambda: sealed(b"not gzip at all", codec=1), CORRUPT),
    "no snappy": (lambda: sealed(b"not snappy at all", codec=2), CORRUPT),
    "no lz4": (lambda: sealed(b"not lz4 at all", codec=3), CORRUPT),
    "many bytes that are no zstd": (lambda: sealed(bytes(9000), codec=4), CORRUPT),
    "many bytes that are no gzip": (lambda: sealed(bytes(9000), codec=1), CORRUPT),
    "many bytes that are no lz4": (lambda: sealed(bytes(9000), codec=3), CORRUPT),
    "a codec that does not exist": (
        lambda: sealed(EMPTY_RECORD, codec=5),
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ),
    "a last offset delta below the count": (
        lambda: sealed(empty_records(2), count=2, last_offset_delta=0),
        INVALID,
    ),
    "a last offset delta above the count": (
        lambda: sealed(empty_records(2), count=2, last_offset_delta=9),
        INVALID,
    ),
    "a negative last offset delta": (lambda: sealed(EMPTY_RECORD, count=0), INVALID),
    "the largest offset delta and no count": (
        lambda: sealed(EMPTY_RECORD, count=-(2**31), last_offset_delta=COUNT_MAX),
        INVALID,
    ),
}


@pytest.mark.parametrize("story", GARBAGE)
def test_append_of_unreadable_small_batch_is_refused(log: Log, story: str) -> None:
    """Every consumer would stop at such a batch. Kafka refuses it, too."""
    make, code = GARBAGE[story]
    result = append_one(log, make())
    assert (ErrorCode(result.error_code), log.state.end_offset, log.state.active.size) == (code, 0, 0)
    assert append_one(log, batch("good")).error_code == 0


def test_append_of_one_record_checks_its_length(lengths_log: Log) -> None:
    """The length of a single record is looked up in a table: at its edges a varint gets another byte."""
    for size in [*range(300), *range(8_050, 8_300), 20_000, 800_000]:
        right = batch(bytes(size))
        assert append_one(lengths_log, batch(bytes(size))).error_code == 0, size
        assert append_one(lengths_log, sealed(bytes(right[61:]) + b"\0")).error_code == INVALID, size


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("count", [1, 2, LENGTHS_WALKED_MAX, LENGTHS_WALKED_MAX + 1, 3000])
def test_append_of_the_smallest_records_is_accepted(log: Log, codec: int, count: int) -> None:
    """Seven bytes are the least that a record takes, and compressed next to nothing."""
    view = sealed(compress(codec, empty_records(count)), count=count, codec=codec)
    assert append_one(log, view).error_code == 0
    assert [each.offset for each in decode_records(view)] == list(range(count))


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
@pytest.mark.parametrize("story", INSIDE)
def test_append_to_compacted_log_refuses_malformed_fields(tmp_path: Path, story: str, policy: str) -> None:
    """The cleaner reads them, so a Handler does, whatever kproc.validate.records is."""
    config = LogConfig(cleanup_policy=frozenset(policy.split(",")))
    log = LogRig(tmp_path / "t-0", config=config).open()
    assert append_one(log, sealed(INSIDE[story])).error_code == INVALID
    log.close(clean=False)


@pytest.mark.parametrize(
    "config", [LogConfig(), LogConfig(validate_records="full"), LogConfig(compression_type="lz4")]
)
@pytest.mark.parametrize("codec", range(1, 5))
def test_append_of_misdated_batch_is_refused_by_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, codec: int, config: LogConfig
) -> None:
    """4 kB may become 32 MiB: that is not paid for a batch that is refused anyway."""
    for module in (records_inside, record_check):
        monkeypatch.setattr(module, "decompress", lambda *_: pytest.fail("the batch was decompressed"))
    log = LogRig(tmp_path / "t-0", config=config).open()
    late = sealed(compress(codec, EMPTY_RECORD), codec=codec, max_timestamp=NOW_MS + HOUR_MS + 1)
    result = append_one(log, late)
    assert (ErrorCode(result.error_code), log.state.end_offset) == (ErrorCode.INVALID_TIMESTAMP, 0)
    log.close(clean=False)


@pytest.mark.parametrize("codec", range(1, 5))
def test_append_to_compacted_log_refuses_what_inflates_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, codec: int
) -> None:
    monkeypatch.setattr("kproc.wire.compression.INFLATED_BYTES_FREE", 10_000)
    monkeypatch.setattr("kproc.wire.compression.INFLATION_RATIO_MAX", 10)
    log = LogRig(tmp_path / "t-0", config=LogConfig(validate_records="full")).open()
    assert append_one(log, hostile.bomb(codec, 9_000)).error_code == 0
    # A producer splits its batch then; with CORRUPT_MESSAGE it would send the same batch again.
    assert append_one(log, hostile.bomb(codec, 300_000)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    log.close(clean=False)


@pytest.mark.long
@pytest.mark.parametrize("codec", [1, 3, 4])
def test_append_with_full_limits_inflation_by_the_topic(tmp_path: Path, codec: int) -> None:
    """It holds the Handler up, so a batch becomes at most 32 MiB, or 32 times max.message.bytes."""
    log = LogRig(tmp_path / "t-0", config=LogConfig(validate_records="full")).open()
    for size, code in ((32 << 20, 0), (34 << 20, ErrorCode.MESSAGE_TOO_LARGE)):
        assert append_one(log, hostile.bomb(codec, size - 100)).error_code == code
    log.close(clean=False)


def test_rejected_count_costs_no_segment(lengths_log: Log) -> None:
    """A claim of 2^31 - 1 records once rolled a segment for each batch of 75 bytes."""
    views = [sealed(EMPTY_RECORD, count=COUNT_MAX) for _ in range(50)]
    results = lengths_log.append(views)
    assert {result.error_code for result in results} == {INVALID}
    assert (len(lengths_log.state.segments), lengths_log.state.traffic.records_in) == (1, 0)


def test_accepted_batches_are_read_back(full_log: Log) -> None:
    append_one(full_log, batch("a", "b", codec=4))
    assert [each.value for each in records_in(full_log.state.active.path(".log").read_bytes())] == [
        b"a",
        b"b",
    ]
