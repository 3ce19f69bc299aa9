"""`kproc consume TOPIC`: records to stdout, read by confluent-kafka from partitions assigned by hand.

No consumer group is joined and nothing is committed: reading twice shows the same records twice.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Failure,
    complete_topics,
    connect,
    connect_for_records,
)
from kproc.cli.formatting import Consumed, compile_format
from kproc.cli.positions import Where, chosen_partitions, find_positions, parse_where

BATCH_RECORDS: Final = 1000
"""Records taken from librdkafka at a time."""
WAIT_S: Final = 0.25
"""How long a call waits for the first record before the loop looks around again."""


def consume(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="What to read.", autocompletion=complete_topics)
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            "-o",
            metavar="WHERE",
            help="beginning, end, an offset, -N (the last N of each), @MILLISECONDS or an ISO 8601 time.",
        ),
    ] = "beginning",
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after so many records.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-F",
            help="Wait for more at the end, and for a broker that is away; so does --from end.",
        ),
    ] = False,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this one; may be repeated.")
    ] = None,
    template: Annotated[
        str,
        typer.Option(
            "--format", "-f", metavar="FORMAT", help="As kcat's: %t %p %o %k %s %h %T, \\n \\t; or json."
        ),
    ] = r"%s\n",
) -> None:
    """Write records to the standard output: up to the present end, or for ever with --follow."""
    formatter = compile_format(template)
    where = parse_where("--from", start)
    follow = follow or where == "end"
    starts, ends = _range(bootstrap, topic, where, partition)
    write = sys.stdout.buffer.write
    left = count if count is not None else sys.maxsize
    reader = _Reader(bootstrap, topic, starts, ends if not follow else None)
    try:
        while left > 0 and not reader.is_done:
            records = reader.take(min(left, BATCH_RECORDS))
            for record in records:
                write(formatter(record))
            left -= len(records)
            sys.stdout.buffer.flush()
    finally:
        reader.close()


def _range(
    bootstrap: str, topic: str, where: Where, wanted: list[int] | None
) -> tuple[dict[int, int], dict[int, int]]:
    """First offset and present end of each partition, from the broker itself."""
    from kproc.cli.topics import checked_topics

    with connect_for_records(bootstrap) as client:
        [metadata] = checked_topics(client, [topic])
        known = [row["partition_index"] for row in metadata["partitions"]]
        positions = find_positions(client, topic, chosen_partitions(topic, known, wanted), where)
    return positions.found, positions.ends


class _Reader:
    """librdkafka's consumer on assigned partitions; done when each has reached its end, if ends are given."""

    def __init__(
        self, bootstrap: str, topic: str, starts: dict[int, int], ends: dict[int, int] | None
    ) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._topic = topic
        self._ends = ends
        self._open = {number for number, start in starts.items() if ends is None or start < ends[number]}
        self._fatal: Any = None
        self._is_down = self._is_away = False
        self._bootstrap = bootstrap
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                # The binding demands a name; assigned partitions with known offsets never use it.
                "group.id": "kproc-consume",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 500,
                "reconnect.backoff.max.ms": 1000,
                "fetch.queue.backoff.ms": 10,  # Its own second of rest halves the speed of a short read.
                "log_level": 0,
                "error_cb": self._on_error,
            }
        )
        assignment = [
            TopicPartition(topic, number, start) for number, start in starts.items() if number in self._open
        ]
        self._consumer.assign(assignment)

    @property
    def is_done(self) -> bool:
        """True when there is nothing left to wait for."""
        return not self._open

    def take(self, limit: int) -> list[Consumed]:
        """Up to `limit` records, none if nothing came in a while."""
        records = []
        first = self._consumer.poll(WAIT_S)
        # Then what is there already: consume() with a timeout would wait for a full batch.
        messages: Any = [first, *(self._consumer.consume(limit - 1, 0) if limit > 1 else ())] if first else ()
        for message in messages:
            error = message.error()
            if error is not None:
                self._on_message_error(message, error)
                continue
            number, offset = message.partition(), message.offset()
            if self._ends is not None:
                if offset >= self._ends[number]:
                    self._open.discard(number)
                    continue  # Written after we started: not part of what was asked for.
                if offset == self._ends[number] - 1:
                    self._open.discard(number)
            records.append(
                Consumed(
                    topic=self._topic,
                    partition=number,
                    offset=offset,
                    timestamp_ms=message.timestamp()[1],
                    key=message.key(),
                    value=message.value(),
                    headers=message.headers() or (),
                )
            )
        if self._is_down and not records:
            # One closed connection is enough for that; a refused one ends the command with its reason.
            self._is_down = False
            self._look_for_broker()
        elif self._is_away and not records:
            self._look_for_broker()
        if self._fatal is not None and not records:
            raise Failure(f"{self._topic}: {self._fatal}")
        return records

    def _look_for_broker(self) -> None:
        """Whether it can be reached: if not, an end in sight ends the command, one that follows waits for it."""
        from kproc.client import ClientError

        try:
            connect(self._bootstrap).close()
        except ClientError as error:
            if self._ends is not None:
                raise
            if not self._is_away:
                sys.stderr.write(f"kproc: {error}; trying again until it is back\n")
            self._is_away = True
        else:
            if self._is_away:
                sys.stderr.write(f"kproc: {self._bootstrap} is back\n")
            self._is_away = False

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()

    def _on_message_error(self, message: Any, error: Any) -> None:
        from confluent_kafka import KafkaError

        from kproc.cli.produce import describe_error

        if error.code() == KafkaError._PARTITION_EOF:
            # The end may hold records that are never shown, such as a transaction's marker.
            if self._ends is not None:
                self._open.discard(message.partition())
            return
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._is_down = True
            return
        if message.topic() is None and not error.fatal():
            # librdkafka looks for a coordinator because the group has a name. We need none; a broker without
            # groups says so: that is about no partition of ours.
            return
        self._fatal = self._fatal or describe_error(error)

    def _on_error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        from kproc.cli.produce import describe_error

        if error.fatal():
            self._fatal = self._fatal or describe_error(error)
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._is_down = True
