"""Puts load on a running broker: connections that produce to a topic or consume it, each with its own thread.

    thread 0 == connection 0 ==> partitions 0, 4, ...      one request at a time, sent when the last is answered,
    thread 1 == connection 1 ==> partitions 1, 5, ...      or, with a rate, when it is due

It uses only Kafka's protocol, so it works with any Kafka broker, with TLS and logins. Requests are encoded once.
Because of the GIL all threads share one CPU core, so a report must say how much of that core they used. The C generator
(tools/load) uses less CPU time, but needs a compiler, the loopback and its own topic.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from kproc.client import Client
from kproc.client.requests import FetchLimits, fetch_fields
from kproc.common.clock import SystemClock
from kproc.tools.perf.percentiles import Percentiles
from kproc.tools.perf.round_trip import (
    FixedRequest,
    base_offset,
    count_records,
    equal_records,
    fetched_records,
    produce_request,
)
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record

_NS_PER_S: Final = 1_000_000_000
_FETCH_WAIT_MS: Final = 500
_STOP_S: Final = 5.0

ConnectTo = Callable[[int], Client]
"""Connects to the leader of a partition."""


@dataclass
class LoadTotals:
    """Totals of the answered requests of one connection or of all. `size` counts the bytes of record batches."""

    requests: int = 0
    records: int = 0
    size: int = 0
    passes: int = 0
    """Partitions that were consumed to their end."""
    throttled_ms: int = 0
    times: Percentiles = field(default_factory=Percentiles)
    commit_times: Percentiles = field(default_factory=Percentiles)
    """Times from EndTxn to its response, of committed transactions."""
    transaction_times: Percentiles = field(default_factory=Percentiles)
    """Times from the start of a transaction to the end of its commit."""

    def merge(self, other: LoadTotals) -> None:
        self.requests += other.requests
        self.records += other.records
        self.size += other.size
        self.passes += other.passes
        self.throttled_ms += other.throttled_ms
        self.times.merge(other.times)
        self.commit_times.merge(other.commit_times)
        self.transaction_times.merge(other.transaction_times)


class LoadConnection(Protocol):
    """One connection of a load. It has its own thread, which calls `step` repeatedly."""

    totals: LoadTotals

    def step(self, stop: threading.Event) -> bool:
        """Send a request or a whole transaction, and read the responses. Return False if the thread has to end.

        stop: set when the run ends. An implementation that waits also waits for it.
        """

    def close(self) -> None: ...


class Pace:
    """The due times of one connection's requests, so that all connections together send at a constant rate."""

    def __init__(self, requests_per_s: float, index: int, connections: int) -> None:
        self._interval_ns = connections * _NS_PER_S / requests_per_s
        self._offset_ns = self._interval_ns * index / connections
        self._start_ns = 0
        self._sent = 0

    def wait(self, stop: threading.Event) -> int | None:
        """Wait until the next request is due. Return the time from which its latency counts, or None after a stop.

        If the request was due earlier, because the last response was late, return its due time, so that its latency
        includes the delay that a slow broker has caused. Otherwise return the present time, so that the latency does
        not include a late wake-up of this thread.
        """
        now_ns = time.perf_counter_ns()
        if not self._start_ns:
            self._start_ns = now_ns
        due_ns = self._start_ns + int(self._offset_ns + self._interval_ns * self._sent)
        self._sent += 1
        if now_ns >= due_ns:
            return due_ns
        if stop.wait((due_ns - now_ns) / _NS_PER_S):
            return None
        return time.perf_counter_ns()


class RecordShape(NamedTuple):
    """The records of a load: size of a value, number of different keys (0: no keys), and codec of a batch."""

    value_bytes: int
    keys: int = 0
    codec: int = 0

    def make_batch(self, count: int) -> bytes:
        """Return a batch of `count` records.

        Equal values would compress to almost nothing. Compressed batches therefore have values of random hexadecimal
        digits, which compress to about half their size.
        """
        if not self.keys and not self.codec:
            return equal_records(count, b"x" * self.value_bytes)
        now_ms = SystemClock().wall_ms()
        equal = b"x" * self.value_bytes
        records = [
            Record(
                b"%d" % (number % self.keys) if self.keys else None,
                secrets.token_hex(self.value_bytes // 2 + 1)[: self.value_bytes].encode()
                if self.codec
                else equal,
                now_ms,
            )
            for number in range(count)
        ]
        return bytes(encode_batch(records, codec=self.codec))


def connect_all(connect: ConnectTo, partitions: Iterable[int]) -> dict[int, Client]:
    """Open a connection for each partition. If one fails, close the others and raise its error."""
    with ExitStack() as stack:
        clients = {number: stack.enter_context(connect(number)) for number in partitions}
        stack.pop_all()
    return clients


class ProduceConnection:
    """Appends batches to its partitions in turn.

    records_left: number of records to produce, or None for no limit. pace: due times of requests, or None to send the
    next request as soon as the last one is answered.
    """

    def __init__(
        self,
        connect: ConnectTo,
        topic: str,
        partitions: Sequence[int],
        *,
        shape: RecordShape,
        batch_records: int,
        acks: int,
        records_left: int | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.totals = LoadTotals()
        self._topic = topic
        self._partitions = partitions
        self._shape = shape
        self._batch_records = batch_records
        self._acks = acks
        self._left = records_left
        self._pace = pace
        self._clients = connect_all(connect, partitions)
        # Encoded requests by (partition, number of records). The last request of a limited load can have fewer records.
        self._requests: dict[tuple[int, int], tuple[FixedRequest, int]] = {}
        self._turn = 0

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _request(self, partition: int, count: int) -> tuple[FixedRequest, int]:
        """Return the request for a batch of `count` records, and the size of the batch in bytes."""
        known = self._requests.get((partition, count))
        if known is None:
            batch = self._shape.make_batch(count)
            request = produce_request(self._clients[partition], self._topic, partition, batch, self._acks)
            known = self._requests[partition, count] = request, len(batch)
        return known

    def step(self, stop: threading.Event) -> bool:
        partition = self._partitions[self._turn]
        self._turn = (self._turn + 1) % len(self._partitions)
        count = self._batch_records if self._left is None else min(self._batch_records, self._left)
        if count == 0:
            return False
        request, size = self._request(partition, count)
        begin_ns: int | None = time.perf_counter_ns()
        if self._pace is not None and (begin_ns := self._pace.wait(stop)) is None:
            return False
        assert begin_ns is not None
        self._clients[partition].log_in_if_due()
        request.send()
        totals = self.totals
        if self._acks:
            frame = request.receive()
            totals.times.add(time.perf_counter_ns() - begin_ns)
            answer = request.decode(frame)
            base_offset(answer)
            totals.throttled_ms += answer["throttle_time"]
        totals.requests += 1
        totals.records += count
        totals.size += size
        if self._left is not None:
            self._left -= count
        return True


class ConsumeConnection:
    """Fetches its partitions in turn, from the start to the end that each had when the load began.

    is_once: stop at each partition's end; otherwise start it again.
    spans: first offset and end of each partition. records_left: None for no limit.
    """

    def __init__(
        self,
        connect: ConnectTo,
        topic: str,
        spans: Mapping[int, tuple[int, int]],
        *,
        fetch_bytes: int,
        is_once: bool,
        records_left: int | None = None,
    ) -> None:
        self.totals = LoadTotals()
        self._topic = topic
        self._spans = spans
        self._limits = FetchLimits(fetch_bytes, wait_ms=_FETCH_WAIT_MS)
        self._is_once = is_once
        self._left = records_left
        self._clients = connect_all(connect, spans)
        try:
            self._versions = {
                number: client.negotiate(ApiKey.FETCH) for number, client in self._clients.items()
            }
        except BaseException:
            self.close()
            raise
        self._offsets = {number: start for number, (start, _) in spans.items()}
        self._waiting = list(spans)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def step(self, stop: threading.Event) -> bool:
        if not self._waiting or (self._left is not None and self._left <= 0):
            return False
        partition = self._waiting.pop(0)
        client, offset = self._clients[partition], self._offsets[partition]
        fields = fetch_fields((self._topic, partition), offset, self._limits)
        request = FixedRequest(client, ApiKey.FETCH, self._versions[partition], fields)
        begin_ns = time.perf_counter_ns()
        client.log_in_if_due()
        request.send()
        frame = request.receive()
        totals = self.totals
        totals.times.add(time.perf_counter_ns() - begin_ns)
        answer = request.decode(frame)
        batches = fetched_records(answer)
        count, offset = count_records(batches, offset)
        totals.requests += 1
        totals.records += count
        totals.size += len(batches)
        totals.throttled_ms += answer["throttle_time"]
        if self._left is not None:
            self._left -= count
        start, end = self._spans[partition]
        if offset >= end:
            totals.passes += 1
            offset = start
        if offset != start or not self._is_once:
            self._waiting.append(partition)
        self._offsets[partition] = offset
        return True


class LoadRun:
    """Runs connections until they have nothing left to do, the time is over, or one of them fails."""

    def __init__(self, connections: Sequence[LoadConnection]) -> None:
        self._connections = connections
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._left = len(connections)
        self._changed = threading.Condition()
        # Daemon threads, so that a connection that waits for a hung broker does not keep the program from ending.
        self._threads = [
            threading.Thread(target=self._run, args=(each,), daemon=True) for each in connections
        ]

    def _run(self, connection: LoadConnection) -> None:
        try:
            while not self._stop.is_set() and connection.step(self._stop):
                pass
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that called `run`
            self._errors.append(error)
        finally:
            with self._changed:
                self._left -= 1
                self._changed.notify_all()

    def totals(self) -> LoadTotals:
        """Return the sum over all connections."""
        answer = LoadTotals()
        for connection in self._connections:
            answer.merge(connection.totals)
        return answer

    def run(self, seconds: float, on_progress: Callable[[float], None], every_s: float) -> float:
        """Run the load for up to `seconds`, and return its duration in seconds. Raises the first error of a connection.

        on_progress: called every `every_s` seconds with the time since the start.
        """
        began_s = time.monotonic()
        for thread in self._threads:
            thread.start()
        try:
            while (passed_s := time.monotonic() - began_s) < seconds and not self._errors:
                with self._changed:
                    if not self._left:
                        break
                    self._changed.wait(min(every_s, seconds - passed_s))
                on_progress(time.monotonic() - began_s)
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(_STOP_S)
        if self._errors:
            raise self._errors[0]
        return time.monotonic() - began_s
