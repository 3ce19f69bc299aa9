"""A group that works: producers, members that commit what they have processed, and what must hold of both."""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.support.groups import offsets_of
from tests.support.raw import Closed, RawClient
from tests.support.wait import PATIENCE_SECONDS, wait_until

_READ_SECONDS = 10.0  # For a coordinator to be there again, and for the last records to be processed.

GROUP = "workers"


class GroupLoad:
    """Members on threads of this process. After finish(): `violations`, and how long each settling took."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        members: int,
        group: str = GROUP,
        pause_seconds: float = 0.01,
        protocol: str = "classic",
    ) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self._pause_seconds = pause_seconds
        self._protocol = protocol
        self._topic = topic
        self._partitions = partitions
        self._stop = threading.Event()
        self._is_enough = threading.Event()
        self._acknowledged: dict[int, int] = {}  # Partition -> the last offset that a producer was told of.
        self._lock = threading.Lock()
        self._processed: set[tuple[int, int]] = set()
        self._committed: dict[int, int] = {}
        self._shares: dict[int, int] = dict.fromkeys(range(members), 0)
        self.commits = 0
        self.violations: list[str] = []
        self.settle_seconds: list[float] = []
        self._threads = [threading.Thread(target=self._produce)]
        self._threads += [threading.Thread(target=self._work, args=(number,)) for number in range(members)]

    def __enter__(self) -> GroupLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_enough.set()
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def wait_settled(self, what: str, seconds: float) -> None:
        """Every member has its share, and commits go on."""
        before, began = self.commits, time.monotonic()

        def settled() -> bool:
            shares = sum(self._shares.values())
            return shares == self._partitions and self.commits > before + len(self._shares)

        wait_until(settled, seconds=seconds, what=f"{what}: a settled group; {self._shares}")
        self.settle_seconds.append(time.monotonic() - began)
        self.check_committed()

    def check_committed(self) -> None:
        """No committed offset goes back, and none stands before a record that nobody processed."""
        with self._lock:
            known = dict(self._committed)
        if not known:
            return

        def read() -> dict[tuple[str, int], int] | None:
            try:
                with RawClient(self._bootstrap) as client:
                    return offsets_of(client, self._group)
            except (AssertionError, Closed, OSError):
                return None  # No coordinator at this moment.

        found = wait_until(read, seconds=_READ_SECONDS, what="committed offsets")
        for partition, offset in known.items():
            shown = found.get((self._topic, partition), -1)
            if shown < offset:
                self.violations.append(f"partition {partition}: committed {offset}, now {shown}")

    def wait_processed(self) -> None:
        """Nothing more is produced, and the members have processed all that was acknowledged."""
        self._is_enough.set()
        self._threads[0].join(PATIENCE_SECONDS)

        def missing() -> list[tuple[int, int]]:
            with self._lock:
                return [
                    (partition, offset)
                    for partition, last in self._acknowledged.items()
                    for offset in range(last + 1)
                    if (partition, offset) not in self._processed
                ]

        try:
            wait_until(lambda: not missing(), seconds=_READ_SECONDS, what="the last records are processed")
        except AssertionError:
            self.violations.append(f"never processed: {missing()[:5]} of {len(missing())}")

    def finish(self) -> list[str]:
        """Check that nothing was skipped; the violations."""
        self.check_committed()
        with self._lock:
            for partition, offset in self._committed.items():
                missing = [each for each in range(offset) if (partition, each) not in self._processed]
                if missing:
                    self.violations.append(
                        f"partition {partition}: committed {offset}, never seen: {missing[:5]} of {len(missing)}"
                    )
        return self.violations

    def _produce(self) -> None:
        def on_delivery(error: Any, message: Any) -> None:
            if error is None:
                partition = message.partition()
                self._acknowledged[partition] = max(self._acknowledged.get(partition, -1), message.offset())

        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 5, "log_level": 0})
        number = 0
        while not self._is_enough.wait(self._pause_seconds):
            with contextlib.suppress(BufferError):
                producer.produce(
                    self._topic,
                    value=b"%d" % number,
                    partition=number % self._partitions,
                    on_delivery=on_delivery,
                )
            number += 1
            producer.poll(0)
        producer.flush(10)

    def _work(self, number: int) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap,
            "group.id": self._group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 1_000,  # What is looked at is the broker, not how long a client stays away.
            "log_level": 0,
        }
        if self._protocol == "classic":
            settings |= {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 200}
        else:
            settings["group.protocol"] = self._protocol
        consumer = Consumer(settings)
        lowest: dict[int, int] = {}  # Partition -> the lowest offset that may come next.
        try:
            consumer.subscribe([self._topic], on_assign=lambda _, parts: self._note_assigned(lowest, parts))
            while not self._stop.is_set():
                messages = self._poll_some(consumer, lowest)
                self._shares[number] = len(consumer.assignment())
                if messages:
                    self._process(consumer, messages)
        finally:
            consumer.close()

    def _note_assigned(self, lowest: dict[int, int], parts: list[TopicPartition]) -> None:
        with self._lock:
            for part in parts:
                lowest[part.partition] = self._committed.get(part.partition, 0)

    def _poll_some(self, consumer: Consumer, lowest: dict[int, int]) -> list[Any]:
        """Return up to 50 records. None comes twice in one assignment, nor if it was committed before that began."""
        messages: list[Any] = []
        while len(messages) < 50 and (message := consumer.poll(0 if messages else 0.1)) is not None:
            if message.error() is not None:
                continue
            partition, offset = message.partition(), message.offset()
            if offset < lowest.get(partition, 0):
                self.violations.append(f"partition {partition}: offset {offset} again, {lowest[partition]} was due")
            lowest[partition] = offset + 1
            messages.append(message)
        return messages

    def _process(self, consumer: Consumer, messages: list[Any]) -> None:
        done: dict[int, int] = {}
        with self._lock:
            for message in messages:
                self._processed.add((message.partition(), message.offset()))
                done[message.partition()] = message.offset() + 1
        offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in done.items()]
        try:
            answers = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            return  # Rebalancing, or the coordinator has died: the records come again.
        with self._lock:
            for part in answers or []:
                if part.error is None:
                    self._committed[part.partition] = max(self._committed.get(part.partition, 0), part.offset)
            self.commits += 1
