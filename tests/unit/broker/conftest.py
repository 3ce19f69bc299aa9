"""Fixtures of the rooms of a broker: Handlers to test, and no log record that outlives its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

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


@pytest.fixture(autouse=True)
def forget_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Log records hold exceptions, those hold frames, and those hold descriptors that the leak guard sees."""
    yield
    caplog.get_records("call").clear()
