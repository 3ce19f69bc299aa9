"""JoinGroup of one and several members, in every version."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.groups import NewMember, describe, join_fields, offsets_of, settle
from tests.support.raw import RawClient


@pytest.mark.every_transport
def test_one_member_joins_syncs_commits_and_leaves(
    client: RawClient, group: str, member: NewMember, log: tuple[str, bytes]
) -> None:
    one = member(topics=[log[0]])
    answer = one.join()
    assert (answer["error_code"], answer["generation_id"], answer["leader"]) == (0, 1, one.member_id)
    assert (answer["protocol_type"], answer["protocol_name"]) == ("consumer", "range")
    assert [each["member_id"] for each in answer["members"]] == [one.member_id]
    assert describe(client, group)["group_state"] == "CompletingRebalance"
    synced = one.sync({one.member_id: b"mine"})
    assert (synced["error_code"], synced["assignment"]) == (0, b"mine")
    assert (synced["protocol_type"], synced["protocol_name"]) == ("consumer", "range")
    assert one.heartbeat() == 0
    assert one.commit(log[0], {0: 7}) == {0: 0}
    assert offsets_of(client, group) == {(log[0], 0): 7}
    left = one.leave()
    assert (left["error_code"], [row["error_code"] for row in left["members"]]) == (0, [0])
    assert one.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert describe(client, group)["group_state"] == "Empty"


def test_group_members_share_a_generation(member: NewMember) -> None:
    members = [member() for _ in range(3)]
    settle(members)
    assert len({each.generation for each in members}) == 1
    assert [each.heartbeat() for each in members] == [0, 0, 0]


@pytest.mark.every_transport
def test_join_group_of_new_member_starts_rebalance(member: NewMember) -> None:
    one, two = member(), member()
    settle([one])
    two.send_join()
    two_id = two.client.receive(ApiKey.JOIN_GROUP, 9)[1]["member_id"]
    two.member_id = two_id
    two.send_join()
    # Its join waits until the first member comes back.
    while one.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:
        pass
    one.send_join()
    first, second = one.joined(), two.joined()
    assert first["generation_id"] == second["generation_id"] == 2
    assert {each["member_id"] for each in (first["members"] or second["members"])} == {
        one.member_id,
        two.member_id,
    }


@pytest.mark.parametrize("version", range(10))
def test_join_and_leave_group_in_every_version(client: RawClient, group: str, version: int) -> None:
    answer = client.call(ApiKey.JOIN_GROUP, version, join_fields(group))
    if answer["error_code"] == ErrorCode.MEMBER_ID_REQUIRED:
        assert version >= 4
        again = join_fields(group, member_id=answer["member_id"])
        answer = client.call(ApiKey.JOIN_GROUP, version, again)
    assert (answer["error_code"], answer["generation_id"], answer["protocol_name"]) == (0, 1, "range")
    member_id = answer["member_id"]
    sync_version = min(version, 5)
    alive = {"group_id": group, "generation_id": 1, "member_id": member_id, "group_instance_id": None}
    sync = {
        **alive,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member_id, "assignment": b"a"}],
    }
    assert client.call(ApiKey.SYNC_GROUP, sync_version, sync)["assignment"] == b"a"
    assert client.call(ApiKey.HEARTBEAT, min(version, 4), alive)["error_code"] == 0
    members = [{"member_id": member_id, "group_instance_id": None, "reason": None}]
    leave = {"group_id": group, "member_id": member_id, "members": members}
    assert client.call(ApiKey.LEAVE_GROUP, sync_version, leave)["error_code"] == 0
    again_left = client.call(ApiKey.LEAVE_GROUP, sync_version, leave)
    if sync_version < 3:
        assert again_left["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    else:
        assert again_left["members"][0]["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID


def test_static_member_rejoins_without_rebalance(client: RawClient, group: str, member: NewMember) -> None:
    one, other = member(instance_id="i-1"), member()
    settle([one, other])
    before = one.member_id
    one.client.close()
    back = member(instance_id="i-1")
    answer = back.join()
    # The group is stable and the subscription the same: no rebalance, the same generation.
    assert (answer["error_code"], answer["generation_id"]) == (0, one.generation)
    assert back.member_id != before
    assert back.sync()["assignment"] == f"2/{before}".encode()
    assert other.heartbeat() == 0
    fenced = member(instance_id="i-1")
    fenced.member_id, fenced.generation = before, one.generation
    assert fenced.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
    row = describe(client, group)
    assert {each["group_instance_id"] for each in row["members"]} == {"i-1", None}


@pytest.mark.every_transport
def test_disconnect_during_join_group_does_not_block_rebalance(member: NewMember) -> None:
    one, gone = member(), member()
    settle([one])
    gone.send_join()
    gone.member_id = gone.client.receive(ApiKey.JOIN_GROUP, 9)[1]["member_id"]
    gone.send_join(session_timeout=6_000, rebalance_timeout=6_000)
    while one.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:
        pass
    gone.client.close()
    assert one.join()["error_code"] == 0
