"""Restarts of a broker, and dead or paused roles, with unmodified clients of two libraries that live through them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("aiokafka")

from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer

from kproc.embedded import Broker, BrokerFailed
from tests.support.broker import forked_broker
from tests.support.faulted_clients import LIBRARIES
from tests.support.status import processes
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [pytest.mark.clients, pytest.mark.own_broker, pytest.mark.transports("process")]

BACKOFF_MS = 20


class Senders:
    """A producer of each library that lives as long as the test, and the values that were sent."""

    def __init__(self, broker: Broker, stack: ExitStack) -> None:
        self.sent: list[bytes] = []
        backoff = {"reconnect.backoff.ms": BACKOFF_MS, "retry.backoff.ms": BACKOFF_MS, "log_level": 0}
        self._confluent = Producer(broker.client_config() | {"linger.ms": 0} | backoff)
        self._runner = stack.enter_context(asyncio.Runner())
        stack.callback(self._close)
        self._aiokafka = self._runner.run(self._start(broker))

    def _close(self) -> None:
        # A producer of confluent-kafka has no close(): it ends with its last reference.
        del self._confluent
        self._runner.run(self._aiokafka.stop())

    async def _start(self, broker: Broker) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(**broker.client_config("aiokafka"), retry_backoff_ms=BACKOFF_MS)
        await producer.start()
        return producer

    def send(self) -> None:
        """Send one record by each library."""
        self.sent += [b"%d" % (len(self.sent) + number) for number in range(2)]
        self._confluent.produce("t", self.sent[-2])
        assert self._confluent.flush(PATIENCE_SECONDS) == 0
        sending = self._aiokafka.send_and_wait("t", self.sent[-1])
        self._runner.run(asyncio.wait_for(sending, PATIENCE_SECONDS))


@pytest.fixture
def broker(fork_server: None) -> Iterator[Broker]:
    with forked_broker()({"num.io.threads": 2, "num.network.threads": 1}) as running:
        running.create_topic("t")
        yield running


@pytest.fixture
def senders(broker: Broker) -> Iterator[Senders]:
    with ExitStack() as stack:
        yield Senders(broker, stack)


def test_clients_continue_after_restarts_with_temporary_data(broker: Broker, senders: Senders) -> None:
    """Reach the same records with the same producers after an orderly stop and after a kill. Fault rules end."""
    senders.send()
    before = (broker.bootstrap, broker.data)
    for kill in (False, True):
        pids = set(processes(broker.bootstrap).values())
        rule = broker.faults.delay("Produce", ms=1, topic="t")
        senders.send()
        broker.restart(kill=kill)
        assert rule.hits == 2
        rule.remove()
        assert broker.faults.list() == []
        assert (broker.bootstrap, broker.data) == before
        assert not pids & set(processes(broker.bootstrap).values())
        senders.send()
    assert LIBRARIES["confluent"].consume(broker.bootstrap, "t", len(senders.sent)) == senders.sent


def test_clients_continue_after_killed_and_paused_roles(broker: Broker, senders: Senders) -> None:
    for role in ("handler", "processor", "acceptor", "controller", "cleaner"):
        pid = processes(broker.bootstrap)[role, 0]
        broker.kill_role(role)
        assert processes(broker.bootstrap)[role, 0] != pid
        senders.send()
    pids = processes(broker.bootstrap)
    with pytest.raises(KeyError) as caught, broker.pause_role("handler", 1):
        raise KeyError(psutil.Process(pids["handler", 1]).status())
    assert caught.value.args == (psutil.STATUS_STOPPED,)
    assert processes(broker.bootstrap) == pids
    senders.send()
    assert LIBRARIES["confluent"].consume(broker.bootstrap, "t", len(senders.sent)) == senders.sent
    with pytest.raises(ValueError, match=r"no role 'handler' with index 2; it has: .*handler 1"):
        broker.kill_role("handler", 2)
    with pytest.raises(ValueError, match="no role 'supervisor'"):
        broker.kill_role("supervisor")


def test_roles_in_threads_are_neither_killed_nor_paused(fork_server: None) -> None:
    with forked_broker()(transport="thread") as broker:
        with pytest.raises(BrokerFailed, match=r"no processes \(transport 'thread'\)"):
            broker.kill_role("handler")
        with (
            pytest.raises(BrokerFailed, match="start it with transport='process'"),
            broker.pause_role("handler"),
        ):
            pytest.fail("the block ran")
