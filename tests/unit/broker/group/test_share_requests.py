"""Requests about a share group that is being deleted: each of them is rejected until the deletion ends (KIP-932)."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.share.membership.messages import AlterShareOffsets, DeleteShareOffsets, ShareHeartbeat
from kproc.broker.share.state.messages import SharePartitionKey
from kproc.common.errors import ErrorCode
from tests.support.consumer_groups import topic_id
from tests.support.share_groups import ShareRig


@pytest.fixture
def rig() -> ShareRig:
    """Return a share group whose deletion waits for the share coordinator."""
    rig = ShareRig()
    rig.add_member("a")
    rig.heartbeat("a", -1)
    rig.coordinator.deletion.delete("g", lambda _code: None)
    return rig


def test_member_cannot_join_while_the_group_is_deleted(rig: ShareRig) -> None:
    results: list[Any] = []
    request = ShareHeartbeat(member_id="b", member_epoch=0, topic_names=("t",))
    rig.coordinator.share_requests.heartbeat("g", request, results.append)
    assert results[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    rig.run_all()
    assert len(rig.coordinator) == 0


@pytest.mark.parametrize("request_", [AlterShareOffsets({"t": {0: 7}}), DeleteShareOffsets(("t",))])
def test_offsets_cannot_change_while_the_group_is_deleted(
    rig: ShareRig, request_: AlterShareOffsets | DeleteShareOffsets
) -> None:
    results: list[Any] = []
    rig.coordinator.share_requests.change_offsets("g", request_, results.append)
    assert results[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_state_is_not_restored_while_the_group_is_deleted(rig: ShareRig) -> None:
    """A restored state would survive the deletion."""
    codes: list[int] = []
    key = SharePartitionKey("g", topic_id("t"), 0)
    rig.coordinator.share_requests.restore_state(key, codes.append)
    assert codes == [ErrorCode.INVALID_REQUEST]
