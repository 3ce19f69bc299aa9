"""Blocking calls in threads, for coroutines. A thread cannot be interrupted, so a cancelled call may have to be undone.

The threads are those of the event loop's default executor, for which `asyncio.run` waits at its end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def run_or_undo(method: Callable[[], Result], undo: Callable[[Result], object]) -> Result:
    """Run a method in a thread and return its result.

    undo: called with the result, in a thread, if the caller was cancelled before it received the result.
    """
    lock = threading.Lock()
    is_abandoned = False
    results: list[Result] = []

    def run() -> Result:
        result = method()
        with lock:
            results.append(result)
            is_ours = is_abandoned
        # The thread itself undoes the call, because the event loop can have ended with its tasks.
        if is_ours:
            undo(result)
        return result

    try:
        return await asyncio.to_thread(run)
    except asyncio.CancelledError:
        with lock:
            is_abandoned = True
            unreceived = list(results)
        for result in unreceived:
            asyncio.get_running_loop().run_in_executor(None, undo, result)
        raise
