"""`kproc produce TOPIC`: sends a record for each line of stdin, as text or JSON, by confluent-kafka."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, BinaryIO

import typer

from kproc.cli.common import DEFAULT_BOOTSTRAP, INT_MAX, SECONDS_MAX, Bootstrap, Failure, pairs, usage_error
from kproc.cli.completion import complete_topics
from kproc.cli.connection import connect_for_records
from kproc.cli.end_signals import interrupt_at_signals
from kproc.cli.formatting import unescape
from kproc.cli.human import counted
from kproc.cli.lines import print_note
from kproc.cli.record_json import BadLine, Headers, Outgoing, read_line
from kproc.cli.record_sender import RecordSender

TIMEOUT_S_MIN = 0.1
"""The shortest timeout of a record. librdkafka rejects one that is not longer than its linger.ms."""
LINE_BYTES_MAX = 256 << 20
"""Limit of a line, because /dev/zero is an endless one. The escapes of JSON can make a line six times its record."""
CONNECT_MS = 10_000
"""Time limit of the first connection, unless --timeout is shorter."""


class CompressionType(StrEnum):
    """The compression codecs of Kafka's protocol."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    """The acknowledgement to wait for: none, the leader's, or all replicas'.

    With all, kproc waits for a sync to the disk if kproc.flush=group.
    """

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
    # Connect once before librdkafka does, because the system reports a refused connection at once. librdkafka only
    # reports after a while that all brokers are down.
    connect_for_records(bootstrap, timeout_ms=min(CONNECT_MS, int(1000 * (timeout or SECONDS_MAX)))).close()
    if sys.stdin.isatty() and sys.stderr.isatty():
        print_note(f"kproc: each line goes to {topic}; Ctrl-D ends")
    sender = RecordSender(bootstrap, topic, partition, settings)
    with interrupt_at_signals():
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
    # KIP-98: a broker recognizes a repeated batch only if it has stored the first one, so idempotent producers need
    # acks=all.
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
    """Return librdkafka's settings for --timeout, or {} without the option.

    librdkafka then uses its default of 300 s, or the transaction timeout if that is shorter.
    """
    if timeout_s is None:
        return {}
    if transaction_s is not None and timeout_s > transaction_s:
        usage_error(f"--timeout {timeout_s:.15g} is longer than --transaction-timeout {transaction_s:.15g}")
    return {"message.timeout.ms": int(timeout_s * 1000)}


def _send_all(
    sender: RecordSender, lines: Iterator[bytes], read: Callable[[bytes], Outgoing], *, skips_blanks: bool
) -> int:
    """Send the record of each line, and return their number. An invalid line ends the command.

    The records before the invalid line are delivered first, or their transaction is aborted.
    """
    try:
        for number, line in enumerate(lines, 1):
            if len(line) > LINE_BYTES_MAX:
                raise BadLine(f"longer than {LINE_BYTES_MAX} bytes")
            if not skips_blanks or line.strip():
                sender.send(number, read(line))
    except BadLine as bad:
        raise Failure(f"line {number}: {bad}; {sender.abandon()}") from None
    except KeyboardInterrupt:
        sender.interrupt()
        raise
    return sender.finish()


def _given_headers(options: list[str] | None) -> Headers:
    """Parse the headers given on the command line. Their values may be any bytes."""
    headers = []
    for name, value in pairs("--header", options or ()):
        try:
            name.encode()
        except UnicodeEncodeError:
            usage_error(f"--header {os.fsencode(name)!r}: a name must be UTF-8")
        headers.append((name, os.fsencode(value)))
    return headers


class _LineParser:
    """Converts lines to records if --json is not given. Reports lines without the key separator."""

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
        # Report only the first such line, and count the others for the end, because a wrong separator is missing in
        # every line.
        if self._missing == 1:
            print_note(
                f"kproc: line {self._count} has no separator {self._shown()}: it is sent as a value without a key"
            )

    def report_missing(self) -> None:
        """Print how many lines had no separator, if there was more than one."""
        if self._missing > 1:
            print_note(
                f"kproc: {self._missing} of {self._count} lines had no separator {self._shown()} "
                "and were sent without a key"
            )

    def _shown(self) -> str:
        return repr(os.fsdecode(self._separator or b""))


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines without their line ends. The last line need not have one.

    Of a longer line, yield the first LINE_BYTES_MAX + 1 bytes.
    """
    for line in iter(partial(stream.readline, LINE_BYTES_MAX + 1), b""):
        yield line.removesuffix(b"\n")
