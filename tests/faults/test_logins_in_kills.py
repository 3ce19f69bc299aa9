"""kill -9 and live scaling while clients log in and prolong their sessions: no record is lost, no login hangs."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from kproc.client import ConnectionLost
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import Closed, RawConnection
from tests.support.secured import SecuredBroker, log_in, secured
from tests.support.status import Role, connect, processes, wait_replaced
from tests.support.wait import PATIENCE_SECONDS, stretched, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

SETTINGS = {
    "num.network.threads": 2,
    "num.io.threads": 2,
    "group.initial.rebalance.delay.ms": 0,
}
TOPIC = "t"


class Crowd:
    """Clients that come, log in, ask something and leave, one after the other."""

    def __init__(self, broker: SecuredBroker) -> None:
        self._broker = broker
        self._is_over = threading.Event()
        self.served = 0
        self.stuck: list[str] = []

    def run(self) -> None:
        # With a pause: without one the clients' own logins take most of the CPU.
        while not self._is_over.wait(0.02):
            try:
                with RawConnection(self._broker.bootstrap) as connection:
                    assert log_in(connection)["error_code"] == 0
                    connection.call(ApiKey.METADATA, 1, {"topics": []})
                    self.served += 1
            except (Closed, ConnectionError):
                continue
            except Exception as problem:  # noqa: BLE001 - for the test
                self.stuck.append(repr(problem))
                return

    def end(self) -> None:
        self._is_over.set()


@contextmanager
def crowd(broker: SecuredBroker) -> Iterator[Crowd]:
    made = Crowd(broker)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield made
    finally:
        made.end()
        thread.join()
    assert made.stuck == []


def send(producer: Producer, acknowledged: Counter[int], numbers: range) -> None:
    """Send these, and wait until each is stored."""

    def noted(number: int) -> Any:
        def on_delivery(error: object, _message: object) -> None:
            assert error is None, error
            acknowledged[number] += 1

        return on_delivery

    for number in numbers:
        producer.produce(TOPIC, b"%d" % number, partition=number % 4, on_delivery=noted(number))
        producer.poll(0.005)
    assert producer.flush(PATIENCE_SECONDS) == 0


def stored(broker: SecuredBroker, count: int) -> Counter[int]:
    settings = broker.confluent("SCRAM-SHA-512", **{"group.id": "g", "auto.offset.reset": "earliest"})
    consumer = Consumer(settings)
    consumer.subscribe([TOPIC])
    found: Counter[int] = Counter()

    def is_all() -> bool:
        for message in consumer.consume(500, timeout=0.5):
            assert message.error() is None
            found[int(message.value() or b"")] += 1
        return found.total() >= count

    try:
        wait_until(is_all, seconds=60, what="every record is read")
    finally:
        consumer.close()
    return found


@contextmanager
def started(tmp_path: Path) -> Iterator[tuple[SecuredBroker, Producer, Crowd]]:
    """A broker, a producer that prolongs its session again and again, and clients that come and go."""
    settings = {**SETTINGS, "connections.max.reauth.ms": stretched(1_500)}
    with secured(tmp_path / "data", settings=settings) as broker:
        with broker.logged_in() as connection:
            topic = {
                "name": TOPIC,
                "num_partitions": 4,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
            answer = connection.call(
                ApiKey.CREATE_TOPICS, 5, {"topics": [topic], "timeout": 10_000, "validate_only": False}
            )
            assert answer["topics"][0]["error_code"] == ErrorCode.NONE
        producer = Producer(broker.confluent("SCRAM-SHA-256", **{"enable.idempotence": True}))
        with crowd(broker) as clients:
            yield broker, producer, clients


def go_on(clients: Crowd) -> None:
    """Wait until somebody has logged in since now."""
    before = clients.served
    wait_until(lambda: clients.served > before or clients.stuck, seconds=30, what="somebody logs in")


@pytest.mark.parametrize(
    "role", [("handler", 0), ("handler", 1), ("processor", 0), ("controller", 0)], ids=str
)
def test_a_role_is_killed_while_clients_log_in(tmp_path: Path, role: Role) -> None:
    with started(tmp_path) as (broker, producer, clients):
        acknowledged: Counter[int] = Counter()
        send(producer, acknowledged, range(200))
        pid = processes(broker.bootstrap, timeout_ms=10_000, security=broker.security)[role]
        os.kill(pid, signal.SIGKILL)
        send(producer, acknowledged, range(200, 400))
        wait_replaced(broker.bootstrap, role, pid, seconds=30, security=broker.security)
        go_on(clients)
        send(producer, acknowledged, range(400, 600))
        assert stored(broker, 600) == acknowledged == Counter(range(600))


def test_scaling_while_clients_authenticate_and_reauthenticate(tmp_path: Path) -> None:
    with started(tmp_path) as (broker, producer, clients):
        acknowledged: Counter[int] = Counter()
        sent = 0
        for processors, handlers in ((1, 2), (3, 1), (2, 3)):
            scale(broker, processors, handlers)
            send(producer, acknowledged, range(sent, sent + 200))
            sent += 200
            go_on(clients)
        assert stored(broker, sent) == acknowledged == Counter(range(sent))
        wait_until(lambda: broker.counted("sessions_prolonged") > 0, what="the producer prolongs its session")


def scale(broker: SecuredBroker, processors: int, handlers: int) -> None:
    """As `kproc scale` does it."""
    with connect(broker.bootstrap, timeout_ms=30_000, security=broker.security) as client:
        client.operate("scale", processors=processors, handlers=handlers)

    def is_scaled() -> bool:
        try:
            there = processes(broker.bootstrap, timeout_ms=10_000, security=broker.security)
        except ConnectionLost:
            return False  # It reached a Processor that leaves, and had not logged in yet: such a connection ends.
        kinds = Counter(kind for kind, _ in there)
        return kinds["processor"] == processors and kinds["handler"] == handlers

    wait_until(is_scaled, seconds=60, what=f"{processors} Processors and {handlers} Handlers")
