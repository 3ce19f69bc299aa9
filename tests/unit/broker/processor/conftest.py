"""Processors to test, over each kind of link."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.links import LINK_PARAMS
from tests.support.processor_rig import ProcessorRig
from tests.support.scripted_router import ScriptedRouter


@pytest.fixture(params=LINK_PARAMS)
def start(request: pytest.FixtureRequest) -> Iterator[Callable[..., ProcessorRig]]:
    """`start(handlers=2)`: a Processor of these parts, gone when the test ends."""
    with ExitStack() as stack:

        def make(**parts: Any) -> ProcessorRig:
            return stack.enter_context(ProcessorRig(request.param, **parts))

        yield make


@pytest.fixture
def rig(start: Callable[..., ProcessorRig]) -> ProcessorRig:
    """A Processor with one Handler."""
    return start()


@pytest.fixture
def router() -> ScriptedRouter:
    return ScriptedRouter(first=0, second=1)
