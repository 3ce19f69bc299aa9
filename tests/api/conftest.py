"""Raw connections for the API tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.broker import BrokerUnderTest
from tests.support.groups import Member, NewMember, find_coordinator, settle
from tests.support.raw import RawClient, batch
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


@pytest.fixture
def three(client: RawClient) -> str:
    """A topic of three partitions, with five records in the first."""
    name = fresh_name("admin")
    client.create_topic(name, partitions=3)
    for number in range(5):
        assert client.produce(name, batch(b"%d" % number))["error_code"] == 0
    return name


@pytest.fixture
def group(client: RawClient) -> str:
    """The id of a group that nobody has used, with its coordinator found."""
    name = fresh_name("group")
    find_coordinator(client, name)
    return name


@pytest.fixture
def member(broker: BrokerUnderTest, group: str) -> Iterator[NewMember]:
    """`member()`: a new member of the group, on a connection of its own."""
    opened: list[Member] = []

    def make(**more: object) -> Member:
        opened.append(Member(broker.bootstrap, group, **more))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for each in opened:
        each.client.close()


@pytest.fixture
def one(broker: BrokerUnderTest, group: str, log: tuple[str, bytes]) -> Iterator[Member]:
    """The only member of the group, subscribed to the topic, settled."""
    with Member(broker.bootstrap, group, topics=[log[0]]) as member:
        settle([member])
        yield member
