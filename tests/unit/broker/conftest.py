"""Fixtures of the rooms of a broker: Handlers to test, and no log record that outlives its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.logging import caplog_records_key

if TYPE_CHECKING:
    from tests.support.handler_rig import HandlerRig


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., HandlerRig]]:
    """`start(handlers=3, settings={...})`: Handlers over one data directory, closed when the test ends."""
    # Imported here, because a run of a room without Handlers would otherwise import all APIs.
    from tests.support.handler_rig import HandlerRig

    with ExitStack() as stack:

        def make(**parts: Any) -> HandlerRig:
            return stack.enter_context(HandlerRig(tmp_path, **parts))

        yield make


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Discard the test's log records, which hold exceptions, frames and so descriptors that the leak guard sees.

    A hook takes less CPU than a fixture with `caplog` in each of 6,000 tests.
    """
    item.stash[caplog_records_key].get("call", []).clear()
