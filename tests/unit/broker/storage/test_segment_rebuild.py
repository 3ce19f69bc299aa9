"""Damaged index files are rebuilt, or their readers get an error, never wrong records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kproc.broker.storage.log import Log, LogConfig
from kproc.common.errors import Corrupt
from tests.support.logs import NOW_MS, LogRig, append_one, batch, records_in
from tests.support.transactions import in_transaction, marker, put

COUNT = 31
CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150)
TIMES = range(NOW_MS - 1, NOW_MS + 10 * COUNT, 7)


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    """Segments of several batches of two records, whose timestamps rise, fall and rise."""
    rig = LogRig(tmp_path / "t-0", config=CONFIG)
    log = rig.open()
    for number in range(COUNT):
        timestamp = NOW_MS + 10 * (number - number % 3)
        append_one(log, batch(f"a{number}", f"b{number}", timestamp=timestamp, step_ms=3))
    assert log.state.segment_count > 2
    log.close()
    return rig


def found_at(log: Log, offset: int) -> int:
    """The first record's offset of what a Fetch would get."""
    content = log.reader.read_bytes(offset, 1)
    return next(record.offset for record in records_in(content) if record.offset >= offset)


def answers(log: Log) -> Iterator[object]:
    """The answer to each look-up by offset and by time. `Corrupt` if it is refused."""
    calls: list[Callable[[], object]] = [
        lambda offset=offset: found_at(log, offset) for offset in range(2 * COUNT)
    ]
    calls += [lambda timestamp=timestamp: log.reader.offset_for_timestamp(timestamp) for timestamp in TIMES]
    calls += [lambda: [fact.largest_timestamp for fact in log.state.segment_info()]]
    for call in calls:
        try:
            yield call()
        except Corrupt:
            yield Corrupt


def flips(content: bytes) -> Iterator[bytes]:
    """Some bits of each entry, others in each: 19 is no divisor of an entry's length."""
    for bit in range(0, 8 * len(content), 19):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


def tears(content: bytes) -> Iterator[bytes]:
    for size in range(0, len(content), 3):
        yield content[:size]
        yield content[:size] + bytes(len(content) - size)
        yield bytes(size) + content[size:]


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("harm", [flips, tears])
@pytest.mark.parametrize("segment", [1, -1], ids=["sealed", "active"])
def test_damaged_index_gives_no_wrong_answer(
    rig: LogRig, suffix: str, harm: Callable[[bytes], Iterator[bytes]], segment: int
) -> None:
    log = rig.open(clean=True)
    right = list(answers(log))
    assert Corrupt not in right
    log.close()
    before = rig.files
    path = sorted(rig.directory.glob(f"*.{suffix}"))[segment]
    content = path.read_bytes()
    assert len(content) > 24
    refused = 0
    for damaged in harm(content):
        path.write_bytes(damaged)
        try:
            log = rig.open(clean=True)
        except Corrupt:
            refused += 1
        else:
            for number, answer in enumerate(answers(log)):
                assert answer in (right[number], Corrupt), (damaged.hex(), number)
            log.close(clean=False)
        for name, old in before.items():
            if name.endswith(("index", "log")) and (rig.directory / name).read_bytes() != old:
                (rig.directory / name).write_bytes(old)
    assert refused < len(content), "most are repaired, or refused by single reads only"


TRANSACTIONS = 6


@pytest.fixture
def aborted_log(tmp_path: Path) -> LogRig:
    """Every second transaction is aborted. Its marker is in the same segment, or in the next one."""
    rig = LogRig(tmp_path / "t-0", config=LogConfig(segment_bytes=300))
    log = rig.open()
    for number in range(2 * TRANSACTIONS):
        assert put(log, in_transaction(7, b"v%d" % number)).error_code == 0
        assert put(log, marker(7, commit=number % 2 == 0)).error_code == 0
    assert log.state.segment_count > 3
    log.close()
    return rig


def aborted(log: Log) -> list[tuple[int, int]]:
    found = log.reader.aborted_transactions(0, log.state.end_offset)
    return [(each.first_offset, each.last_offset) for each in found]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.long), -1])
def test_damaged_transaction_index_is_rebuilt(aborted_log: LogRig, number: int, clean: bool) -> None:
    """Flipped bits, tears, zeroes, and a file that is gone: aborted records never look committed."""
    rig = aborted_log
    log = rig.open(clean=True)
    right = aborted(log)
    assert len(right) == TRANSACTIONS
    log.close()
    path = sorted(rig.directory.glob("*.txnindex"))[number]
    content = path.read_bytes()
    for damaged in (*flips(content), *tears(content), None):
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        log = rig.open(clean=clean, recovery_point=4 * TRANSACTIONS)
        assert aborted(log) == right, damaged
        log.close()
        assert path.read_bytes() == content, "what is built again is what was there"


def test_transaction_index_that_was_rebuilt_is_believed(
    aborted_log: LogRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = aborted_log
    min(rig.directory.glob("*.txnindex")).unlink()
    for _ in range(2):
        rig.open(clean=True).close()
    assert caplog.text.count("transaction_index=rebuild") == 1
