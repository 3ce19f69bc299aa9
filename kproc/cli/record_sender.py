"""Sends records with librdkafka's producer, for `kproc produce`.

It stops at the first record that cannot be delivered. While the broker is away, for example at its restart, librdkafka
tries again until the timeout of a record has passed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kproc.cli.connection import client_id, connect, librdkafka_security
from kproc.cli.failure import Failure
from kproc.cli.human import counted
from kproc.cli.lines import print_note
from kproc.cli.record_json import BadLine, Outgoing
from kproc.cli.refusals import DEBUG, Refusals

PROPAGATION_MS = 3_000
"""Time that librdkafka waits for an unknown topic to appear. It can be short, because auto-creation is immediate."""
INTERRUPT_SECONDS = 0.5
"""Time limit of sending the records that are in the queue at Ctrl-C."""
STEP_SECONDS = 30.0
"""Time limit of beginning, committing or aborting a transaction."""
RECORD_BYTES_MAX = 1_000_000_000
"""The largest limit that librdkafka accepts, because the broker decides for each topic how large a record may be."""
LINGER_MS = 5
RECONNECT_MS = 1_000
"""The longest time between two tries of librdkafka to connect. Its default is 10 s."""


class RecordSender:
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
        self._enqueued = 0
        self._error: Any = None
        self._line: int | None = None
        self._is_down = False
        # The reason why the last connection failed, until a record is delivered.
        self._away: str | None = None
        self._refusals = Refusals(topic, bootstrap)
        self._bootstrap = bootstrap
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                **librdkafka_security(),
                **settings,
                "client.id": client_id(),
                "linger.ms": LINGER_MS,
                "reconnect.backoff.max.ms": RECONNECT_MS,
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
        """Enqueue the record of line `number`. Wait while librdkafka's queue is full.

        Raise BadLine if librdkafka rejects the record, and a Failure if an earlier record was not delivered.
        """
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
                self._enqueued += 1
                break
            # librdkafka's queue is full. Polling handles delivery reports, and each one frees space for a record.
            except BufferError:
                self._producer.poll(0.1)
                self._check()
            except KafkaException as error:
                raise BadLine(describe_error(error.args[0])) from error
        # Handle the delivery reports after each record, because they stay in librdkafka's memory until they are polled.
        self._producer.poll(0)
        self._check()

    def finish(self) -> int:
        """Wait until all records are delivered, and commit the transaction if there is one.

        Return the number of records. Raise a Failure if a record was not delivered.
        """
        self._flush()
        if self._is_transactional:
            what = "it is not known whether the transaction was committed"
            self._run_step(what, self._producer.commit_transaction, STEP_SECONDS)
        return self._count

    def abandon(self) -> str:
        """Abort the transaction, or deliver the queued records, after an invalid line. Return the outcome in words."""
        if self._is_transactional:
            return self._abort()
        self._flush()
        return f"{self._delivered(' before it')}; it and all later ones were not sent"

    def interrupt(self) -> None:
        """Abort an open transaction, because read_committed consumers would wait for its timeout.

        Without a transaction, send queued records for INTERRUPT_SECONDS, and report how many were not confirmed.
        """
        if self._is_transactional:
            self._abort()
            return
        self._producer.flush(INTERRUPT_SECONDS)
        # Compare with the delivered records, because the flush also counts records as done whose delivery failed.
        if unconfirmed := self._enqueued - self._count:
            print_note(f"kproc: {self._delivered()}; not confirmed: {counted(unconfirmed, 'record')}")

    def _delivered(self, which: str = "") -> str:
        return f"{counted(self._count, 'record')}{which} {'was' if self._count == 1 else 'were'} delivered"

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
        """Run a step of the transaction protocol, which librdkafka retries by itself.

        Raise a Failure if the step fails.
        """
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
            if self._away is not None:
                print_note(f"kproc: {self._bootstrap} is back")
                self._away = None

    def _on_error(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        # Ignore other errors, which concern one broker or a retry and can be temporary.
        if error.fatal():
            self._error = self._error or error
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._is_down = True

    def _check(self) -> None:
        from confluent_kafka import KafkaError

        if self._is_down and self._away is None:
            self._check_broker()
        self._is_down = False
        if self._error is not None:
            # A broker that is back can reject the first record. Then the lost connection is not the reason.
            is_late = self._error.code() == KafkaError._MSG_TIMED_OUT
            reason = (self._away if is_late else None) or self._refusals.reason()
            last = f"; {reason}" if reason else ""
            where = f"line {self._line}: " if self._line is not None else ""
            done = self._abort() if self._is_transactional else self._delivered()
            raise Failure(f"{self._topic}: {where}{describe_error(self._error)}{last} ({done})")
        self._refusals.report()

    def _check_broker(self) -> None:
        """Connect to the broker, and report if that fails. librdkafka retries until the timeout of a record.

        librdkafka reports "all brokers down" after a single closed connection, although the broker may have restarted
        one of its processes only. Raise a Failure if the broker rejects the login, which no retry would change.
        """
        from kproc.client import AuthenticationFailed, ClientError

        try:
            connect(self._bootstrap).close()
        except AuthenticationFailed as error:
            # Do not abort the transaction: the abort would fail at the same broker, which rejects this login.
            fate = "the transaction ends by its timeout" if self._is_transactional else self._delivered()
            raise Failure(f"{error} ({fate})") from error
        except ClientError as error:
            self._away = str(error)
            print_note(f"kproc: {error}; trying again until a record's --timeout is over")


def describe_error(error: Any) -> str:
    """Format an error of librdkafka as one phrase. Replace librdkafka's text if it is hard to understand."""
    from confluent_kafka import KafkaError

    known = {
        KafkaError._UNKNOWN_TOPIC: "unknown topic",
        KafkaError.UNKNOWN_TOPIC_OR_PART: "unknown topic or partition",
        KafkaError._UNKNOWN_PARTITION: "unknown partition",
        KafkaError._MSG_TIMED_OUT: "not delivered in time",
    }
    if error.code() in known:
        return known[error.code()]
    # The prefix can also stand in the middle: "Fetch from broker 1 failed: Broker: Topic authorization failed".
    words = str(error.str()).replace("Broker: ", "").removeprefix("Local: ")
    # The codes below 0 are librdkafka's own, except for Kafka's UNKNOWN_SERVER_ERROR.
    from kproc.client.error_texts import name_code

    return name_code(words, error.code())
