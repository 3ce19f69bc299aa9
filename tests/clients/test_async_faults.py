"""Faults in coroutines: added and removed without blocking the event loop, with aiokafka as the client."""

from __future__ import annotations

import asyncio
import threading

import pytest

pytest.importorskip("aiokafka")

from aiokafka import AIOKafkaProducer

from kproc.client import Client
from kproc.client.async_faults import AsyncFaults
from kproc.client.faults import Faults
from tests.support.broker import forked_broker

pytestmark = [pytest.mark.clients, pytest.mark.long, pytest.mark.transports("process")]


def test_faults_of_coroutines_do_not_block_the_event_loop(fork_server: None) -> None:
    threads: set[int] = set()

    async def check() -> None:
        async with forked_broker()() as broker:
            await asyncio.to_thread(broker.create_topic, "orders")

            def connect() -> Client:
                threads.add(threading.get_ident())
                return Client.connect(broker.host, broker.port)

            faults = AsyncFaults(Faults(connect))
            async with AIOKafkaProducer(**broker.client_config("aiokafka")) as producer:
                async with faults.fail(
                    "Produce", topic="orders", error="NOT_LEADER_OR_FOLLOWER", times=2
                ) as rule:
                    await producer.send_and_wait("orders", b"a")
                    await rule.wait_for_hits(2)
                    assert len(await faults.list()) == 1
                assert await rule.hits() == 2
                rule = await faults.close("Produce", topic="orders", times=1)
                await producer.send_and_wait("orders", b"b")
                await rule.remove()
                assert (await rule.counts()).hits == 1
            cancelled = asyncio.ensure_future(broker.async_faults.close("Fetch")._added())
            asyncio.get_running_loop().call_soon(cancelled.cancel)
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            await broker.async_faults.clear()
            with pytest.raises(RuntimeError, match="was not added: use it by `async with`"):
                await broker.async_faults.close("Fetch").hits()

    asyncio.run(check())
    assert threads
    assert threading.get_ident() not in threads
