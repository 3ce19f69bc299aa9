"""Load whose every effect is known, and the check of its records afterwards.

Producers (librdkafka, idempotent, acks=all) send values of their own, each once: `<producer>:<number>`. What
was acknowledged is written down with its offset. In the end the whole log is read raw and compared:

    stuck        a producer could not deliver within its time, or a consumer did not reach the end
    others       see history_checker.py: lost, duplicate, inversion, gap, divergent, skipped

A value without an acknowledgement may or may not be there, but not twice.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message

from tests.support.client_threads import STUCK_SECONDS, ConsumerThread, ProducerThread
from tests.support.history_checker import HistoryChecker
from tests.support.raw import Closed, RawClient, values_of
from tests.support.wait import pause, wait_until

PAUSE_BETWEEN_SENDS = 0.01


@dataclass
class Acknowledged:
    """Where an acknowledged value must be."""

    partition: int
    offset: int
    value: bytes


class LoadProducer(ProducerThread):
    """Sends values of its own, each once, at a rate that leaves the broker the cores."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        name: str,
        *,
        pause_seconds: float = PAUSE_BETWEEN_SENDS,
    ) -> None:
        super().__init__(bootstrap, topic, name, pause_seconds=pause_seconds)
        self.acknowledged: list[Acknowledged] = []
        self._partitions = partitions

    def record(self, number: int) -> dict[str, Any]:
        return {"value": f"{self.name}:{number}".encode(), "partition": number % self._partitions}

    def on_acknowledged(self, message: Message) -> None:
        self.acknowledged.append(Acknowledged(message.partition(), message.offset(), message.value() or b""))


class LoadConsumer(ConsumerThread):
    """Reads while the load runs, and keeps what it saw."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(bootstrap, topic, partitions)
        self.seen: dict[int, list[tuple[int, bytes]]] = {index: [] for index in range(partitions)}

    def on_record(self, message: Message) -> None:
        self.seen[message.partition()].append((message.offset(), message.value() or b""))

    def stop_at(self, ends: dict[int, int]) -> None:
        """Wait until the consumer has read up to `ends`, then stop it."""
        deadline = time.monotonic() + STUCK_SECONDS
        while time.monotonic() < deadline and not self._has_reached(ends):
            pause(0.05)
        self.stop()
        if not self._has_reached(ends):
            where = {index: rows[-1][0] + 1 if rows else 0 for index, rows in self.seen.items()}
            self.problems.append(f"stuck: consumer at {where}, ends {ends}")

    def _has_reached(self, ends: dict[int, int]) -> bool:
        return all(
            end == 0 or (self.seen[index] and self.seen[index][-1][0] >= end - 1)
            for index, end in ends.items()
        )


@dataclass
class Load:
    """Producers and a consumer over one topic, and the check at the end."""

    bootstrap: str
    topic: str
    partitions: int
    producer_count: int = 3
    pause_seconds: float = PAUSE_BETWEEN_SENDS
    producers: list[LoadProducer] = field(default_factory=list)
    consumer: LoadConsumer | None = None

    def __enter__(self) -> Load:
        for number in range(self.producer_count):
            producer = LoadProducer(
                self.bootstrap,
                self.topic,
                self.partitions,
                f"p{number}-{uuid.uuid4().hex[:6]}",
                pause_seconds=self.pause_seconds,
            )
            producer.start()
            self.producers.append(producer)
        self.consumer = LoadConsumer(self.bootstrap, self.topic, self.partitions)
        self.consumer.start()
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        for producer in self.producers:
            producer.abandon()
        assert self.consumer is not None
        self.consumer.stop_at({})

    def acknowledged_count(self) -> int:
        """How many records are acknowledged so far."""
        return sum(len(producer.acknowledged) for producer in self.producers)

    def wait_progress(self, when: str) -> None:
        """Return once more records are acknowledged than now: no producer waits for ever."""
        before = {producer.name: len(producer.acknowledged) for producer in self.producers}

        def all_go_on() -> bool:
            stuck = [p.name for p in self.producers if len(p.acknowledged) <= before[p.name] + 3]
            assert not stuck, f"no progress of {stuck}, problems {[p.problems[:2] for p in self.producers]}"
            return True

        wait_until(all_go_on, seconds=STUCK_SECONDS, what=f"the load goes on: {when}")

    def finish(self) -> list[str]:
        """Stop the load, read the log, and say every violation; empty is good."""
        for producer in self.producers:
            producer.stop()
        log = read_log(self.bootstrap, self.topic, self.partitions)
        assert self.consumer is not None
        self.consumer.stop_at({index: len(rows) for index, rows in log.items()})
        violations = [problem for producer in self.producers for problem in producer.problems]
        violations += self.consumer.problems
        acknowledged = [row for producer in self.producers for row in producer.acknowledged]
        violations += check_log(log, acknowledged, self.consumer.seen)
        for index, rows in self.consumer.seen.items():
            if rows != log[index]:
                violations.append(
                    f"consumer saw {len(rows)} records of partition {index}, the log has {len(log[index])}"
                )
        return violations


def read_log(bootstrap: str, topic: str, partitions: int) -> dict[int, list[tuple[int, bytes]]]:
    """(offset, value) of everything in each partition, read raw from the start."""
    log: dict[int, list[tuple[int, bytes]]] = {}
    with RawClient(bootstrap) as client:
        for index in range(partitions):
            rows: list[tuple[int, bytes]] = []
            end = client.end_offset(topic, partition=index)
            while (position := rows[-1][0] + 1 if rows else 0) < end:
                answer = client.fetch(topic, position, partition=index)
                assert answer["error_code"] == 0, answer["error_code"]
                fresh = [
                    (offset, value or b"")
                    for offset, value in values_of(answer["records"])
                    if offset >= position
                ]
                assert fresh, f"nothing at {position} of {topic}-{index}, the end is {end}"
                rows += fresh
            log[index] = rows
    return log


def check_log(
    log: Mapping[int, Sequence[tuple[int, bytes]]],
    acknowledged: Iterable[Acknowledged],
    seen: Mapping[int, Sequence[tuple[int, bytes]]] | None = None,
) -> list[str]:
    """Every violation in words (history_checker.py). `seen` is what a consumer got from the start on."""
    acknowledged = list(acknowledged)
    logs: dict[Hashable, Sequence[tuple[int, bytes]]] = {row.partition: () for row in acknowledged}
    logs.update(log)
    checker = HistoryChecker()
    for index, rows in log.items():
        for value in {value for _, value in rows}:
            name, _, number = value.decode().partition(":")
            checker.append(index, value, sender=name, sequence=int(number))
    for row in acknowledged:
        checker.acknowledge(row.partition, row.value, row.offset)
    for index, rows in (seen or {}).items():
        checker.read("consumer", index, 0, rows[-1][0] + 1 if rows else 0, rows)
    report = checker.check(logs, ends={index: rows[-1][0] + 1 for index, rows in log.items() if rows})
    print(report)
    return [str(anomaly) for anomaly in report.anomalies]


def clients_are_served(bootstrap: str, topic: str) -> Callable[[], bool]:
    """A condition for wait_until: a fresh connection is accepted, routed and answered."""

    def served() -> bool:
        try:
            with RawClient(bootstrap, timeout=5) as client:
                client.describe_topic(topic)
                return int(client.list_offset(topic, -1)["error_code"]) == 0
        except (OSError, Closed) as problem:
            raise AssertionError(f"{type(problem).__name__}: {problem}") from problem

    return served
