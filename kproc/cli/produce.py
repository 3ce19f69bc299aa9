"""`kproc produce TOPIC`: each line of stdin becomes a record, sent by confluent-kafka."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, BinaryIO

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Failure,
    complete_topics,
    connect,
    connect_for_records,
    pairs,
    usage_error,
)
from kproc.cli.refusals import DEBUG, Refusals

PROPAGATION_MS = 3_000
"""How long librdkafka hopes that an unknown topic appears: here auto-creation is immediate."""


class Compression(StrEnum):
    """Codecs of the protocol."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    """What to wait for: nothing, the broker, or all replicas (with kproc.flush=group, the disk)."""

    NONE = "0"
    LEADER = "1"
    ALL = "all"


def produce(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Where to send records.", autocompletion=complete_topics)
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every record.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help="What ends the key in each line.")
    ] = None,
    header: Annotated[list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE")] = None,
    partition: Annotated[int, typer.Option("--partition", "-p", min=-1, help="-1: by key, or any.")] = -1,
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="Codec.")
    ] = Compression.NONE,
    acks: Annotated[Acks, typer.Option("--acks", "-a", help="What to wait for.")] = Acks.ALL,
    idempotent: Annotated[
        bool, typer.Option("--idempotent", help="No duplicates by retries; needs acks=all.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say how many records were sent.")] = False,
) -> None:
    """Send each line of the standard input as a record."""
    if key is not None and key_separator is not None:
        usage_error("--key and --key-separator exclude each other")
    if key_separator == "":
        usage_error("--key-separator: must not be empty")
    if idempotent and acks is not Acks.ALL:
        usage_error("--idempotent needs --acks all")
    headers = [(name, value.encode()) for name, value in pairs("--header", header or ())]
    # A refused connection is told by the system at once; librdkafka would only say that all brokers are down.
    connect_for_records(bootstrap).close()
    sender = _Sender(bootstrap, topic, partition, headers, compression.value, acks.value, idempotent)
    separator = key_separator.encode() if key_separator is not None else None
    for line in _lines(sys.stdin.buffer):
        its_key: bytes | None = key.encode() if key is not None else None
        if separator is not None and separator in line:
            its_key, _, line = line.partition(separator)
        sender.send(its_key, line)
    count = sender.finish()
    if verbose:
        sys.stderr.write(f"kproc: sent {count} records to {topic}\n")


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines without their end; a last line without one counts too."""
    for line in stream:
        yield line.removesuffix(b"\n")


class _Sender:
    """A producer that stops at the first record which could not be delivered."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partition: int,
        headers: list[tuple[str, bytes]],
        compression: str,
        acks: str,
        idempotent: bool,
    ) -> None:
        from confluent_kafka import Producer

        self._topic = topic
        self._count = 0
        self._error: Any = None
        self._is_down = False
        self._refusals = Refusals(topic)
        self._bootstrap = bootstrap
        self._options: dict[str, Any] = {"headers": headers} if headers else {}
        if partition >= 0:
            self._options["partition"] = partition
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": acks,
                "compression.type": compression,
                "enable.idempotence": idempotent,
                "linger.ms": 5,
                "topic.metadata.propagation.max.ms": PROPAGATION_MS,
                "debug": DEBUG,
                "error_cb": self._on_error,
                "on_delivery": self._on_delivery,
            },
            logger=self._refusals.logger,
        )

    def send(self, key: bytes | None, value: bytes) -> None:
        """Queue one record; waits while the queue is full."""
        while True:
            try:
                self._producer.produce(self._topic, value, key, **self._options)
                break
            except BufferError:
                self._producer.poll(0.1)
                self._check()
        self._producer.poll(0)
        self._check()

    def finish(self) -> int:
        """Wait for every answer; the number of records delivered."""
        while self._producer.flush(0.5):
            self._check()
        self._check()
        return self._count

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self._error = self._error or error
        else:
            self._count += 1
            self._refusals.delivered()

    def _on_error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        # Other errors are told about a broker or a retry, and may heal.
        if error.fatal():
            self._error = self._error or error
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._is_down = True

    def _check(self) -> None:
        if self._is_down:
            # One closed connection is enough for that: a restarted process is no reason to stop, a refused
            # connection is.
            self._is_down = False
            connect(self._bootstrap).close()
        if self._error is not None:
            last = f"; the broker's last error was {self._refusals.last}" if self._refusals.last else ""
            raise Failure(
                f"{self._topic}: {describe_error(self._error)}{last} ({self._count} records were delivered)"
            )
        self._refusals.tell()


def describe_error(error: Any) -> str:
    """librdkafka's error as one phrase, in our words where its own are riddles."""
    from confluent_kafka import KafkaError

    known = {
        KafkaError._UNKNOWN_TOPIC: "unknown topic",
        KafkaError.UNKNOWN_TOPIC_OR_PART: "unknown topic or partition",
        KafkaError._UNKNOWN_PARTITION: "unknown partition",
    }
    return known.get(error.code()) or str(error.str()).removeprefix("Broker: ").removeprefix("Local: ")
