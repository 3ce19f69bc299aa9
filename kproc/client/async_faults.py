"""AsyncFaults: the faults of a broker for coroutines, as `kproc.Broker.async_faults` offers them.

    async with broker.async_faults.fail("Produce", error="NOT_LEADER_OR_FOLLOWER", times=2) as rule:
        ...
    assert await rule.hits() == 2

Each call runs the method of `Faults` with the same name in a thread, so that the event loop is not blocked.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self

from kproc.client.async_calls import run_or_undo
from kproc.client.fault_rule import Rule, RuleCounts
from kproc.client.faults import Faults, Rows

P = ParamSpec("P")


class AsyncRule:
    """One fault rule for coroutines. `async with` or `await` adds it to the broker."""

    def __init__(self, add: Callable[[], Rule]) -> None:
        self._add = add
        self._rule: Rule | None = None

    @property
    def rule(self) -> Rule:
        """The rule as `Faults` returned it, with blocking methods. Raises RuntimeError before the rule is added."""
        if self._rule is None:
            raise RuntimeError("the fault rule was not added: use it by `async with` or `await`")
        return self._rule

    def __await__(self) -> Generator[Any, None, Self]:
        return self._added().__await__()

    async def _added(self) -> Self:
        # `await` has possibly added the rule before `async with`.
        if self._rule is None:
            self._rule = await run_or_undo(self._add, lambda rule: rule.release())
        return self

    async def __aenter__(self) -> Self:
        return await self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.rule.__exit__, kind, error, stack)

    async def counts(self) -> RuleCounts:
        """Return the rule's present counts of matches and hits, or the last ones if the rule was removed."""
        return await asyncio.to_thread(lambda: self.rule.counts)

    async def hits(self) -> int:
        """Return the number of requests (for a fault of the disk: of writes or syncs) on which the rule has acted."""
        return (await self.counts()).hits

    async def wait_for_hits(self, hits: int = 1, *, timeout_s: float = 10.0) -> None:
        """Return when the rule has acted on this many requests. Raises TimeoutError."""
        await asyncio.to_thread(self.rule.wait_for_hits, hits, timeout_s=timeout_s)

    async def remove(self) -> None:
        """Remove the rule. A second call does nothing."""
        await asyncio.to_thread(self.rule.remove)


def _in_thread(
    method: Callable[Concatenate[Faults, P], Rule],
) -> Callable[Concatenate[AsyncFaults, P], AsyncRule]:
    def make_rule(self: AsyncFaults, /, *arguments: P.args, **conditions: P.kwargs) -> AsyncRule:
        return AsyncRule(functools.partial(method, self.faults, *arguments, **conditions))

    make_rule.__doc__ = method.__doc__
    return make_rule


class AsyncFaults:
    """The fault rules of one broker. `Faults` describes the methods and their arguments."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    fail = _in_thread(Faults.fail)
    delay = _in_thread(Faults.delay)
    close = _in_thread(Faults.close)
    drop_request = _in_thread(Faults.drop_request)
    drop_answer = _in_thread(Faults.drop_answer)
    delay_answer = _in_thread(Faults.delay_answer)
    cut_answer = _in_thread(Faults.cut_answer)
    throttle = _in_thread(Faults.throttle)
    advertise = _in_thread(Faults.advertise)
    fill_disk = _in_thread(Faults.fill_disk)
    fail_write = _in_thread(Faults.fail_write)
    fail_sync = _in_thread(Faults.fail_sync)

    async def list(self) -> Rows:
        """Return every rule of the broker: `id`, `matches`, `hits` and `rule`."""
        return await asyncio.to_thread(self.faults.list)

    async def clear(self) -> None:
        """Remove all rules of the broker, also those of other processes."""
        await asyncio.to_thread(self.faults.clear)
