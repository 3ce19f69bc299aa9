"""Load for compacted topics: keyed records whose newest acknowledged value must stay, and the check of it.

Each producer has keys of its own and numbers its values, so a key's values grow along its partition. In the end
the whole log is read raw and compared:

    lost         the log's last record of a key is older than the newest acknowledged one of that key
    changed      an acknowledged offset holds another value, or a value that nobody sent stands somewhere
    reordered    a key's values do not grow along the log
"""

from __future__ import annotations

import random
import threading
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from kproc.wire.record_batch import decode_records
from tests.support.raw import RawClient, split_batches
from tests.support.wait import pause

_TIMEOUT_MS = 60_000


class KeyedProducer:
    """One idempotent producer on a thread of its own."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        name: str,
        *,
        keys: int = 200,
        value_bytes: int = 300,
        pause_seconds: float = 0.0005,
        records_max: int | None = None,
    ) -> None:
        self.name = name
        self.newest: dict[tuple[int, bytes], tuple[int, int]] = {}  # (partition, key) -> (offset, number)
        self.count = 0
        self.problems: list[str] = []
        self._topic, self._partitions, self._keys = topic, partitions, keys
        self._padding = b"." * value_bytes
        self._pause_seconds = pause_seconds
        self._records_max = records_max
        self._stop = threading.Event()
        self._random = random.Random(name)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "message.timeout.ms": _TIMEOUT_MS,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 50,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more, wait for every acknowledgement."""
        self._stop.set()
        self.wait()

    def wait(self) -> None:
        """Wait for the end of what was to be sent, and for every acknowledgement."""
        self._thread.join()
        left = self._producer.flush(_TIMEOUT_MS / 1000)
        if left:
            self.problems.append(f"stuck: producer {self.name} has {left} undelivered")

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set() and number != self._records_max:
            key = b"%s-%d" % (self.name.encode(), self._random.randrange(self._keys))
            try:
                self._producer.produce(
                    self._topic,
                    key=key,
                    value=b"%d:" % number + self._padding,
                    partition=number % self._partitions,
                    on_delivery=self._on_delivery,
                )
                number += 1
            except BufferError:
                self._producer.poll(0.05)  # The queue is full; answers make room.
                continue
            self._producer.poll(0)
            if self._pause_seconds:
                pause(self._pause_seconds)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.problems.append(f"producer {self.name}: {error}")
            return
        self.count += 1
        at, key = message.offset(), message.key()
        assert at is not None
        number = int((message.value() or b"").split(b":")[0])
        known = self.newest.get((message.partition(), key))
        if known is None or known[0] < at:
            self.newest[message.partition(), key] = (at, number)


class TailReader:
    """A consumer that follows all partitions from the start and notes what it must not see."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.count = 0
        self.problems: list[str] = []
        self._last: dict[tuple[int, bytes], int] = {}
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        self._thread = threading.Thread(target=self._run, name="tail")

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
                    self.count += 1
                    key = (message.partition(), message.key())
                    number = int((message.value() or b"").split(b":")[0])
                    if self._last.get(key, -1) >= number:
                        self.problems.append(f"reader: {key} goes from {self._last[key]} to {number}")
                    self._last[key] = number
                elif not (error.retriable() or error.code() == KafkaError._TRANSPORT):
                    self.problems.append(f"reader: {error}")


def read_keyed(bootstrap: str, topic: str, partition: int) -> list[tuple[int, bytes, bytes | None]]:
    """(offset, key, value) of every record of a partition."""
    found: list[tuple[int, bytes, bytes | None]] = []
    with RawClient(bootstrap) as client:
        assert isinstance(client, RawClient)
        end, offset = client.end_offset(topic, partition=partition), 0
        while offset < end:
            row: dict[str, Any] = client.fetch(topic, offset, partition=partition)
            assert row["error_code"] == 0, row
            for batch in split_batches(row["records"]):
                found += [
                    (r.offset, r.key or b"", r.value) for r in decode_records(batch) if r.offset >= offset
                ]
                last = int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big")
            offset = last + 1
    return found


def violations(
    bootstrap: str, topic: str, partitions: int, producers: list[KeyedProducer]
) -> tuple[list[str], int]:
    """(what is wrong with the log, how many records it has)."""
    wrong = [problem for producer in producers for problem in producer.problems]
    newest = {key: at for producer in producers for key, at in producer.newest.items()}
    total = 0
    for partition in range(partitions):
        last: dict[bytes, tuple[int, int]] = {}
        for offset, key, value in read_keyed(bootstrap, topic, partition):
            total += 1
            number = int((value or b"").split(b":")[0])
            if key in last and last[key][1] >= number:
                wrong.append(f"reordered: {key!r} goes from {last[key]} to {offset, number}")
            last[key] = (offset, number)
            known = newest.get((partition, key))
            if known is not None and known[0] == offset and known[1] != number:
                wrong.append(f"changed: {key!r} at {offset} is {number}, not {known[1]}")
        for (index, key), (offset, number) in newest.items():
            if index == partition and last.get(key, (-1, -1))[0] < offset:
                wrong.append(f"lost: {key!r} of {index}: {last.get(key)}, acknowledged {offset, number}")
    return wrong, total
