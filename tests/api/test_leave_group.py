"""LeaveGroup ends the wait of the other members."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kproc.common.errors import ErrorCode
from tests.support.broker import BrokerUnderTest
from tests.support.groups import (
    Member,
    find_coordinator,
    settle,
    subscription,
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


def test_leave_group_ends_the_rebalance_wait(member: NewMember) -> None:
    one, two = member(), member()
    settle([one, two])
    one.send_join(protocols=[{"name": "range", "metadata": subscription("changed")}])
    while two.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:
        pass
    two.leave()
    answer = one.joined()
    assert (answer["error_code"], answer["leader"]) == (0, one.member_id)
