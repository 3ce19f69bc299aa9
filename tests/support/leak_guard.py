"""The guard of the tests: what a test has started is gone at its end, and no socket is lost without being closed.

A lost socket is one that no code can reach any more, because it belongs to objects that refer to each other. Only the
garbage collector finds it, and Python then warns in whichever test happens to run.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tests.support.proc import Holdings, descriptor_kinds
from tests.support.wait import wait_until

# Client libraries end their threads and sockets a little after `close()` returns.
_SETTLE_SECONDS: Final = 5.0


def wait_until_released(before: Holdings) -> None:
    """Wait until this process and the host hold nothing for the test that they did not hold before it."""

    def nothing_left() -> bool:
        leaked = Holdings.now().leaked_since(before)
        if leaked:
            # A socket in a cycle is closed only by the collector; not run first, because it takes 50 ms.
            _close_forgotten_transports()
            gc.collect()
        assert not leaked, leaked
        return True

    wait_until(nothing_left, seconds=_SETTLE_SECONDS, what="everything the test started is gone")


@contextmanager
def lost_sockets_collected() -> Iterator[None]:
    """Collect garbage at the end of the block if this process then has more sockets than before.

    The warnings about lost sockets thus name the test that has lost them, also where the block may leave something.
    """
    before = _socket_count()
    yield
    if _socket_count() > before:
        _close_forgotten_transports()
        gc.collect()


def _close_forgotten_transports() -> None:
    """Close the sockets that kafka-python 3.0 forgets, so that no test of ours is blamed.

    `KafkaTCPTransport.close` lets a task send what is left and close the socket then. `NetworkSelector.close` cancels
    that task if the client is closed meanwhile.
    """
    transports = sys.modules.get("kafka.net.transport")
    if transports is None:
        return
    for each in gc.get_objects():
        # Not isinstance(), which asks proxies of other libraries for their __class__.
        is_transport = issubclass(type(each), transports.KafkaTCPTransport)
        if is_transport and each._closed and each._sock is not None:
            each._sock.close()


def _socket_count() -> int:
    return descriptor_kinds("self")["socket"]


class LeakGuard:
    """A plugin that fails each test after which a child, a descriptor, shared memory or a temporary directory is left.

    The guard's fixture does not ask for `request`, because pytest defines that fixture anew for each test that needs
    it, by inspecting a signature. The hooks keep the running test instead.
    """

    def __init__(self) -> None:
        self._item: pytest.Item | None = None
        self._has_failed = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Keep the test, before its fixtures are set up."""
        self._item, self._has_failed = item, False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """Keep whether the test failed, before its fixtures are torn down."""
        report = yield
        if call.when == "call":
            self._has_failed = report.failed
        return report

    @pytest.fixture(autouse=True)
    def leak_guard(self) -> Iterator[None]:
        """Compare what is held before and after the test.

        Session fixtures are set up before this one, so the shared brokers count as having been there.
        """
        assert self._item is not None
        if self._item.get_closest_marker("no_leak_guard"):
            with lost_sockets_collected():
                yield
            return
        before = Holdings.now()
        yield
        # The traceback that pytest keeps holds the test's objects: one failure is enough.
        if not self._has_failed:
            wait_until_released(before)
