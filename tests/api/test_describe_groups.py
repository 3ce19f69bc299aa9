"""DescribeGroups: members, authorized operations, and unknown groups."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from tests.support.groups import NewMember, describe, settle
from tests.support.raw import RawClient


def test_describe_groups_lists_members_of_stable_group(
    client: RawClient, group: str, member: NewMember
) -> None:
    one = member(topics=["t"])
    settle([one])
    row = describe(client, group)
    assert (row["error_code"], row["group_state"]) == (0, "Stable")
    assert (row["protocol_type"], row["protocol_data"]) == ("consumer", "range")
    (shown,) = row["members"]
    assert (shown["member_id"], shown["client_id"]) == (one.member_id, "raw-test")
    assert shown["client_host"] == "/127.0.0.1"
    assert shown["member_assignment"] == one.assigned(1)
    assert shown["member_metadata"].endswith(b"t\xff\xff\xff\xff")
    assert one.member_id.startswith("raw-test-")


def test_describe_groups_returns_authorized_operations(
    client: RawClient, group: str, member: NewMember
) -> None:
    settle([member()])
    assert describe(client, group)["authorized_operations"] == -(2**31)
    # READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS.
    told = describe(client, group, include_authorized_operations=True)["authorized_operations"]
    assert told == 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


def test_describe_groups_of_unknown_group_is_dead(client: RawClient, group: str) -> None:
    row = describe(client, group, version=5)
    assert (row["error_code"], row["group_state"], row["members"]) == (0, "Dead", [])
    row = describe(client, group, version=6)
    assert (row["error_code"], row["group_state"]) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    assert row["error_message"] == f"Group {group} not found."
