"""Calls in threads whose caller is cancelled: the result that nobody receives is undone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kproc.client.async_calls import run_or_undo
from kproc.client.async_faults import AsyncRule
from tests.support.wait import PATIENCE_SECONDS


class CancelledCall:
    """A call that returns when its caller was cancelled. by_end: the end of the event loop cancels the caller."""

    def __init__(self, *, by_end: bool) -> None:
        self._by_end = by_end
        self._entered, self._may_return = threading.Event(), threading.Event()
        self.undone: list[Any] = []

    def __call__(self) -> Any:
        self._entered.set()
        assert self._may_return.wait(PATIENCE_SECONDS)
        return self

    def release(self) -> None:
        self.undone.append(self)

    def run(self, start: Callable[[], Awaitable[Any]]) -> None:
        async def return_when_cancelled() -> None:
            try:
                await start()
            finally:
                self._may_return.set()

        async def check() -> None:
            calling = asyncio.ensure_future(return_when_cancelled())
            await asyncio.to_thread(self._entered.wait, PATIENCE_SECONDS)
            if not self._by_end:
                calling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await calling

        asyncio.run(check())  # It cancels the tasks at its end, and waits for the threads.


def test_result_of_a_cancelled_call_is_undone() -> None:
    for by_end in (False, True):
        call = CancelledCall(by_end=by_end)
        call.run(lambda: run_or_undo(call, call.undone.append))  # noqa: B023 - used at once
        assert call.undone == [call], by_end


def test_rule_whose_caller_is_cancelled_is_released() -> None:
    for by_end in (False, True):
        call = CancelledCall(by_end=by_end)
        call.run(AsyncRule(call)._added)
        assert call.undone == [call], by_end


def test_rule_is_added_once_by_await_and_async_with() -> None:
    added: list[Any] = []

    class AddedRule:
        def __init__(self) -> None:
            added.append(self)

        def __exit__(self, *_: object) -> None: ...

    async def check() -> None:
        rule = await AsyncRule(AddedRule)  # type: ignore[arg-type]
        async with rule as entered:
            assert entered.rule is added[0]

    asyncio.run(check())
    assert len(added) == 1
