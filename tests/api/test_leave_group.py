"""LeaveGroup ends the wait of the other members."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from tests.support.groups import NewMember, settle, subscription


def test_leave_group_ends_the_rebalance_wait(member: NewMember) -> None:
    one, two = member(), member()
    settle([one, two])
    one.send_join(protocols=[{"name": "range", "metadata": subscription("changed")}])
    while two.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:
        pass
    two.leave()
    answer = one.joined()
    assert (answer["error_code"], answer["leader"]) == (0, one.member_id)
