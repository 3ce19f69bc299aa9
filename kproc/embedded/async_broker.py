"""AsyncBroker: the methods of `kproc.Broker` that wait, for coroutines, as `kproc.Broker.aio` offers them.

    async with kproc.Broker() as broker:
        snapshot = await broker.aio.snapshot()
        await broker.aio.time.advance(hours=1)
        await broker.aio.restore(snapshot)

Each call runs the method with the same name in a thread, so that the event loop is not blocked. Arguments, results and
errors are those of the method. A thread cannot be interrupted: if the caller is cancelled, the method still runs to its
end. A snapshot whose caller was cancelled is deleted, because nobody receives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from kproc.client.async_calls import run_or_undo

if TYPE_CHECKING:
    from kproc.client.broker_time import BrokerTime
    from kproc.embedded.broker import Broker
    from kproc.embedded.group_view import BrokerGroup
    from kproc.embedded.requests import RequestRecorder
    from kproc.embedded.state import BrokerSnapshot
    from kproc.embedded.topic_records import BrokerTopic

P = ParamSpec("P")
Result = TypeVar("Result")
Block = contextlib.AbstractAsyncContextManager


def _in_thread(method: Callable[P, Result]) -> Callable[P, Coroutine[Any, Any, Result]]:
    """Return a coroutine function that runs the method in a thread."""

    @functools.wraps(method)
    async def run(*arguments: P.args, **named: P.kwargs) -> Result:
        return await asyncio.to_thread(method, *arguments, **named)

    return run


@contextlib.asynccontextmanager
async def _in_block(
    context: contextlib.AbstractContextManager[object], value: Result
) -> AsyncIterator[Result]:
    """Enter and leave a context in threads, and yield `value`.

    If the caller is cancelled while a thread enters the context, the context is left as soon as it has been entered.
    """
    await run_or_undo(context.__enter__, lambda _: context.__exit__(None, None, None))
    try:
        yield value
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


@contextlib.contextmanager
def _frozen(time: BrokerTime) -> Iterator[None]:
    with time.freeze():
        yield


class AsyncTime:
    """The broker's time, for coroutines. `BrokerTime` describes the methods; its properties are methods here."""

    def __init__(self, time: BrokerTime) -> None:
        self._time = time
        self.advance = _in_thread(time.advance)
        self.freeze = _in_thread(time.freeze)
        self.unfreeze = _in_thread(time.unfreeze)
        self.describe = _in_thread(time.describe)
        self.now_ms = _in_thread(lambda: time.now_ms)
        self.now = _in_thread(lambda: time.now)
        self.is_frozen = _in_thread(lambda: time.is_frozen)

    def frozen(self) -> Block[AsyncTime]:
        """Let time stand still during an `async with` block."""
        return _in_block(_frozen(self._time), self)


class AsyncRequests:
    """The recorded requests of clients, for coroutines. `RequestRecorder` describes the methods."""

    def __init__(self, requests: RequestRecorder) -> None:
        self._requests = requests
        self.start = _in_thread(requests.start)
        self.stop = _in_thread(requests.stop)
        self.list = _in_thread(requests.list)
        self.wait_for = _in_thread(requests.wait_for)

    def recording(self, *, limit: int = 10_000) -> Block[AsyncRequests]:
        """Record the requests of clients during an `async with` block."""
        return _in_block(self._requests.recording(limit=limit), self)


class AsyncTopic:
    """A topic, for coroutines. `BrokerTopic` describes the method."""

    def __init__(self, topic: BrokerTopic) -> None:
        self.records = _in_thread(topic.records)


class AsyncGroup:
    """A group, for coroutines. `BrokerGroup` describes the methods; its properties are methods here."""

    def __init__(self, group: BrokerGroup) -> None:
        self.wait_for_state = _in_thread(group.wait_for_state)
        self.state = _in_thread(lambda: group.state)
        self.type = _in_thread(lambda: group.type)
        self.members = _in_thread(lambda: group.members)
        self.offsets = _in_thread(lambda: group.offsets)
        self.lag = _in_thread(lambda: group.lag)


class AsyncBroker:
    """The methods of a `kproc.Broker` for coroutines, as `Broker.aio`. `kproc.Broker` describes them.

    For faults use `Broker.async_faults`, because this class has none.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.start = _in_thread(broker.start)
        self.stop = _in_thread(broker.stop)
        self.restart = _in_thread(broker.restart)
        self.lose_power = _in_thread(broker.lose_power)
        self.kill_role = _in_thread(broker.kill_role)
        self.restore = _in_thread(broker.restore)
        self.reset = _in_thread(broker.reset)
        self.wait_until_idle = _in_thread(broker.wait_until_idle)
        self.create_topic = _in_thread(broker.create_topic)
        self.delete_topic = _in_thread(broker.delete_topic)
        self.configure_group = _in_thread(broker.configure_group)

    def pause_role(
        self, role: str, index: int = 0, *, wait: bool = True, timeout_s: float = 30.0
    ) -> Block[None]:
        """Pause a role during an `async with` block, whose end always resumes it."""
        return _in_block(self._broker.pause_role(role, index, wait=wait, timeout_s=timeout_s), None)

    async def snapshot(self) -> BrokerSnapshot:
        """Copy the broker's state. The copy is deleted if the caller is cancelled."""
        # If the caller is cancelled, leave the snapshot's `with` block, which deletes the snapshot and ignores a
        # stopped broker.
        return await run_or_undo(
            lambda: self._broker.snapshot(), lambda snapshot: snapshot.__exit__(None, None, None)
        )

    async def delete_snapshot(self, snapshot: BrokerSnapshot) -> None:
        """Delete a snapshot, as `BrokerSnapshot.delete` does."""
        await asyncio.to_thread(snapshot.delete)

    @property
    def time(self) -> AsyncTime:
        """The broker's time."""
        return AsyncTime(self._broker.time)

    @property
    def requests(self) -> AsyncRequests:
        """The recorded requests."""
        return AsyncRequests(self._broker.requests)

    def topic(self, name: str) -> AsyncTopic:
        """Return the AsyncTopic of a topic, whose `records()` reads its log."""
        return AsyncTopic(self._broker.topic(name))

    def group(self, name: str) -> AsyncGroup:
        """Return the AsyncGroup of a group, which need not exist yet."""
        return AsyncGroup(self._broker.group(name))
