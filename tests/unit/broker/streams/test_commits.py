"""Commits and fetches of the offsets of a streams group, and how long they are kept (KIP-1071, KIP-1251)."""

from __future__ import annotations

from kproc.broker.coordinator.rules import Producer
from kproc.broker.group.messages import CommitRequest
from kproc.broker.group.records import CommittedOffset, OffsetKey
from kproc.common.errors import ErrorCode
from tests.support.streams_groups import HonestStreamsMember, StreamsRig, settle


def commit(epoch: int, *keys: tuple[str, int], **changes: object) -> CommitRequest:
    return CommitRequest(
        **{
            "group_id": "g",
            "member_id": "a",
            "group_instance_id": None,
            "generation": epoch,
            "knows_unknown_group": True,
            "offsets": [
                (OffsetKey("g", topic, partition), CommittedOffset(offset=1, commit_timestamp_ms=0))
                for topic, partition in keys
            ],
            **changes,
        }
    )


def test_commits_need_the_epoch_of_the_task(rig: StreamsRig) -> None:
    first, second = HonestStreamsMember(rig, "a"), HonestStreamsMember(rig, "b")
    first.heartbeat()
    settle([first, second])
    assert first.epoch == 3

    def refusal(epoch: int, *keys: tuple[str, int], **changes: object) -> int:
        return rig.group.commit_refusal(commit(epoch, *keys, **changes), 0)

    assert refusal(3, ("t", 0)) == ErrorCode.NONE
    # The member has had this task since epoch 2.
    assert refusal(2, ("t", 0)) == ErrorCode.NONE
    assert refusal(2, ("t", 3)) == ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(2, ("other", 0)) == ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(1, ("t", 0)) == ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(4, ("t", 0)) == ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(3, ("t", 0), member_id="x") == ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(3, ("t", 0), knows_unknown_group=False) == ErrorCode.UNSUPPORTED_VERSION
    assert refusal(-1, ("t", 0), member_id="") == ErrorCode.UNKNOWN_MEMBER_ID
    transaction = {"producer": Producer(1, 0), "knows_unknown_group": False}
    assert refusal(3, ("t", 0), **transaction) == ErrorCode.NONE
    assert refusal(-1, ("t", 0), member_id="", **transaction) == ErrorCode.NONE


def test_tool_may_commit_while_the_group_is_empty(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a")
    member.heartbeat()
    member.leave()
    assert rig.group.commit_refusal(commit(-1, ("t", 0), member_id=""), 0) == ErrorCode.NONE


def test_fetches_need_the_epoch_of_the_member(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a")
    member.heartbeat()
    assert rig.group.fetch_refusal(None, -1) == ErrorCode.NONE
    assert rig.group.fetch_refusal("a", 2) == ErrorCode.NONE
    assert rig.group.fetch_refusal("a", 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert rig.group.fetch_refusal("b", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert rig.group.fetch_refusal("", -1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_source_topics_do_not_expire(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a")
    member.heartbeat()
    assert rig.group.offset_expires_from_ms("t", 5) is None
    assert rig.group.offset_expires_from_ms("g-store-changelog", 5) == 5
    member.leave()
    assert rig.group.offset_expires_from_ms("t", 5) == 5


def test_commits_of_an_absent_static_member_are_stale(rig: StreamsRig) -> None:
    member = HonestStreamsMember(rig, "a", instance_id="seat")
    settle([member])
    member.leave(-2)
    assert set(rig.group.state.members["a"].state.owned.active.values()) == {0}
    assert rig.group.commit_refusal(commit(2, ("t", 0)), 0) == ErrorCode.STALE_MEMBER_EPOCH
