"""Heartbeat, SyncGroup and LeaveGroup of unknown members and old generations."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from tests.support.groups import NewMember, list_groups, settle
from tests.support.raw import RawClient


def test_unknown_member_id_is_rejected(client: RawClient, group: str, member: NewMember) -> None:
    stranger = member()
    stranger.member_id, stranger.generation = "nobody", 1
    assert stranger.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.sync()["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    left = stranger.leave()
    assert (left["error_code"], left["members"][0]["error_code"]) == (0, ErrorCode.UNKNOWN_MEMBER_ID)
    assert stranger.join()["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    # None of that made a group.
    assert group not in list_groups(client)


def test_illegal_generation_is_rejected(member: NewMember, log: tuple[str, bytes]) -> None:
    one = member()
    settle([one])
    assert one.heartbeat(generation_id=7) == ErrorCode.ILLEGAL_GENERATION
    assert one.commit(log[0], {0: 1}, generation_id_or_member_epoch=0) == {0: ErrorCode.ILLEGAL_GENERATION}
    assert one.sync(generation_id=3)["error_code"] == ErrorCode.ILLEGAL_GENERATION
