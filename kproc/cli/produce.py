"""`kproc produce TOPIC`: each line of stdin becomes a record, or tells of one in JSON; sent by confluent-kafka."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, BinaryIO

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    INT_MAX,
    SECONDS_MAX,
    Bootstrap,
    Failure,
    connect,
    connect_for_records,
    librdkafka_security,
    pairs,
    usage_error,
)
from kproc.cli.completion import complete_topics
from kproc.cli.formatting import unescape
from kproc.cli.human import counted
from kproc.cli.lines import print_note
from kproc.cli.record_json import BadLine, Headers, Outgoing, read_line
from kproc.cli.refusals import DEBUG, Refusals

PROPAGATION_MS = 3_000
"""Time that librdkafka waits for an unknown topic to appear. It can be short, because auto-creation is immediate."""
STEP_SECONDS = 30.0
"""Time limit of beginning, committing or aborting a transaction."""
RECORD_BYTES_MAX = 1_000_000_000
"""The largest limit that librdkafka accepts, because the broker decides for each topic how large a record may be."""
LINGER_MS = 5
TIMEOUT_S_MIN = 0.1
"""The shortest timeout of a record. librdkafka rejects one that is not longer than LINGER_MS."""
CONNECT_MS = 10_000
"""Time limit of the first connection, unless --timeout is shorter."""


class CompressionType(StrEnum):
    """Codecs of the protocol."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    """The acknowledgement to wait for: none, the broker's, or all replicas' (with kproc.flush=group, the disk)."""

    NONE = "0"
    LEADER = "1"
    ALL = "all"


TransactionalId = Annotated[
    str | None,
    typer.Option("--transactional-id", metavar="ID", help="Send all lines in one transaction of this id."),
]
TransactionTimeout = Annotated[
    float,
    typer.Option(
        "--transaction-timeout",
        metavar="S",
        min=1,
        max=SECONDS_MAX,
        help="Seconds after which the broker aborts the transaction.",
    ),
]

KeySeparator = Annotated[
    str | None,
    typer.Option(
        "--key-separator",
        "-K",
        metavar="TEXT",
        help="Separator between key and value in each line, with the escapes of consume --format: \\t.",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="S",
        min=TIMEOUT_S_MIN,
        max=SECONDS_MAX,
        help="Seconds that a record may take, with all tries, before the command fails. "
        "[default: 300, or --transaction-timeout if that is shorter]",
    ),
]


Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic to send to.", autocompletion=complete_topics)
]
EmptyIsNull = Annotated[
    bool,
    typer.Option(
        "--null",
        "-Z",
        help="Treat empty keys and values as null. A key with a null value is a tombstone.",
    ),
]
JsonLines = Annotated[
    bool,
    typer.Option(
        "--json",
        "-J",
        help="Each line is an object: value, key, headers, partition, timestamp; as consume -f json writes.",
    ),
]
GivenHeaders = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of every record; may be repeated."),
]
TargetPartition = Annotated[
    int | None,
    typer.Option(
        "--partition",
        "-p",
        min=-1,
        max=INT_MAX,
        help="Target partition. Default (-1): chosen by the key, or taken from the JSON record.",
    ),
]
Compression = Annotated[
    CompressionType, typer.Option("--compression", "-z", help="Compression of the batches.")
]
AcksOption = Annotated[
    Acks,
    typer.Option("--acks", help="Acknowledgement to wait for: none, the broker's, or all replicas'."),
]
Idempotent = Annotated[
    bool, typer.Option("--idempotent", help="Avoid duplicates by retries. Needs --acks all.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print the number of sent records.")]


def produce(
    topic: Topic,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every record.")] = None,
    key_separator: KeySeparator = None,
    null: EmptyIsNull = False,
    json: JsonLines = False,
    header: GivenHeaders = None,
    partition: TargetPartition = None,
    compression: Compression = CompressionType.NONE,
    acks: AcksOption = Acks.ALL,
    idempotent: Idempotent = False,
    timeout: Timeout = None,
    transactional_id: TransactionalId = None,
    transaction_timeout: TransactionTimeout = 60.0,
    verbose: Verbose = False,
) -> None:
    """Send each line of the standard input as a record.

    With --transactional-id they are committed when the input ends, and aborted if a line is rejected.
    """
    if json and (key is not None or key_separator is not None or header or null):
        usage_error("--json: each line has its own key, value and headers, no option gives them")
    settings = _settings(acks, compression, transactional_id, transaction_timeout, is_idempotent=idempotent)
    settings |= _timeout_settings(timeout, transaction_timeout if transactional_id is not None else None)
    parser = None if json else _LineParser(key, key_separator, _given_headers(header), is_null=null)
    # Connect first, because the system reports a refused connection at once. librdkafka only says that all brokers are
    # down.
    connect_for_records(bootstrap, timeout_ms=min(CONNECT_MS, int(1000 * (timeout or SECONDS_MAX)))).close()
    if sys.stdin.isatty() and sys.stderr.isatty():
        print_note(f"kproc: each line goes to {topic}; Ctrl-D ends")
    sender = _RecordSender(bootstrap, topic, partition, settings)
    count = _send_all(sender, _lines(sys.stdin.buffer), parser or read_line, skips_blanks=json)
    if parser is not None:
        parser.report_missing()
    if verbose:
        print_note(f"kproc: sent {counted(count, 'record')} to {topic}")


def _settings(
    acks: Acks,
    compression: CompressionType,
    transactional_id: str | None,
    timeout_s: float,
    *,
    is_idempotent: bool,
) -> dict[str, Any]:
    """Convert the options to librdkafka's settings."""
    # KIP-98: a broker detects a repeated batch only if it has stored the first one, so idempotence needs acks=all.
    if (is_idempotent or transactional_id is not None) and acks is not Acks.ALL:
        usage_error(f"{'--idempotent' if is_idempotent else '--transactional-id'} needs --acks all")
    if transactional_id == "":
        usage_error("--transactional-id: must not be empty")
    settings: dict[str, Any] = {
        "acks": acks.value,
        "compression.type": compression.value,
        "enable.idempotence": is_idempotent or transactional_id is not None,
    }
    if transactional_id is not None:
        settings["transactional.id"] = transactional_id
        settings["transaction.timeout.ms"] = int(timeout_s * 1000)
    return settings


def _timeout_settings(timeout_s: float | None, transaction_s: float | None) -> dict[str, Any]:
    """Return librdkafka's setting for --timeout. Its own default follows the timeout of a transaction."""
    if timeout_s is None:
        return {}
    if transaction_s is not None and timeout_s > transaction_s:
        usage_error(f"--timeout {timeout_s:g} is longer than --transaction-timeout {transaction_s:g}")
    return {"message.timeout.ms": int(timeout_s * 1000)}


def _send_all(
    sender: _RecordSender, lines: Iterator[bytes], read: Callable[[bytes], Outgoing], *, skips_blanks: bool
) -> int:
    """Send the record of each line. An invalid line ends the command, after the records before it are delivered."""
    try:
        for number, line in enumerate(lines, 1):
            if not skips_blanks or line.strip():
                sender.send(number, read(line))
    except BadLine as bad:
        raise Failure(f"line {number}: {bad}; {sender.abandon()}") from None
    except KeyboardInterrupt:
        sender.interrupt()
        raise
    return sender.finish()


def _given_headers(options: list[str] | None) -> Headers:
    """Parse the headers of the command line. Their values may be any bytes."""
    headers = []
    for name, value in pairs("--header", options or ()):
        try:
            name.encode()
        except UnicodeEncodeError:
            usage_error(f"--header {os.fsencode(name)!r}: a name must be UTF-8")
        headers.append((name, os.fsencode(value)))
    return headers


class _LineParser:
    """Converts lines to records without --json. Reports lines without the separator."""

    def __init__(
        self, key: str | None, key_separator: str | None, headers: Headers, *, is_null: bool
    ) -> None:
        if key is not None and key_separator is not None:
            usage_error("--key and --key-separator exclude each other")
        if key_separator == "":
            usage_error("--key-separator: must not be empty")
        self._key = os.fsencode(key) if key is not None else None
        self._separator = unescape("--key-separator", key_separator) if key_separator is not None else None
        if self._separator is not None and b"\n" in self._separator:
            usage_error(
                "--key-separator: a newline ends the line, so it cannot separate the key from the value"
            )
        self._headers = headers
        self._is_null = is_null
        self._count = self._missing = 0

    def __call__(self, line: bytes) -> Outgoing:
        key = self._key
        if self._separator is not None:
            self._count += 1
            if self._separator in line:
                key, _, line = line.partition(self._separator)
            else:
                self._add_missing()
        if self._is_null:
            return Outgoing((key or None), (line or None), self._headers)
        return Outgoing(key, line, self._headers)

    def _add_missing(self) -> None:
        self._missing += 1
        # The others are counted at the end, because a wrong separator is missing in every line.
        if self._missing == 1:
            print_note(
                f"kproc: line {self._count} has no separator {self._shown()}: it is sent as a value without a key"
            )

    def report_missing(self) -> None:
        """Print how many lines had no separator, if there was more than the one that was reported."""
        if self._missing > 1:
            print_note(
                f"kproc: {self._missing} of {self._count} lines had no separator {self._shown()} "
                "and were sent without a key"
            )

    def _shown(self) -> str:
        return repr(os.fsdecode(self._separator or b""))


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines without their line ends. The last line may have none."""
    for line in stream:
        yield line.removesuffix(b"\n")


class _RecordSender:
    """A producer that stops at the first record that cannot be delivered."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partition: int | None,
        settings: dict[str, Any],
    ) -> None:
        from confluent_kafka import Producer

        self._topic = topic
        self._partition = partition
        self._count = 0
        self._error: Any = None
        self._line: int | None = None
        self._is_down = False
        self._refusals = Refusals(topic, bootstrap)
        self._bootstrap = bootstrap
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                **librdkafka_security(),
                **settings,
                "client.id": "kproc",
                "linger.ms": LINGER_MS,
                "message.max.bytes": RECORD_BYTES_MAX,
                "topic.metadata.propagation.max.ms": PROPAGATION_MS,
                "debug": DEBUG,
                "error_cb": self._on_error,
            },
            logger=self._refusals.logger,
        )
        self._is_transactional = "transactional.id" in settings
        if self._is_transactional:
            self._run_step("the transaction was not begun", self._producer.init_transactions, STEP_SECONDS)
            self._producer.begin_transaction()

    def send(self, number: int, record: Outgoing) -> None:
        """Enqueue the record of a line. Wait while the queue is full. Raise BadLine if the record can never be sent."""
        from confluent_kafka import KafkaException

        options: dict[str, Any] = {"on_delivery": partial(self._on_delivery, number)}
        partition = record.partition if self._partition is None else self._partition
        if partition is not None and partition >= 0:
            options["partition"] = partition
        if record.headers:
            options["headers"] = record.headers
        if record.timestamp_ms is not None:
            options["timestamp"] = record.timestamp_ms
        while True:
            try:
                self._producer.produce(self._topic, record.value, record.key, **options)
                break
            # librdkafka's queue is full. Polling delivers reports, and each frees a place.
            except BufferError:
                self._producer.poll(0.1)
                self._check()
            except KafkaException as error:
                raise BadLine(describe_error(error.args[0])) from error
        # Serve the delivery reports now and then, because they stay in librdkafka's memory until they are polled.
        self._producer.poll(0)
        self._check()

    def finish(self) -> int:
        """Wait until all records are delivered, and commit. Return the number of records."""
        self._flush()
        if self._is_transactional:
            what = "it is not known whether the transaction was committed"
            self._run_step(what, self._producer.commit_transaction, STEP_SECONDS)
        return self._count

    def abandon(self) -> str:
        """Send nothing more. Return a sentence about the records sent before."""
        if self._is_transactional:
            return self._abort()
        self._flush()
        return f"{self._count} records before it were delivered, nothing from it on was sent"

    def interrupt(self) -> None:
        """Abort an open transaction, because it would hold up readers of committed records until its timeout."""
        if self._is_transactional:
            self._abort()

    def _flush(self) -> None:
        while self._producer.flush(0.5):
            self._check()
        self._check()

    def _abort(self) -> str:
        from confluent_kafka import KafkaException

        try:
            self._producer.abort_transaction(STEP_SECONDS)
        except KafkaException as error:
            return f"the transaction ends by its timeout: {describe_error(error.args[0])}"
        return "the transaction was aborted"

    def _run_step(self, if_failed: str, step: Callable[[float], None], seconds: float) -> None:
        """Run a step of the transaction, which librdkafka retries by itself. Raise a Failure if it fails."""
        from confluent_kafka import KafkaException

        try:
            step(seconds)
        except KafkaException as error:
            problem = error.args[0]
            done = self._abort() if problem.txn_requires_abort() else if_failed
            raise Failure(f"{done}: {describe_error(problem)}") from error

    def _on_delivery(self, line: int, error: Any, _message: Any) -> None:
        if error is not None:
            if self._error is None:
                self._line = line
            self._error = self._error or error
        else:
            self._count += 1
            self._refusals.delivered()

    def _on_error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        # Ignore the other errors. They concern one broker or a retry, and may be temporary.
        if error.fatal():
            self._error = self._error or error
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._is_down = True

    def _check(self) -> None:
        if self._is_down:
            # One closed connection makes librdkafka report that. Connect to find out: a restarted process of the broker
            # is no reason to stop, but a refused connection is.
            self._is_down = False
            connect(self._bootstrap).close()
        if self._error is not None:
            reason = self._refusals.reason()
            last = f"; {reason}" if reason else ""
            where = f"line {self._line}: " if self._line is not None else ""
            done = self._abort() if self._is_transactional else f"{self._count} records were delivered"
            raise Failure(f"{self._topic}: {where}{describe_error(self._error)}{last} ({done})")
        self._refusals.report()


def describe_error(error: Any) -> str:
    """Format an error of librdkafka as one phrase. Replace librdkafka's text if it is hard to understand."""
    from confluent_kafka import KafkaError

    known = {
        KafkaError._UNKNOWN_TOPIC: "unknown topic",
        KafkaError.UNKNOWN_TOPIC_OR_PART: "unknown topic or partition",
        KafkaError._UNKNOWN_PARTITION: "unknown partition",
        KafkaError._MSG_TIMED_OUT: "not delivered in time",
    }
    return known.get(error.code()) or str(error.str()).removeprefix("Broker: ").removeprefix("Local: ")
