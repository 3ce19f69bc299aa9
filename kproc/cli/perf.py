"""`kproc perf produce` and `kproc perf consume`: put load on a running broker.

perf_run.py runs the load and prints the report.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    INT_MAX,
    LONG_MAX,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    request_metadata,
    topic_metadata,
)
from kproc.cli.completion import complete_topics
from kproc.cli.connection import connect, connect_for_records
from kproc.cli.end_signals import interrupt_at_signals
from kproc.cli.failure import explain, usage_error
from kproc.cli.latency import SECONDS_MAX
from kproc.cli.perf_run import SECONDS, LoadPlan, run_load
from kproc.cli.produce import Acks, Compression, CompressionType

if TYPE_CHECKING:
    from kproc.client import Client
    from kproc.tools.perf.load import ProduceConnection
    from kproc.tools.perf.transactions import TransactionConnection, TransactionSeries

app = typer.Typer(
    name="perf",
    help="Load a running broker and say what limits it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_CONNECTIONS_MAX: Final = 1000
# With a rate, a request has the records of at most this time, like a producer's default linger.ms of 5 ms.
_LINGER_S: Final = 0.005
_LEADER_S: Final = 10.0
_RETRY_S: Final = 0.05
_ID_BYTES: Final = 8


Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic. It must exist.", autocompletion=complete_topics)
]
Connections = Annotated[
    int,
    typer.Option("--connections", metavar="N", min=1, max=_CONNECTIONS_MAX, help="Number of connections."),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        metavar="S",
        min=0.1,
        max=SECONDS_MAX,
        help=f"Stop after this time. [default: {SECONDS:g}; with --records {SECONDS_MAX:g}]",
    ),
]
Records = Annotated[
    int | None,
    typer.Option("--records", "-n", metavar="N", min=1, max=LONG_MAX, help="Stop after this many records."),
]

BatchBytes = Annotated[
    int,
    typer.Option(
        "--batch-size",
        metavar="BYTES",
        min=1,
        max=1 << 28,
        help="Values that one request holds, in bytes; at least one record.",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--rate",
        metavar="N",
        min=0.1,
        max=1e9,
        help="Records per second in all. Default: as many as the broker takes.",
    ),
]


TargetTopic = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", help="The topic. It must exist, or see --create.", autocompletion=complete_topics
    ),
]
RecordSize = Annotated[
    int, typer.Option("--size", metavar="BYTES", min=0, max=1 << 24, help="Size of a record's value.")
]
KeyCount = Annotated[
    int,
    typer.Option(
        "--keys", metavar="N", min=0, max=INT_MAX, help="Number of different keys; 0: records have none."
    ),
]
PartitionCount = Annotated[
    int,
    typer.Option("--partitions", min=-1, max=INT_MAX, help="With --create. -1: the broker's default."),
]


PerTransaction = Annotated[
    int | None,
    typer.Option(
        "--transaction-records",
        metavar="N",
        min=1,
        max=INT_MAX,
        help="Produce in transactions of N records. Each connection has a transactional id of its own.",
    ),
]
Acknowledgements = Annotated[Acks, typer.Option("--acks", help="Acknowledgements to wait for.")]


@dataclass(frozen=True)
class ProduceLoad:
    """The options for the records of a load, and for the requests that carry them."""

    size: RecordSize = 100
    batch_bytes: BatchBytes = 16_384
    rate: Rate = None
    connections: Connections = 4
    acks: Acknowledgements = Acks.ALL
    compression: Compression = CompressionType.NONE
    keys: KeyCount = 0
    per_transaction: PerTransaction = None

    @property
    def records_per_request(self) -> int:
        """The number of records in a request: a full batch, limited to a transaction or, with --rate, to 5 ms."""
        full = max(1, self.batch_bytes // max(1, self.size))
        if self.per_transaction is not None:
            return min(full, self.per_transaction)
        if self.rate is None:
            return full
        return max(1, min(full, int(self.rate * _LINGER_S / self.connections)))

    def details(self) -> dict[str, Any]:
        """Return the fields of the report about this load."""
        return {
            "acks": self.acks.value,
            "record_bytes": self.size,
            "records_per_request": self.records_per_request,
            "compression": self.compression.value,
            "keys": self.keys,
            "records_per_transaction": self.per_transaction,
        }


@dataclass(frozen=True)
class LoadLimits:
    """The options that stop a load."""

    seconds: Seconds = None
    records: Records = None


@app.command("produce")
def produce(
    topic: TargetTopic,
    load: ProduceLoad = ProduceLoad(),
    limits: LoadLimits = LoadLimits(),
    create: Annotated[bool, typer.Option("--create", help="Create TOPIC if it does not exist.")] = False,
    partitions: PartitionCount = -1,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Produce equal records at full speed or at a rate. They stay in TOPIC.

    Each connection has one request in flight. With --rate, latency counts from the time when a request was due, and a
    request holds at most the records of 5 ms. With --compression the values are random hexadecimal digits, which
    compress to about a half. Keys do not choose the partition. With --transaction-records, a rate counts from the time
    when a transaction was due, and only the records of committed transactions count.
    """
    if load.per_transaction is not None and load.acks is not Acks.ALL:
        usage_error(f"--acks {load.acks.value}: a transaction needs --acks all")
    with connect_for_records(bootstrap) as client:
        if create:
            _create(client, topic, partitions)
        target = _find_target(client, bootstrap, topic)
    if create:
        _wait_until_served(target, topic)
    plan = LoadPlan("produce", topic, limits.seconds, limits.records, load.rate, load.details())
    with interrupt_at_signals():
        run_load(bootstrap, plan, _producers(target, topic, load, limits.records, bootstrap), output)


def _producers(
    target: LedTopic, topic: str, load: ProduceLoad, records: int | None, bootstrap: str
) -> Iterator[ProduceConnection | TransactionConnection]:
    """Yield the connections of a load. Each is opened when it is yielded."""
    from kproc.tools.perf.load import Pace, ProduceConnection, RecordShape
    from kproc.tools.perf.round_trip import ACKS
    from kproc.tools.perf.transactions import TransactionConnection
    from kproc.wire import compression

    shape = RecordShape(load.size, load.keys, compression.Compression[load.compression.name])
    batch_records, connections = load.records_per_request, load.connections
    parts, shares = _split(target.partitions, connections), split_records(records, connections)
    for index, (numbers, share) in enumerate(zip(parts, shares, strict=True)):
        if load.per_transaction is not None:
            rate = load.rate / load.per_transaction if load.rate is not None else None
            yield TransactionConnection(
                target.connect,
                _start_transactions(target, bootstrap),
                (topic, numbers),
                shape=shape,
                batch_records=batch_records,
                records=load.per_transaction,
                records_left=share,
                pace=Pace(rate, index, connections) if rate is not None else None,
            )
            continue
        yield ProduceConnection(
            target.connect,
            topic,
            numbers,
            shape=shape,
            batch_records=batch_records,
            acks=ACKS[load.acks],
            records_left=share,
            pace=Pace(load.rate / batch_records, index, connections) if load.rate is not None else None,
        )


def _start_transactions(target: LedTopic, bootstrap: str) -> TransactionSeries:
    """Open a series of transactions with a random transactional id, on a connection to its coordinator."""
    from kproc.tools.perf.transactions import TransactionSeries, find_coordinator

    name = f"kproc-perf-{secrets.token_hex(_ID_BYTES)}"
    with connect(bootstrap) as client:
        host, port = find_coordinator(client, name)
    # If there is a single broker, use the address that the user gave, because its advertised address may be of another
    # network.
    is_single = set(target.leaders.values()) == {bootstrap}
    coordinator = connect(bootstrap if is_single else _address(host, port))
    try:
        return TransactionSeries(coordinator, name)
    except BaseException:
        coordinator.close()
        raise


@app.command("consume")
def consume(
    topic: Topic,
    fetch_bytes: Annotated[
        int,
        typer.Option(
            "--fetch-size", metavar="BYTES", min=1, max=1 << 28, help="Bytes that a response holds at most."
        ),
    ] = 1 << 20,
    connections: Connections = 1,
    limits: LoadLimits = LoadLimits(),
    once: Annotated[bool, typer.Option("--once", help="Stop at the end of TOPIC.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Fetch TOPIC from start to end, again and again. No group, and nothing is committed.

    Each connection has one request in flight.
    """
    from kproc.tools.perf.load import ConsumeConnection

    with connect_for_records(bootstrap) as client:
        target = _find_target(client, bootstrap, topic)
    spans = _find_spans(target, topic)
    plan = LoadPlan("consume", topic, limits.seconds, limits.records, None, {"fetch_bytes": fetch_bytes})
    parts = _split(sorted(spans), connections)
    workers = (
        ConsumeConnection(
            target.connect,
            topic,
            {number: spans[number] for number in numbers},
            fetch_bytes=fetch_bytes,
            is_once=once,
            records_left=share,
        )
        for numbers, share in zip(parts, split_records(limits.records, connections), strict=True)
    )
    run_load(bootstrap, plan, workers, output)


# -- the topic and its leaders


class LedTopic(NamedTuple):
    """A topic's partitions with the address of the leader of each."""

    leaders: dict[int, str]

    @property
    def partitions(self) -> list[int]:
        return sorted(self.leaders)

    def connect(self, partition: int) -> Client:
        """Connect to the leader of a partition."""
        return connect(self.leaders[partition])

    def by_leader(self) -> dict[str, list[int]]:
        answer: dict[str, list[int]] = {}
        for number, address in sorted(self.leaders.items()):
            answer.setdefault(address, []).append(number)
        return answer


def _find_target(client: Client, bootstrap: str, topic: str) -> LedTopic:
    """Return the topic with its leaders. Raise a Failure if it does not exist or a partition has no leader."""
    from kproc.common.errors import ErrorCode

    answer = request_metadata(client, [topic])
    (row,) = answer["topics"]
    if row["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise Failure(
            f"{topic}: unknown topic; kproc topic create {topic} makes it, or perf produce --create"
        )
    if row["error_code"]:
        raise Failure(explain(topic, row["error_code"]))
    brokers = {each["node_id"]: _address(each["host"], each["port"]) for each in answer["brokers"]}
    missing = [each["partition_index"] for each in row["partitions"] if each["leader_id"] not in brokers]
    if missing:
        raise Failure(f"{topic}: no leader for partition {', '.join(map(str, missing))}")
    # If there is a single broker, use the address that the user gave, because its advertised address may be of another
    # network.
    if len(brokers) == 1:
        return LedTopic(dict.fromkeys((each["partition_index"] for each in row["partitions"]), bootstrap))
    return LedTopic({each["partition_index"]: brokers[each["leader_id"]] for each in row["partitions"]})


def _wait_until_served(target: LedTopic, topic: str) -> None:
    """Wait up to 10 s until the leaders serve all partitions.

    In Kafka, Metadata shows the leader of a new partition before the leader itself knows of the partition.
    """
    from kproc.cli.offsets import served_offsets
    from kproc.common.reading import LATEST

    end_s = time.monotonic() + _LEADER_S
    for leader, numbers in target.by_leader().items():
        with connect(leader) as client:
            while True:
                problems: dict[tuple[str, int], str] = {}
                served_offsets(client, topic, dict.fromkeys(numbers, LATEST), problems)
                if not problems or time.monotonic() > end_s:
                    break
                time.sleep(_RETRY_S)


def _find_spans(target: LedTopic, topic: str) -> dict[int, tuple[int, int]]:
    """Return the first offset and the end of each partition that has records. Raise a Failure if none has."""
    from kproc.cli.offsets import served_offsets
    from kproc.common.reading import EARLIEST, LATEST

    problems: dict[tuple[str, int], str] = {}
    spans: dict[int, tuple[int, int]] = {}
    for leader, numbers in target.by_leader().items():
        with connect(leader) as client:
            starts = served_offsets(client, topic, dict.fromkeys(numbers, EARLIEST), problems)
            ends = served_offsets(client, topic, dict.fromkeys(starts, LATEST), problems)
        spans.update((number, (starts[number], end)) for number, end in ends.items() if end > starts[number])
    if problems:
        raise Failure("; ".join(f"{name}-{number}: {why}" for (name, number), why in problems.items()))
    if not spans:
        raise Failure(f"{topic} has no records; kproc perf produce {topic} makes some")
    return spans


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _create(client: Client, topic: str, partitions: int) -> None:
    """Create the topic unless it exists, and wait up to 10 s until its partitions have leaders."""
    from kproc.client.requests import topic_creation
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    fields = {
        "topics": [topic_creation(topic, partitions=partitions)],
        "timeout": int(_LEADER_S * 1000),
        "validate_only": False,
    }
    (row,) = client.call_latest(ApiKey.CREATE_TOPICS, fields)["topics"]
    if row["error_code"] not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        raise Failure(explain(topic, row["error_code"], row["error_message"]))
    # Kafka responds to CreateTopics before the new partitions have leaders, so wait for these.
    end_s = time.monotonic() + _LEADER_S
    while time.monotonic() < end_s:
        (metadata,) = topic_metadata(client, [topic])
        if not metadata["error_code"] and all(each["leader_id"] >= 0 for each in metadata["partitions"]):
            return
        time.sleep(_RETRY_S)


def _split(partitions: Sequence[int], connections: int) -> list[list[int]]:
    """Return the partitions of each connection. Every partition is used, and every connection has at least one."""
    count = len(partitions)
    return [
        [partitions[at] for at in range(index, count, connections)] or [partitions[index % count]]
        for index in range(connections)
    ]


def split_records(records: int | None, connections: int) -> list[int | None]:
    """Return the number of records that each connection produces or consumes, or None for each if there is no limit."""
    if records is None:
        return [None] * connections
    share, more = divmod(records, connections)
    return [share + (index < more) for index in range(connections)]
