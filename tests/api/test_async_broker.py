"""kproc.Broker.aio: the event loop goes on during each call, and a cancelled block is left."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kproc.client import Client
from kproc.embedded import Broker
from kproc.embedded.async_broker import AsyncBroker, _in_block
from kproc.embedded.state import BrokerSnapshot
from kproc.wire.header import ApiKey
from tests.support.broker import forked_broker
from tests.support.wait import PATIENCE_SECONDS

pytestmark = [pytest.mark.own_broker, pytest.mark.no_leak_guard]  # A restore replaces the broker's processes.


async def during(call: Awaitable[Any]) -> Any:
    """Return the result of a call. The event loop must run a callback between its start and its end."""
    turns: list[None] = []
    asyncio.get_running_loop().call_soon(turns.append, None)
    try:
        return await call
    finally:
        assert turns, f"the event loop stood still during {call!r}"


async def use_all(broker: AsyncBroker) -> None:
    await during(broker.create_topic("t"))
    await during(broker.configure_group("g", {"consumer.session.timeout.ms": 50_000}))
    snapshot = await during(broker.snapshot())
    assert await during(broker.topic("t").records()) == []
    async with broker.time.frozen() as time:
        assert await during(time.is_frozen())
        before_ms = await during(time.now_ms())
        await during(time.advance(hours=1))
        assert await during(time.now_ms()) == before_ms + 3_600_000
    assert not (await during(broker.time.describe()))["is_frozen"]
    async with broker.requests.recording() as requests:
        assert await during(requests.list()) == []
        with pytest.raises(AssertionError, match="0 of 1 awaited requests matched Produce"):
            await during(requests.wait_for("Produce", timeout_s=0))
        with pytest.raises(ValueError, match="unknown API 'produce'"):
            await during(requests.list("produce"))
    assert await during(broker.group("g").state()) == "Dead"
    with pytest.raises(RuntimeError, match="does not exist"):
        await during(broker.group("g").lag())
    async with broker.pause_role("cleaner"):
        await during(broker.group("g").state())
    await during(broker.kill_role("cleaner"))
    await during(broker.wait_until_idle(30))
    await during(broker.delete_topic("t"))
    await during(broker.restore(snapshot))
    assert await during(broker.topic("t").records()) == []
    await during(broker.delete_snapshot(snapshot))
    await during(broker.reset())
    with pytest.raises(RuntimeError, match=r"topic 't': .*UNKNOWN_TOPIC_OR_PARTITION"):
        await during(broker.topic("t").records())


def test_event_loop_goes_on_during_each_call(fork_server: None) -> None:
    async def check() -> None:
        broker = forked_broker()(transport="process")
        await during(broker.aio.start())
        try:
            await use_all(broker.aio)
        finally:
            await during(broker.aio.stop())

    asyncio.run(check())


@pytest.mark.long
def test_event_loop_goes_on_during_restarts() -> None:
    async def check() -> None:
        async with Broker(power_loss=True, transport="inline") as broker:
            pid = broker.pid
            await during(broker.aio.restart())
            await during(broker.aio.lose_power())
            assert broker.pid != pid

    asyncio.run(check())


def send_metadata_request(broker: Broker) -> None:
    with Client.connect(broker.host, broker.port, client_id="probe") as client:
        client.call_latest(ApiKey.METADATA, {"topics": [], "allow_auto_topic_creation": False})


@pytest.mark.long
def test_overlapping_restarts_and_restores_are_serialized() -> None:
    """A restart that its caller has given up goes on in its thread, beside the caller's next one."""

    async def check() -> None:
        async with Broker(transport="inline") as broker:
            aio = broker.aio
            await aio.create_topic("t")
            async with aio.requests.recording():
                await asyncio.gather(aio.restart(), aio.restart())
                assert "kproc-requests" in {thread.name for thread in threading.enumerate()}
                wait = aio.requests.wait_for("Metadata", client_id="probe", timeout_s=PATIENCE_SECONDS)
                waiting = asyncio.ensure_future(wait)
                await aio.restart()
                await asyncio.to_thread(send_metadata_request, broker)
                assert len(await waiting) == 1
            assert await aio.topic("t").records() == []
            await asyncio.gather(aio.reset(), aio.restart(), aio.reset())
            await aio.create_topic("t")

    asyncio.run(check())


def test_snapshot_that_is_cancelled_is_deleted(
    fork_server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller gives up before the broker has made the copy."""
    copying, may_copy = threading.Event(), threading.Event()
    made: list[BrokerSnapshot] = []

    async def check(broker: Broker) -> None:
        taking = asyncio.ensure_future(broker.aio.snapshot())
        await asyncio.to_thread(copying.wait, PATIENCE_SECONDS)
        taking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await taking
        may_copy.set()

    with forked_broker()(transport="inline", data=tmp_path) as broker:
        snapshot = broker.snapshot

        def copy() -> BrokerSnapshot:
            copying.set()
            may_copy.wait(PATIENCE_SECONDS)
            made.append(snapshot())
            return made[0]

        monkeypatch.setattr(broker, "snapshot", copy)
        asyncio.run(check(broker))  # It waits for the threads at its end.
        assert made
        assert broker.snapshots() == []
        assert not [path for path in tmp_path.rglob("*") if made[0].name in path.name]


def test_broker_whose_start_is_cancelled_is_stopped(
    fork_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`async with` was not entered, so nobody else stops it."""
    broker = forked_broker()(transport="inline")
    starting, may_start = threading.Event(), threading.Event()
    start = broker.start

    def start_late() -> Broker:
        starting.set()
        may_start.wait(PATIENCE_SECONDS)
        return start()

    async def check() -> None:
        entering = asyncio.ensure_future(broker.__aenter__())
        await asyncio.to_thread(starting.wait, PATIENCE_SECONDS)
        entering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await entering
        may_start.set()

    monkeypatch.setattr(broker, "start", start_late)
    asyncio.run(check())
    assert not broker.is_running


@pytest.mark.parametrize("is_late", [False, True])
def test_block_that_is_cancelled_at_its_start_is_left(*, is_late: bool) -> None:
    entering, may_enter, left = threading.Event(), threading.Event(), threading.Event()

    @contextlib.contextmanager
    def block() -> Iterator[None]:
        entering.set()
        may_enter.wait(PATIENCE_SECONDS)
        yield
        left.set()

    async def check() -> None:
        async def use() -> None:
            async with _in_block(block(), None):
                raise AssertionError("the block was cancelled")

        using = asyncio.ensure_future(use())
        await asyncio.to_thread(entering.wait, PATIENCE_SECONDS)
        if is_late:
            may_enter.set()
        using.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await using
        may_enter.set()

    with contextlib.suppress(AssertionError):
        asyncio.run(check())
    assert left.wait(PATIENCE_SECONDS)
