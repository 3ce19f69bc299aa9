"""`kproc latency`: measures round trips to a running broker, one at a time, and prints percentiles.

The time that the client itself takes is measured by the same code against a socket pair in which the response is
already waiting.
"""

from __future__ import annotations

import secrets
import socket
import time
from contextlib import ExitStack
from enum import StrEnum
from struct import Struct
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    print_json,
    usage_error,
)
from kproc.cli.completion import complete_topics
from kproc.cli.connection import connect, connect_for_records
from kproc.cli.lines import LiveLine, print_line, print_text
from kproc.cli.positions import chosen_partitions
from kproc.cli.produce import Acks
from kproc.cli.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from kproc.client import Client
    from kproc.tools.perf.percentiles import Percentiles
    from kproc.tools.perf.round_trip import FixedRequest

SECONDS_MAX: Final = 3600.0
_STAMP_BYTES: Final = 16
_FETCH_BYTES: Final = 1 << 20
_VISIBLE_MS: Final = 10_000
_CLIENT_SAMPLES: Final = 500
_CLIENT_ALONE: Final = "client alone"
_LENGTH_AND_NUMBER: Final = Struct(">ii")
COLUMNS: Final = {
    "MIN": "min",
    "MEAN": "mean",
    "P50": "p50",
    "P90": "p90",
    "P99": "p99",
    "P99.9": "p999",
    "MAX": "max",
}


class RequestName(StrEnum):
    """A request whose round trips `kproc latency` can measure."""

    API_VERSIONS = "api-versions"
    METADATA = "metadata"


class RoundTripProbe(Protocol):
    """One kind of round trip. Before each `measure` there is a pause, and before the pause `prepare` is called."""

    name: str

    def prepare(self) -> None: ...

    def measure(self) -> int:
        """Make one round trip and return its time in ns."""


Request = Annotated[RequestName, typer.Option("--request", help="The request to measure.")]
ProduceTopic = Annotated[
    str | None,
    typer.Option(
        "--produce",
        metavar="TOPIC",
        help="Measure Produce: append one record to TOPIC for each sample.",
        autocompletion=complete_topics,
    ),
]
EndToEndTopic = Annotated[
    str | None,
    typer.Option(
        "--end-to-end",
        metavar="TOPIC",
        help="Measure from the Produce of a record to its arrival at a waiting consumer.",
        autocompletion=complete_topics,
    ),
]
PartitionNumber = Annotated[
    int, typer.Option("--partition", "-p", metavar="N", min=0, help="Partition of TOPIC.")
]
RecordSize = Annotated[
    int,
    typer.Option("--size", metavar="BYTES", min=_STAMP_BYTES, max=1 << 24, help="Size of a record's value."),
]
SampleSeconds = Annotated[
    float,
    typer.Option("--seconds", metavar="S", min=0.01, max=SECONDS_MAX, help="Stop after this time."),
]
SampleCount = Annotated[
    int | None, typer.Option("--count", "-n", metavar="N", min=1, help="Stop after this many samples.")
]
SampleInterval = Annotated[
    float,
    typer.Option("--interval", metavar="MS", min=0, max=60_000, help="Time between two samples."),
]


def latency(
    request: Request = RequestName.API_VERSIONS,
    produce: ProduceTopic = None,
    end_to_end: EndToEndTopic = None,
    partition: PartitionNumber = 0,
    size: RecordSize = 100,
    acks: Annotated[Acks, typer.Option("--acks", help="Acknowledgements of a Produce.")] = Acks.ALL,
    seconds: SampleSeconds = 10.0,
    count: SampleCount = None,
    interval: SampleInterval = 10.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Measure round trips to a running broker, one at a time, and print percentiles. Ctrl-C ends it early.

    The row "client alone" is the part of each time that this program itself takes. Records of --produce and
    --end-to-end stay in TOPIC, which must exist.
    """
    if produce is not None and end_to_end is not None:
        usage_error("--produce and --end-to-end exclude each other: --end-to-end produces, too")
    if acks is Acks.NONE:
        usage_error("--acks 0: without an acknowledgement there is no round trip; give 1 or all")
    topic = produce if produce is not None else end_to_end
    with ExitStack() as stack:
        client = stack.enter_context(connect(bootstrap) if topic is None else connect_for_records(bootstrap))
        if topic is None:
            probe: RoundTripProbe = _request_probe(client, request)
        else:
            _check_partition(client, topic, partition)
            probe = _ProduceProbe(client, topic, partition, size, acks)
            if end_to_end is not None:
                consumer = stack.enter_context(connect(bootstrap))
                probe = _EndToEndProbe(probe, consumer, interval)
        times, took_s, is_interrupted = _sample(probe, seconds, count, interval / 1000)
        if times.count:
            _show(probe, client.address, times, took_s, interval, output)
    if is_interrupted:
        raise KeyboardInterrupt


def _sample(
    probe: RoundTripProbe, seconds: float, count: int | None, interval_s: float
) -> tuple[Percentiles, float, bool]:
    """Return (measured times, duration in seconds, True if Ctrl-C ended the measurement)."""
    from kproc.tools.perf.percentiles import Percentiles

    times, line = Percentiles(), LiveLine()
    began_s = due_s = time.monotonic()
    is_interrupted = False
    try:
        while count is None or times.count < count:
            probe.prepare()
            now_s = time.monotonic()
            if now_s >= began_s + seconds:
                break
            if now_s < due_s:
                time.sleep(min(due_s, began_s + seconds) - now_s)
                if due_s >= began_s + seconds:
                    break
            due_s = max(due_s, now_s) + interval_s
            times.add(probe.measure())
            if line.is_due:
                line.update(_live_text(times))
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        line.clear()
    return times, time.monotonic() - began_s, is_interrupted


def _live_text(times: Percentiles) -> str:
    ms = times.in_ms()
    shown = "  ".join(f"{name} {ms[name]:.3f}" for name in ("min", "p50", "p99", "max"))
    return f"{shown} ms  ({times.count})"


def _show(
    probe: RoundTripProbe, address: str, times: Percentiles, took_s: float, interval: float, output: Format
) -> None:
    own = client_alone(_CLIENT_SAMPLES)
    if output is Format.JSON:
        print_json(
            {
                "address": address,
                "measured": probe.name,
                "interval_ms": interval,
                "seconds": round(took_s, 3),
                "samples": times.count,
                "latency_ms": times.in_ms(),
                "client_alone_ms": own.in_ms(),
            }
        )
        return
    print_text(
        f"{address}: {probe.name}, in ms, one at a time, every {interval:g} ms for {took_s:.1f} s",
        indent="  ",
    )
    print_line()
    print_table(
        ["ROUND TRIP", "SAMPLES", *COLUMNS],
        [
            [name, each.count, *(f"{each.in_ms()[column]:.3f}" for column in COLUMNS.values())]
            for name, each in (("broker", times), (_CLIENT_ALONE, own))
        ],
        drop=("MEAN", "P90"),
    )


# -- the probes


class _RequestProbe:
    """Round trips of one request that changes nothing."""

    def __init__(
        self, name: str, client: Client, request: FixedRequest, check: Callable[[dict[str, Any]], None]
    ) -> None:
        self.name = name
        self._client = client
        self._request = request
        self._check = check

    def prepare(self) -> None:
        self._client.log_in_if_due()

    def measure(self) -> int:
        time_ns, frame = _exchange(self._request)
        self._check(self._request.decode(frame))
        return time_ns


def _exchange(request: FixedRequest) -> tuple[int, bytes]:
    begin_ns = time.perf_counter_ns()
    request.send()
    frame = request.receive()
    return time.perf_counter_ns() - begin_ns, frame


def _request_probe(client: Client, name: RequestName) -> _RequestProbe:
    from kproc.client import ApiError, error_text
    from kproc.tools.perf.round_trip import FixedRequest
    from kproc.wire.header import ApiKey

    def check(answer: dict[str, Any]) -> None:
        if answer.get("error_code"):
            code = answer["error_code"]
            raise ApiError(code, f"ApiVersions: {error_text(code)}")

    if name is RequestName.API_VERSIONS:
        return _RequestProbe("ApiVersions", client, FixedRequest(client, ApiKey.API_VERSIONS, 0, {}), check)
    fields = {"topics": [], "allow_auto_topic_creation": False}
    version = client.negotiate(ApiKey.METADATA)
    request = FixedRequest(client, ApiKey.METADATA, version, fields)
    return _RequestProbe("Metadata of the broker", client, request, check)


def _check_partition(client: Client, topic: str, partition: int) -> None:
    """Raise a Failure unless the partition exists."""
    from kproc.cli.topics import checked_topics

    (metadata,) = checked_topics(client, [topic])
    chosen_partitions(metadata, [partition])


class _ProduceProbe:
    """Round trips of a Produce of one record."""

    def __init__(self, client: Client, topic: str, partition: int, size: int, acks: Acks) -> None:
        from kproc.tools.perf.round_trip import ACKS, equal_records, produce_request

        # Random text at the start of our record's value, by which our consumer recognises the record among others'.
        self.stamp = secrets.token_hex(_STAMP_BYTES // 2).encode()
        batch = equal_records(1, self.stamp.ljust(size, b"x"))
        self.request = produce_request(client, topic, partition, batch, ACKS[acks])
        self.name = f"Produce of {size} B to {topic}-{partition} with acks={acks}"
        self.client, self.topic, self.partition = client, topic, partition

    def prepare(self) -> None:
        self.client.log_in_if_due()

    def measure(self) -> int:
        time_ns, frame = _exchange(self.request)
        self.offset_in(frame)
        return time_ns

    def offset_in(self, frame: bytes) -> int:
        """Return the record's offset in a Produce response. Raises ApiError."""
        from kproc.tools.perf.round_trip import base_offset

        return base_offset(self.request.decode(frame))


class _EndToEndProbe:
    """Measures the time from the Produce of a record until a consumer that waits in a Fetch has it."""

    def __init__(self, producer: _ProduceProbe, consumer: Client, interval_ms: float) -> None:
        from kproc.cli.offsets import served_offsets
        from kproc.client.requests import FetchLimits
        from kproc.common.reading import LATEST
        from kproc.wire.header import ApiKey

        self.name = f"{producer.name}, until a waiting consumer has it"
        self._producer = producer
        self._consumer = consumer
        self._version = consumer.negotiate(ApiKey.FETCH)
        # The Fetch is sent before the pause between samples and must still be waiting after it, so add the interval to
        # its maximal wait.
        self._limits = FetchLimits(_FETCH_BYTES, wait_ms=int(interval_ms) + 1000)
        consumer.timeout_ms += self._limits.wait_ms
        problems: dict[tuple[str, int], str] = {}
        topic, partition = producer.topic, producer.partition
        found = served_offsets(consumer, topic, {partition: LATEST}, problems)
        if problems:
            raise Failure(f"{topic}-{partition}: {problems[topic, partition]}")
        self._offset = found[partition]
        self._fetch: FixedRequest

    def prepare(self) -> None:
        self._producer.prepare()
        self._consumer.log_in_if_due()
        self._send_fetch()

    def _send_fetch(self) -> None:
        from kproc.client.requests import fetch_fields
        from kproc.tools.perf.round_trip import FixedRequest
        from kproc.wire.header import ApiKey

        place = self._producer.topic, self._producer.partition
        fields = fetch_fields(place, self._offset, self._limits)
        self._fetch = FixedRequest(self._consumer, ApiKey.FETCH, self._version, fields)
        self._fetch.send()

    def measure(self) -> int:
        from kproc.tools.perf.round_trip import count_records, fetched_records

        request, stamp = self._producer.request, self._producer.stamp
        offset: int | None = None
        begin_ns = time.perf_counter_ns()
        request.send()
        while True:
            frame = self._fetch.receive()
            time_ns = time.perf_counter_ns() - begin_ns
            if stamp in frame:
                break
            # The fetched records are other producers', or the Fetch returned empty at the end of its wait. Fetch again.
            records = fetched_records(self._fetch.decode(frame))
            if records:
                self._offset = count_records(records, self._offset)[1]
            elif offset is None:
                offset = self._producer.offset_in(request.receive())
            elif time_ns > _VISIBLE_MS * 1_000_000:
                raise Failure(
                    f"the acknowledged record at offset {offset} has not reached a consumer after {_VISIBLE_MS} ms"
                )
            self._send_fetch()
        if offset is None:
            offset = self._producer.offset_in(request.receive())
        self._offset = offset + 1
        return time_ns


def client_alone(samples: int) -> Percentiles:
    """Measure round trips to a socket pair in which the response is already waiting: the time of this program alone."""
    from kproc.client import Client
    from kproc.tools.perf.percentiles import Percentiles
    from kproc.tools.perf.round_trip import FixedRequest
    from kproc.wire.header import ApiKey

    ours, theirs = socket.socketpair()
    times = Percentiles()
    with Client(ours, address="this program", timeout_ms=1000, client_id="kproc") as client, theirs:
        request = FixedRequest(client, ApiKey.API_VERSIONS, 0, {})
        for _ in range(samples):
            body = bytes(100)
            theirs.sendall(_LENGTH_AND_NUMBER.pack(4 + len(body), request.number + 1) + body)
            times.add(_exchange(request)[0])
            theirs.recv(1 << 16)
    return times
