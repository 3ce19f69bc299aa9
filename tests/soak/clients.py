"""Clients of each make that stay for the whole soak: each produces to the steady topic and follows all of it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import aiokafka
import kafka
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.soak.ledger import Ledger
from tests.support.wait import pause

PARTITIONS = 4
TURN_SECONDS = 0.1
# A client gives a record up after this: longer than any pause, restart or scale here takes on a busy host.
DELIVERY_MS = 90_000
PADDING = b" " + b"." * 400


class SteadyClient:
    """One client library on a thread of its own. `make` is its name in the ledger."""

    make = ""

    def __init__(self, bootstrap: str, topic: str, ledger: Ledger) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.ledger = ledger
        self.errors: Counter[str] = Counter()  # What the library said and got over.
        self.problems: list[str] = []
        self.is_ending = threading.Event()  # Produce nothing new.
        self.is_over = threading.Event()
        self._has_ended = threading.Event()
        self._number = self._answered = 0
        self._thread = threading.Thread(target=self._run, name=f"steady-{self.make}")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following, too."""
        self.is_ending.set()
        self.is_over.set()
        self._thread.join()

    @property
    def is_answered(self) -> bool:
        """Return True if all that it will ever produce is acknowledged, or will never be."""
        is_done = self._has_ended.is_set() and self._answered == self._number
        return is_done or not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as problem:  # noqa: BLE001 - whatever a library raises is what we are here to see
            self.problems.append(f"{self.make}: {type(problem).__name__}: {problem}")

    def _serve(self) -> None:
        raise NotImplementedError

    def _may_produce(self) -> bool:
        """Asked in each turn."""
        if self.is_ending.is_set():
            self._has_ended.set()
        return not self._has_ended.is_set()

    def _acknowledged(self, partition: int, offset: int, value: bytes) -> None:
        """The broker has answered for a record."""
        self.ledger.acknowledged(partition, offset, value)
        self._answered += 1

    def _next(self) -> tuple[int, bytes]:
        """Partition and value of the next record."""
        self._number += 1
        return self._number % PARTITIONS, b"%s:%d" % (self.make.encode(), self._number) + PADDING

    def _refused(self, problem: object) -> None:
        """A record was given up: no library may do so within its delivery timeout."""
        self.problems.append(f"{self.make}: a record was given up: {problem}")


class ConfluentClient(SteadyClient):
    """librdkafka."""

    make = "confluent"

    def _serve(self) -> None:
        common = {
            "bootstrap.servers": self.bootstrap,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
        producer = Producer(
            {**common, "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": DELIVERY_MS}
        )
        consumer = Consumer(
            {**common, "group.id": "none", "enable.auto.commit": False, "auto.offset.reset": "error"}
        )
        consumer.assign([TopicPartition(self.topic, index, 0) for index in range(PARTITIONS)])

        def on_delivery(error: Any, message: Any) -> None:
            if error is None:
                self._acknowledged(message.partition(), message.offset(), message.value())
            else:
                self._refused(error)

        try:
            while not self.is_over.is_set():
                if self._may_produce():
                    partition, value = self._next()
                    producer.produce(self.topic, value=value, partition=partition, on_delivery=on_delivery)
                producer.poll(0)
                for message in consumer.consume(500, timeout=TURN_SECONDS):
                    error = message.error()
                    if error is None:
                        self.ledger.seen(self.make, message.partition(), message.offset(), message.value())
                    elif error.retriable() or error.code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT):
                        self.errors[error.name()] += 1
                    else:
                        self.problems.append(f"{self.make}: the consumer got {error}")
                pause(TURN_SECONDS / 2)
        finally:
            producer.flush(10)
            consumer.close()


class KafkaPythonClient(SteadyClient):
    """kafka-python."""

    make = "kafka-python"

    def _serve(self) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            enable_idempotence=True,
            delivery_timeout_ms=DELIVERY_MS,
            linger_ms=5,
        )
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap, enable_auto_commit=False, auto_offset_reset="none"
        )
        parts = [kafka.TopicPartition(self.topic, index) for index in range(PARTITIONS)]
        consumer.assign(parts)
        for part in parts:
            consumer.seek(part, 0)
        try:
            while not self.is_over.is_set():
                if self._may_produce():
                    partition, value = self._next()
                    future = producer.send(self.topic, value=value, partition=partition)
                    future.add_callback(
                        lambda meta, value=value: self._acknowledged(meta.partition, meta.offset, value)
                    )
                    future.add_errback(self._refused)
                for records in consumer.poll(timeout_ms=int(TURN_SECONDS * 1000)).values():
                    for row in records:
                        self.ledger.seen(self.make, row.partition, row.offset, row.value)
                pause(TURN_SECONDS / 2)
        finally:
            producer.close(timeout=10)
            consumer.close()


class AiokafkaClient(SteadyClient):
    """aiokafka."""

    make = "aiokafka"

    def _serve(self) -> None:
        asyncio.run(self._serve_async())

    async def _serve_async(self) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            enable_idempotence=True,
            request_timeout_ms=DELIVERY_MS,
        )
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, enable_auto_commit=False, auto_offset_reset="none"
        )
        parts = [aiokafka.TopicPartition(self.topic, index) for index in range(PARTITIONS)]
        await producer.start()
        await consumer.start()
        consumer.assign(parts)
        for part in parts:
            consumer.seek(part, 0)
        try:
            while not self.is_over.is_set():
                if self._may_produce():
                    partition, value = self._next()
                    future = await producer.send(self.topic, value=value, partition=partition)
                    future.add_done_callback(lambda done, value=value: self._on_done(done, value))
                found = await consumer.getmany(timeout_ms=int(TURN_SECONDS * 1000))
                for records in found.values():
                    for row in records:
                        self.ledger.seen(self.make, row.partition, row.offset, row.value)
                # Records come all the time: this is what keeps the rate modest.
                await asyncio.to_thread(pause, TURN_SECONDS / 2)
        finally:
            await producer.stop()
            await consumer.stop()

    def _on_done(self, done: Any, value: bytes) -> None:
        if done.cancelled() or done.exception() is not None:
            self._refused("cancelled" if done.cancelled() else repr(done.exception()))
        else:
            self._acknowledged(done.result().partition, done.result().offset, value)


MAKES: tuple[type[SteadyClient], ...] = (ConfluentClient, KafkaPythonClient, AiokafkaClient)
