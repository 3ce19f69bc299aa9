"""Fixtures of the tests with clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.broker import forked_broker

if TYPE_CHECKING:
    from kproc.embedded import Broker


@pytest.fixture(scope="module")
def observed(transport: str) -> Iterator[Broker]:
    """A broker of the file, whose requests, topics and groups a test observes."""
    settings = {} if transport == "inline" else {"num.io.threads": 2}
    with forked_broker()(settings, transport=transport) as running:
        yield running
