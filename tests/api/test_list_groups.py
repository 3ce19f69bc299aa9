"""ListGroups by state and type."""

from __future__ import annotations

from tests.support.groups import NewMember, list_groups, settle
from tests.support.raw import RawClient


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
