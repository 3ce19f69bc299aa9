"""ListGroups by state and type."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.broker import BrokerUnderTest
from tests.support.groups import (
    Member,
    find_coordinator,
    list_groups,
    settle,
)
from tests.support.raw import RawClient
from tests.support.topics import fresh_name

NewMember = Callable[..., Member]


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


def test_list_groups_filters_by_state_and_type(client: RawClient, group: str, member: NewMember) -> None:
    one = member()
    settle([one])
    row = list_groups(client)[group]
    assert (row["protocol_type"], row["group_state"], row["group_type"]) == ("consumer", "Stable", "classic")
    assert group in list_groups(client, states=["stable"], types=["Classic"])
    assert group not in list_groups(client, states=["Empty"])
    assert group not in list_groups(client, types=["consumer"])
    one.leave()
    assert group in list_groups(client, states=["EMPTY", "Dead"])
