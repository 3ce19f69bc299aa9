"""DeleteGroups deletes empty groups."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.groups import NewMember, delete_groups, list_groups, offsets_of, settle
from tests.support.raw import RawClient
from tests.support.topics import fresh_name


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


def test_delete_groups_version_3_has_message_per_group(client: RawClient) -> None:
    """As in Kafka without a plug-in of streams groups, the message is null."""
    group = fresh_name("absent")
    (row,) = client.call(ApiKey.DELETE_GROUPS, 3, {"groups_names": [group]})["results"]
    assert row == {"group_id": group, "error_code": ErrorCode.GROUP_ID_NOT_FOUND, "error_message": None}
