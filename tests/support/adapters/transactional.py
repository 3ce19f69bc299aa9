"""Transactional producers of three makes behind one face, and what a reader of each isolation sees."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self

SECONDS = 120.0


class Fenced(Exception):
    """Another producer has taken the transactional id: this one is at its end."""


class Transactional(Protocol):
    """A producer that has begun (InitProducerId)."""

    def begin(self) -> None: ...
    def send(self, topic: str, partition: int, value: bytes) -> None: ...
    def flush(self) -> None: ...
    def send_offsets(self, group: str, topic: str, partition: int, offset: int) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Confluent:
    """confluent-kafka."""

    def __init__(self, bootstrap: str, name: str, timeout_ms: int = 60_000) -> None:
        from confluent_kafka import Producer

        self._bootstrap = bootstrap
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": min(timeout_ms, 30_000),
                "linger.ms": 1,
            }
        )
        with self._fenced():
            self._producer.init_transactions(SECONDS)

    def begin(self) -> None:
        with self._fenced():
            self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.produce(topic, value, partition=partition)

    def flush(self) -> None:
        assert not self._producer.flush(SECONDS)

    def send_offsets(self, group: str, topic: str, partition: int, offset: int) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})
        try:
            offsets = [TopicPartition(topic, partition, offset)]
            self._producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), SECONDS)
        finally:
            consumer.close()

    def commit(self) -> None:
        with self._fenced():
            self._producer.commit_transaction(SECONDS)

    def abort(self) -> None:
        with self._fenced():
            self._producer.abort_transaction(SECONDS)

    @contextlib.contextmanager
    def _fenced(self) -> Iterator[None]:
        from confluent_kafka import KafkaError, KafkaException

        try:
            yield
        except KafkaException as problem:
            if problem.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED):
                raise Fenced from problem
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        from confluent_kafka import KafkaException

        with contextlib.suppress(KafkaException):  # Of a fenced producer.
            self._producer.purge()
            self._producer.flush(0)


class KafkaPython:
    """kafka-python."""

    def __init__(self, bootstrap: str, name: str, timeout_ms: int = 60_000) -> None:
        from kafka import KafkaProducer

        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            max_block_ms=SECONDS * 1000,
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.send(topic, value, partition=partition)

    def flush(self) -> None:
        self._producer.flush(SECONDS)

    def send_offsets(self, group: str, topic: str, partition: int, offset: int) -> None:
        from kafka import ConsumerGroupMetadata, TopicPartition
        from kafka.structs import OffsetAndMetadata

        offsets = {TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)}
        self._producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(group))

    def commit(self) -> None:
        with self._fenced():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with self._fenced():
            self._producer.abort_transaction()

    @contextlib.contextmanager
    def _fenced(self) -> Iterator[None]:
        from kafka.errors import InvalidProducerEpochError, ProducerFencedError

        try:
            yield
        except (InvalidProducerEpochError, ProducerFencedError) as problem:
            raise Fenced from problem
        except Exception as problem:
            if isinstance(problem.__cause__, (InvalidProducerEpochError, ProducerFencedError)):
                raise Fenced from problem
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.close(timeout=5)


class Aiokafka:
    """aiokafka, in a loop of its own."""

    def __init__(self, bootstrap: str, name: str, timeout_ms: int = 60_000) -> None:
        from aiokafka import AIOKafkaProducer

        self._loop = asyncio.new_event_loop()

        async def start() -> Any:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=timeout_ms
            )
            await producer.start()
            return producer

        self._producer = self._run(start())
        self._sent: list[Any] = []

    def _run(self, work: Any) -> Any:
        from aiokafka.errors import InvalidProducerEpoch, ProducerFenced

        try:
            return self._loop.run_until_complete(asyncio.wait_for(work, SECONDS))
        except (InvalidProducerEpoch, ProducerFenced) as problem:
            raise Fenced from problem

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._run(self._producer.send(topic, value, partition=partition))

    def flush(self) -> None:
        self._run(self._producer.flush())

    def send_offsets(self, group: str, topic: str, partition: int, offset: int) -> None:
        from aiokafka import TopicPartition

        offsets = {TopicPartition(topic, partition): offset}
        self._run(self._producer.send_offsets_to_transaction(offsets, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(Exception):  # Of a fenced producer.
            self._run(self._producer.stop())
        self._loop.close()


MAKES: dict[str, Callable[..., Transactional]] = {
    "confluent_kafka": Confluent,
    "kafka": KafkaPython,
    "aiokafka": Aiokafka,
}


def read_all(bootstrap: str, topic: str, partitions: int, *, isolation: str) -> list[bytes]:
    """Every value from the beginning to the end that the isolation knows, partition by partition."""
    messages = read_messages(bootstrap, topic, partitions, isolation=isolation)
    return [bytes(message.value()) for message in messages]


def read_messages(bootstrap: str, topic: str, partitions: int, *, isolation: str) -> list[Any]:
    """Return every message from the beginning to the end that the isolation knows, partition by partition."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "a-reader-without-a-group",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 20,
        }
    )
    messages: list[Any] = []
    try:
        for partition in range(partitions):
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
            while True:
                message = consumer.poll(SECONDS)
                assert message is not None, "nothing more came, and no end"
                error = message.error()
                if error is None:
                    messages.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    break
                else:
                    raise AssertionError(str(error))
        return messages
    finally:
        consumer.close()


def committed_offset(bootstrap: str, group: str, topic: str, partition: int) -> int | None:
    """What a group has committed, by now; None: nothing."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_committed"}
    )
    try:
        (row,) = consumer.committed([TopicPartition(topic, partition)], SECONDS)
        return int(row.offset) if row.offset >= 0 else None
    finally:
        consumer.close()
