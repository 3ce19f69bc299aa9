"""Epochs that a commit and a fetch of committed offsets need in a consumer group."""

from __future__ import annotations

from kproc.broker.group.messages import CommitRequest
from kproc.broker.group.records import CommittedOffset, OffsetKey
from kproc.common.errors import ErrorCode
from tests.support.consumer_groups import GroupRig, HonestMember, settle, topic_id

T = topic_id("t")


def commit(member_id: str, epoch: int, *partitions: int, knows_unknown_group: bool = True) -> CommitRequest:
    return CommitRequest(
        group_id="g",
        member_id=member_id,
        group_instance_id=None,
        generation=epoch,
        knows_unknown_group=knows_unknown_group,
        offsets=[
            (OffsetKey("g", "t", partition), CommittedOffset(offset=1, commit_timestamp_ms=0, topic_id=T))
            for partition in partitions
        ],
    )


def test_commit_needs_the_epoch_of_the_assignment(rig: GroupRig) -> None:
    """KIP-1251: a commit that meets a rebalance is valid for partitions that the member has kept.

    As in Kafka, one with the member's present epoch is valid for all partitions.
    """
    first, second = HonestMember(rig, "a"), HonestMember(rig, "b")
    settle([first])
    second.heartbeat()
    first.heartbeat()
    first.heartbeat()
    for epoch, numbers in ((3, [0]), (2, [0, 1]), (3, [3])):
        assert rig.group.commit_refusal(commit("a", epoch, *numbers), 0) == ErrorCode.NONE
    for epoch, partition in ((2, 3), (4, 0), (0, 0)):
        assert rig.group.commit_refusal(commit("a", epoch, partition), 0) == ErrorCode.STALE_MEMBER_EPOCH
    for request in (commit("", -1, 0), commit("c", 1, 0)):
        assert rig.group.commit_refusal(request, 0) == ErrorCode.UNKNOWN_MEMBER_ID
    old = commit("a", 3, 0, knows_unknown_group=False)
    assert rig.group.commit_refusal(old, 0) == ErrorCode.UNSUPPORTED_VERSION


def test_offset_fetch_of_a_member_needs_its_epoch(rig: GroupRig) -> None:
    HonestMember(rig, "a").heartbeat()
    assert rig.group.fetch_refusal(None, -1) == ErrorCode.NONE
    assert rig.group.fetch_refusal("a", 2) == ErrorCode.NONE
    assert rig.group.fetch_refusal("a", 3) == ErrorCode.STALE_MEMBER_EPOCH
    assert rig.group.fetch_refusal("b", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert rig.group.fetch_refusal("", -1) == ErrorCode.UNKNOWN_MEMBER_ID
