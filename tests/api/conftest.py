"""Raw connections for the API tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.broker import BrokerUnderTest
from tests.support.raw import RawClient
from tests.support.topics import fresh_name


@pytest.fixture
def client(broker: BrokerUnderTest) -> Iterator[RawClient]:
    """A raw connection to the shared broker."""
    with RawClient(broker.bootstrap) as connection:
        yield connection


@pytest.fixture
def log(client: RawClient) -> tuple[str, bytes]:
    """A new topic of one partition: (name, id)."""
    name = fresh_name("log")
    return name, client.create_topic(name)
