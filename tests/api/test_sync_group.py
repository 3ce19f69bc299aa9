"""SyncGroup without the group's protocol."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from tests.support.groups import NewMember


def test_sync_group_with_other_protocol_is_rejected(member: NewMember) -> None:
    one = member()
    one.join()
    assert one.sync(protocol_type=None)["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert one.sync(protocol_name="other")["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
