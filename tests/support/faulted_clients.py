"""Producers and consumers of two libraries for the tests of faults: blocking, with short timeouts and back-offs.

Both retry as they do by default.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any, Protocol

from tests.support.wait import PATIENCE_SECONDS

_BACKOFF_MS = 20


class FaultedClient(Protocol):
    """One library."""

    def produce(
        self, bootstrap: str, topic: str, values: list[bytes], *, timeout_ms: int = ..., **settings: Any
    ) -> list[str]:
        """Send each value alone, and return the name of its error, or an empty text."""

    def consume(self, bootstrap: str, topic: str, count: int, *, group: str | None = ...) -> list[bytes]:
        """Return the first `count` values of a topic with one partition."""


class Confluent:
    """confluent-kafka."""

    def produce(
        self, bootstrap: str, topic: str, values: list[bytes], *, timeout_ms: int = 60_000, **settings: Any
    ) -> list[str]:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": "faulted",
                "linger.ms": 0,
                "retry.backoff.ms": _BACKOFF_MS,
                "reconnect.backoff.ms": _BACKOFF_MS,
                "message.timeout.ms": 4 * timeout_ms,
                "request.timeout.ms": timeout_ms,
                "socket.timeout.ms": timeout_ms,
                "log_level": 0,
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        errors: list[str] = []
        for value in values:
            producer.produce(
                topic, value, on_delivery=lambda error, _: errors.append(error.name() if error else "")
            )
            assert producer.flush(PATIENCE_SECONDS) == 0
        return errors

    def consume(self, bootstrap: str, topic: str, count: int, *, group: str | None = None) -> list[bytes]:
        from confluent_kafka import Consumer, TopicPartition

        settings = {
            "bootstrap.servers": bootstrap,
            "client.id": "faulted",
            "group.id": group or "unused",
            "auto.offset.reset": "earliest",
            "fetch.error.backoff.ms": _BACKOFF_MS,
            "reconnect.backoff.ms": _BACKOFF_MS,
            "log_level": 0,
        }
        values: list[bytes] = []
        with closing(Consumer(settings)) as consumer:
            if group is not None:
                consumer.subscribe([topic])
            else:
                consumer.assign([TopicPartition(topic, 0, 0)])
            while len(values) < count:
                message = consumer.poll(PATIENCE_SECONDS)
                assert message is not None, f"only {values} arrived"
                if not message.error():
                    values.append(message.value())
        return values


class KafkaPython:
    """kafka-python."""

    def produce(
        self, bootstrap: str, topic: str, values: list[bytes], *, timeout_ms: int = 60_000, **settings: Any
    ) -> list[str]:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            client_id="faulted",
            linger_ms=0,
            retry_backoff_ms=_BACKOFF_MS,
            reconnect_backoff_ms=_BACKOFF_MS,
            request_timeout_ms=timeout_ms,
            delivery_timeout_ms=4 * timeout_ms,
            **settings,
        )
        errors: list[str] = []
        with closing(producer):
            for value in values:
                future = producer.send(topic, value)
                try:
                    future.get(PATIENCE_SECONDS)
                    errors.append("")
                except Exception as error:  # noqa: BLE001 - its name is the result
                    errors.append(type(error).__name__)
        return errors

    def consume(self, bootstrap: str, topic: str, count: int, *, group: str | None = None) -> list[bytes]:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            client_id="faulted",
            group_id=group,
            auto_offset_reset="earliest",
            retry_backoff_ms=_BACKOFF_MS,
            reconnect_backoff_ms=_BACKOFF_MS,
            consumer_timeout_ms=int(PATIENCE_SECONDS * 1000),
        )
        values: list[bytes] = []
        with closing(consumer):
            if group is not None:
                consumer.subscribe([topic])
            else:
                consumer.assign([TopicPartition(topic, 0)])
            for message in consumer:
                values.append(message.value)
                if len(values) == count:
                    break
        assert len(values) == count, f"only {values} arrived"
        return values


LIBRARIES: dict[str, FaultedClient] = {"confluent": Confluent(), "kafka_python": KafkaPython()}
