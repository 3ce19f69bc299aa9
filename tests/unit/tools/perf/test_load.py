"""The pace of a load's connections, and the records in a Fetch's response."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pytest

from kproc.client import ClientError
from kproc.tools.perf.load import ConsumeConnection, LoadRun, LoadTotals, Pace, ProduceConnection, RecordShape
from kproc.tools.perf.round_trip import count_records, equal_records
from kproc.wire.compression import Compression
from kproc.wire.record_batch import decode_records, parse_header
from tests.support.wait import PATIENCE_SECONDS, wait_until


def test_request_that_is_late_counts_from_its_due_time() -> None:
    pace = Pace(1000.0, 0, 1)
    first = pace.wait(threading.Event())
    assert first is not None
    wait_until(lambda: time.perf_counter_ns() > first + 5_000_000)
    second = pace.wait(threading.Event())
    assert second is not None
    assert second - first == pytest.approx(1_000_000, abs=10_000)


def test_request_that_is_early_waits_and_counts_from_its_sending() -> None:
    pace = Pace(100.0, 1, 2)  # Two connections at 100 requests/s: the second one begins after 10 ms.
    begin = time.perf_counter_ns()
    first = pace.wait(threading.Event())
    assert first is not None
    assert first - begin >= 9_000_000


def test_wait_for_the_next_request_ends_with_a_stop() -> None:
    pace, stop = Pace(0.001, 1, 2), threading.Event()
    stop.set()
    assert pace.wait(stop) is None


def test_partial_batch_at_the_end_is_not_counted() -> None:
    whole = equal_records(3, b"v")
    assert count_records(whole + whole[:-1], 10) == (3, 3)
    assert count_records(whole[:-1], 10) == (0, 10)


def test_batch_of_an_old_format_is_rejected() -> None:
    old = bytearray(equal_records(1, b"v"))
    old[16] = 1
    with pytest.raises(ClientError, match=r"before Kafka 0\.11"):
        count_records(bytes(old), 0)


class Steps:
    """A connection that answers so many times, and then fails or is done."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.totals = LoadTotals()
        self._count = count
        self._error = error
        self.is_closed = False

    def step(self, _stop: threading.Event) -> bool:
        if self.totals.requests == self._count:
            if self._error is not None:
                raise self._error
            return False
        self.totals.requests += 1
        return True

    def close(self) -> None:
        self.is_closed = True


def run(*connections: Any, seconds: float = PATIENCE_SECONDS) -> LoadRun:
    load = LoadRun(connections)
    load.run(seconds, lambda _: None, 1.0)
    return load


def test_load_ends_when_all_connections_are_done() -> None:
    begin = time.monotonic()
    load = run(Steps(3), Steps(4))
    assert load.totals().requests == 7
    assert time.monotonic() - begin < PATIENCE_SECONDS


def test_error_of_a_connection_ends_the_load() -> None:
    with pytest.raises(ClientError, match="gone"):
        run(Steps(1 << 60), Steps(1, ClientError("gone")))


def test_load_ends_when_its_time_is_over() -> None:
    assert run(Steps(1 << 60), seconds=0.05).totals().requests > 0


class Leader:
    """A connection to a leader that does not serve Fetch."""

    def __init__(self) -> None:
        self.is_open = True

    def negotiate(self, _api_key: int) -> int:
        raise ClientError("it does not serve Fetch")

    def close(self) -> None:
        self.is_open = False

    def __enter__(self) -> Leader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def test_connections_are_closed_when_one_of_them_fails() -> None:
    leaders: list[Leader] = []

    def connect(partition: int, *, down: int) -> Any:
        if partition == down:
            raise ClientError("it is down")
        leaders.append(Leader())
        return leaders[-1]

    shape = RecordShape(1, 0, Compression.NONE)
    with pytest.raises(ClientError, match="it is down"):
        ProduceConnection(partial(connect, down=2), "t", range(3), shape=shape, batch_records=1, acks=1)
    spans = dict.fromkeys(range(2), (0, 1))
    for down, problem in ((1, "it is down"), (9, "it does not serve Fetch")):
        with pytest.raises(ClientError, match=problem):
            ConsumeConnection(partial(connect, down=down), "t", spans, fetch_bytes=1, is_once=True)
    assert [each.is_open for each in leaders] == [False] * 5


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_batch_has_keys_and_values_of_the_size(codec: Compression) -> None:
    batch = RecordShape(101, keys=3, codec=codec).make_batch(7)
    records = decode_records(batch)
    assert [record.key for record in records] == [b"0", b"1", b"2", b"0", b"1", b"2", b"0"]
    assert {len(record.value or b"") for record in records} == {101}
    assert parse_header(batch).attributes & 7 == codec


def test_values_of_compressed_batches_are_no_runs_of_one_byte() -> None:
    plain, packed = (len(RecordShape(1000, codec=each).make_batch(50)) for each in (0, Compression.GZIP))
    assert plain / 3 < packed < plain
