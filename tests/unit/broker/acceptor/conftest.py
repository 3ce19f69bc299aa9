"""An Acceptor without its process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.acceptor_rig import AcceptorRig


@pytest.fixture
def start() -> Iterator[Callable[..., AcceptorRig]]:
    with ExitStack() as stack:
        yield lambda *args, **parts: AcceptorRig(stack, *args, **parts)


@pytest.fixture
def rig(start: Callable[..., AcceptorRig]) -> AcceptorRig:
    return start()
