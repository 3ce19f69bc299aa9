"""DeleteGroups deletes empty groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kproc.common.errors import ErrorCode
from tests.support.broker import BrokerUnderTest
from tests.support.groups import (
    Member,
    delete_groups,
    find_coordinator,
    list_groups,
    offsets_of,
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


def test_delete_groups_needs_an_empty_group(
    client: RawClient, group: str, member: NewMember, log: tuple[str, bytes]
) -> None:
    one = member()
    settle([one])
    one.commit(log[0], {0: 3})
    assert delete_groups(client, group) == {group: ErrorCode.NON_EMPTY_GROUP}
    one.leave()
    absent = fresh_name("absent")
    assert delete_groups(client, group, absent) == {group: 0, absent: ErrorCode.GROUP_ID_NOT_FOUND}
    assert group not in list_groups(client)
    assert offsets_of(client, group) == {}
    assert delete_groups(client, group) == {group: ErrorCode.GROUP_ID_NOT_FOUND}
