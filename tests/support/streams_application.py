"""Kafka Streams in several JVMs (`WindowedJoin.java`), its input, and its result by a batch computation."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import TracebackType

from confluent_kafka import Producer

from tests.support.adapters.transactional import read_messages
from tests.support.java_programs import JavaProgram, program_command
from tests.support.kafka_jars import streams_classpath
from tests.support.raw import RawClient
from tests.support.wait import PATIENCE_SECONDS, wait_until

ORDERS, PAYMENTS, COUNTS = "orders", "payments", "counts"
REGIONS = [f"region-{number}" for number in range(6)]
JOIN_MS, MINUTE_MS = 5_000, 60_000
# Of today: retention would delete older records, from the topics of the application itself, too.
BEGIN_MS = int(time.time() * 1000) // MINUTE_MS * MINUTE_MS
# Members are missed in seconds, in either protocol. Streams groups have these at the broker.
STREAMS_SETTINGS = {
    "group.streams.min.session.timeout.ms": 6_000,
    "group.streams.session.timeout.ms": 6_000,
    "group.streams.min.heartbeat.interval.ms": 500,
    "group.streams.heartbeat.interval.ms": 500,
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.assignment.interval.ms": 0,
}
# Idempotent: the test is not about records that are lost or doubled on their way in.
PRODUCER = {"enable.idempotence": True, "linger.ms": 5, "reconnect.backoff.max.ms": 200, "log_level": 0}


class StreamsInstance(JavaProgram):
    """One JVM, its state, and the tasks that it runs."""

    def __init__(self, command: list[str], errors: Path) -> None:
        self.state = ""
        self.tasks: frozenset[str] = frozenset()
        super().__init__(command, errors, self._on_line)

    def _on_line(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name == "state":
            self.state = rest
        elif name == "tasks":
            self.tasks = frozenset(rest.split())


class StreamsApplication:
    """Its instances. Each slot has a directory, so that an instance continues with the state of the one before."""

    def __init__(
        self, bootstrap: str, directory: Path, protocol: str, *, topology: str = "join", threads: int = 1
    ) -> None:
        self.name = f"{topology}-{protocol}"
        self.instances: dict[int, StreamsInstance] = {}
        self._arguments = (bootstrap, self.name, protocol, topology)
        self._directory = directory
        self._threads = threads

    def __enter__(self) -> StreamsApplication:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        for slot, instance in self.instances.items():
            if problem is not None:
                problem.add_note(f"instance {slot} is {instance.state} and wrote:\n{instance.said()}")
            instance.kill()

    def start(self, slot: int, **settings: str) -> StreamsInstance:
        """Start an instance. Names of settings have _ in place of each dot."""
        state = str(self._directory / f"state-{slot}")
        more = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
        command = program_command(
            "WindowedJoin", streams_classpath(), *self._arguments, state, str(self._threads), *more
        )
        self.instances[slot] = StreamsInstance(command, self._directory / f"streams-{slot}.log")
        return self.instances[slot]

    def kill(self, slot: int) -> None:
        """Send SIGKILL to an instance."""
        self.instances.pop(slot).kill()

    def stop(self, slot: int) -> None:
        """End an instance, which must end by itself."""
        instance = self.instances.pop(slot)
        assert instance.close() == 0, f"instance {slot}: {instance.said()}"

    def close(self) -> None:
        """End all instances. Each must end by itself."""
        for slot, instance in self.instances.items():
            assert instance.close() == 0, f"instance {slot}: {instance.said()}"

    def wait_settled(self, tasks: int, *, among: list[int] | None = None) -> None:
        """Wait until every instance has tasks, each task runs once, and there are as many as `tasks`."""
        chosen = [instance for slot, instance in self.instances.items() if among is None or slot in among]

        def settled() -> bool:
            shares = [instance.tasks for instance in chosen]
            shown = [(instance.state, sorted(instance.tasks)) for instance in chosen]
            assert all(instance.state == "RUNNING" for instance in chosen), shown
            assert all(shares), shown
            assert sum(map(len, shares)) == len(frozenset().union(*shares)) == tasks, shown
            return True

        wait_until(settled, seconds=60, what=f"{tasks} tasks run")


class PaidOrders(threading.Thread):
    """Orders and their payments until `stop`. Some are never paid, and some too late for the join.

    With `orders` that many are sent at once, instead of 300 a second.
    """

    def __init__(self, bootstrap: str, seed: int, *, orders: int = 0) -> None:
        super().__init__(name="orders", daemon=True)
        self._source = random.Random(seed)
        self._stopping = threading.Event()
        self._orders = orders
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", **PRODUCER}
        )
        self._sent: list[tuple[str, int, int | None]] = []

    def run(self) -> None:
        unpaid: list[tuple[str, int]] = []
        number = 0
        while number < self._orders:
            number = self._order(number, unpaid)
        while not self._orders and not self._stopping.wait(0.01):
            for _ in range(3):
                number = self._order(number, unpaid)
            self._producer.poll(0)
        for name, at in unpaid:
            self._producer.produce(PAYMENTS, key=name, value="1", timestamp=at)

    def _order(self, number: int, unpaid: list[tuple[str, int]]) -> int:
        """Send an order, and payments of earlier ones in another order."""
        source, name = self._source, f"order-{number}"
        region, at = source.choice(REGIONS), BEGIN_MS + number * 37
        paid = at + source.randint(-JOIN_MS, JOIN_MS * 3 // 2) if source.random() < 0.9 else None
        self._producer.produce(ORDERS, key=name, value=region, timestamp=at)
        self._sent.append((region, at, paid))
        if paid is not None:
            unpaid.append((name, paid))
        while len(unpaid) > 5:
            key, when = unpaid.pop(source.randrange(len(unpaid)))
            self._producer.produce(PAYMENTS, key=key, value="1", timestamp=when)
        return number + 1

    def stop(self) -> None:
        """Send no more orders, and wait until all are in their topics."""
        self._stopping.set()
        self.join()
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def counts(self) -> dict[str, list[int]]:
        """Return each count of every region and minute, in order: the result of a batch computation."""
        totals: dict[str, int] = defaultdict(int)
        for region, ordered, paid in self._sent:
            if paid is not None and abs(paid - ordered) <= JOIN_MS:
                # A pair has the later of its two times.
                totals[f"{region}@{max(paid, ordered) // MINUTE_MS}"] += 1
        return {key: list(range(1, total + 1)) for key, total in totals.items()}


def wait_for_work(bootstrap: str, partitions: int, records: int = 100) -> None:
    """Wait until new results are written, committed or not."""

    def end() -> int:
        with RawClient(bootstrap) as client:
            return sum(client.end_offset(COUNTS, partition=index) for index in range(partitions))

    before = end()
    wait_until(lambda: end() > before + records, seconds=90, what=f"{records} more results")


def committed_counts(bootstrap: str, partitions: int) -> dict[str, list[int]]:
    """Return the committed counts of each key, in the order of its partition."""
    found: dict[str, list[int]] = defaultdict(list)
    for message in read_messages(bootstrap, COUNTS, partitions, isolation="read_committed"):
        found[message.key().decode()].append(int(message.value()))
    return dict(found)
