"""Copiers: members of one group that read transfers, write each to another topic, and commit its offset with it."""

from __future__ import annotations

import threading
from collections import Counter

from confluent_kafka import Consumer, KafkaException, Message, Producer

from tests.bank.tellers import END_SECONDS, STEP_SECONDS, TIMEOUT_MS, retried, stack_of

GROUP = "copiers"
_BATCH = 100


class Copier:
    """One consumer and producer on a thread of its own; both are made anew after an error that ends a transaction."""

    def __init__(self, bootstrap: str, source: str, target: str, *, number: int) -> None:
        self.name = f"copier-{number}"
        self.errors: Counter[str] = Counter()
        self.problems: list[str] = []
        self.copied = 0
        self.is_ending = threading.Event()
        self._bootstrap, self._source, self._target = bootstrap, source, target
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self) -> None:
        """Finish what is under way."""
        self.is_ending.set()
        self._thread.join(END_SECONDS)
        if self._thread.is_alive():
            self.problems.append(f"{self.name} does not end: {stack_of(self._thread)}")

    def _run(self) -> None:
        while not self.is_ending.is_set():
            try:
                self._serve()
            except KafkaException as error:
                self.errors[error.args[0].name()] += 1
            except Exception as problem:  # noqa: BLE001 - whatever a library raises is what we are here to see
                self.problems.append(f"{self.name}: {type(problem).__name__}: {problem}")
                return

    def _serve(self) -> None:
        common = {
            "bootstrap.servers": self._bootstrap,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            # After a new bootstrap librdkafka 2.16 asks the group's coordinator over the broker that it gave up, and
            # waits for ever: TxnOffsetCommit is never sent.
            "metadata.recovery.strategy": "none",
            "log_level": 0,
        }
        consumer = Consumer(
            {
                **common,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "client.id": f"{self.name}-consumer",
                "session.timeout.ms": 10_000,
            }
        )
        producer = Producer(
            {
                **common,
                "transactional.id": self.name,
                "client.id": self.name,
                "transaction.timeout.ms": TIMEOUT_MS,
                "message.timeout.ms": TIMEOUT_MS,
            }
        )
        try:
            producer.init_transactions(STEP_SECONDS)
            consumer.subscribe([self._source])
            while not self.is_ending.is_set():
                messages = [each for each in consumer.consume(_BATCH, timeout=0.2) if each.error() is None]
                if messages:
                    self._copy(consumer, producer, messages)
        finally:
            consumer.close()

    def _copy(self, consumer: Consumer, producer: Producer, messages: list[Message]) -> None:
        producer.begin_transaction()
        try:
            for each in messages:
                value = b"%d:%d|" % (each.partition(), each.offset()) + each.value()
                producer.produce(self._target, value, each.key())
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), STEP_SECONDS)
            retried(producer.commit_transaction)
            self.copied += len(messages)
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                retried(producer.abort_transaction)
            raise  # Positions are behind what was not committed: begin anew from the group's offsets.
