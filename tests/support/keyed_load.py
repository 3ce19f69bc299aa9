"""Load for compacted topics: keyed records whose newest acknowledged value must stay, and the check of it.

Each producer has keys of its own and numbers its values, so a key's values grow along its partition. In the end
the whole log is read raw and compared:

    lost         the log's last record of a key is older than the newest acknowledged one of that key
    changed      an acknowledged offset holds another value, or a value that nobody sent stands somewhere
    reordered    a key's values do not grow along the log
"""

from __future__ import annotations

import random
from typing import Any

from confluent_kafka import Message

from kproc.wire.record_batch import decode_records
from tests.support.client_threads import ConsumerThread, ProducerThread
from tests.support.raw import RawClient, split_batches


class KeyedProducer(ProducerThread):
    """Sends numbered values of keys that no other producer has."""

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
        super().__init__(bootstrap, topic, name, pause_seconds=pause_seconds, records_max=records_max)
        self.newest: dict[tuple[int, bytes], tuple[int, int]] = {}  # (partition, key) -> (offset, number)
        self.count = 0
        self._partitions, self._keys = partitions, keys
        self._padding = b"." * value_bytes
        self._random = random.Random(name)

    def record(self, number: int) -> dict[str, Any]:
        key = b"%s-%d" % (self.name.encode(), self._random.randrange(self._keys))
        return {"key": key, "value": b"%d:" % number + self._padding, "partition": number % self._partitions}

    def on_acknowledged(self, message: Message) -> None:
        self.count += 1
        at, key = message.offset(), message.key()
        assert at is not None
        known = self.newest.get((message.partition(), key))
        if known is None or known[0] < at:
            self.newest[message.partition(), key] = (at, number_of(message.value()))


class TailReader(ConsumerThread):
    """Notes values of a key that go back."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(bootstrap, topic, partitions)
        self.count = 0
        self._last: dict[tuple[int, bytes], int] = {}

    def on_record(self, message: Message) -> None:
        self.count += 1
        key = (message.partition(), message.key())
        number = number_of(message.value())
        if self._last.get(key, -1) >= number:
            self.problems.append(f"reader: {key} goes from {self._last[key]} to {number}")
        self._last[key] = number


def number_of(value: bytes | None) -> int:
    """Return the number at the front of a value."""
    return int((value or b"").split(b":")[0])


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
            number = number_of(value)
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
