"""A producer and a consumer of librdkafka, each on a thread of its own, for loads whose effects a test checks."""

from __future__ import annotations

import threading
import uuid
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.support.wait import pause

# Longer than any restart of a role and shorter than a test run's patience. A client that takes longer is stuck.
STUCK_SECONDS: Final = 240.0
_COMMON: Final = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0}


class ProducerThread:
    """An idempotent producer with acks=all. A subclass says what it sends and what becomes of acknowledgements."""

    def __init__(
        self, bootstrap: str, topic: str, name: str, *, pause_seconds: float, records_max: int | None = None
    ) -> None:
        """`records_max` bounds the number of records; None sends until `stop`."""
        self.name = name
        self.problems: list[str] = []
        self._topic = topic
        self._pause_seconds = pause_seconds
        self._records_max = records_max
        self._stop = threading.Event()
        settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            "message.timeout.ms": int(STUCK_SECONDS * 1000),
            "retry.backoff.ms": 50,
        }
        self._producer = Producer({**_COMMON, **settings})
        self._thread = threading.Thread(target=self._run, name=name)

    def record(self, number: int) -> dict[str, Any]:
        """Return key, value and partition of a record."""
        raise NotImplementedError

    def on_acknowledged(self, message: Message) -> None:
        """Note where a record was stored."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and wait for every acknowledgement."""
        self._stop.set()
        self.wait()

    def wait(self) -> None:
        """Wait until all records are sent and acknowledged."""
        self._thread.join()
        left = self._producer.flush(STUCK_SECONDS)
        if left:
            self.problems.append(f"stuck: producer {self.name} has {left} undelivered")

    def abandon(self) -> None:
        """Stop without waiting for acknowledgements, because the test has failed already."""
        self._stop.set()
        self._thread.join()
        self._producer.purge()
        self._producer.flush(1)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set() and number != self._records_max:
            try:
                self._producer.produce(self._topic, on_delivery=self._on_delivery, **self.record(number))
            except BufferError:
                self._producer.poll(0.05)  # The queue is full while the broker is away. Answers make room.
                continue
            except KafkaException as problem:
                self.problems.append(f"producer {self.name} cannot go on: {problem}")
                return
            number += 1
            self._producer.poll(0)
            if self._pause_seconds:
                pause(self._pause_seconds)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.on_acknowledged(message)
        else:
            self.problems.append(f"producer {self.name}: {error} for {(message.value() or b'')[:40]!r}")


class ConsumerThread:
    """A consumer without a group that reads every partition from the start. A subclass checks the records."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.problems: list[str] = []
        self._stop = threading.Event()
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": f"none-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
        self._consumer = Consumer({**_COMMON, **settings})
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        self._thread = threading.Thread(target=self._run, name="consumer")

    def on_record(self, message: Message) -> None:
        """Check or keep a record."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more."""
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(500, timeout=0.1):
                error = message.error()
                if error is None:
                    self.on_record(message)
                elif not (error.retriable() or error.code() == KafkaError._TRANSPORT):
                    self.problems.append(f"consumer: {error}")
