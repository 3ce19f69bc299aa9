"""Members of consumer groups over raw frames: join, sync, heartbeat, leave, and what a group is told and shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.configs import TOPIC, read_configs
from tests.support.groups import (
    Member,
    delete_groups,
    describe,
    find_coordinator,
    join_fields,
    list_groups,
    offsets_of,
    settle,
    subscription,
)
from tests.support.raw import RawClient, batch
from tests.support.topics import fresh_name

NewMember = Callable[..., Member]


@pytest.fixture
def group(client: RawClient) -> str:
    """The id of a group that nobody has used, with its coordinator found."""
    name = fresh_name("group")
    find_coordinator(client, name)
    return name


@pytest.fixture
def member(broker: BrokerUnderTest, group: str) -> Iterator[NewMember]:
    """`member()`: a new member of the group, on a connection of its own."""
    opened: list[Member] = []

    def make(**more: object) -> Member:
        opened.append(Member(broker.bootstrap, group, **more))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for each in opened:
        each.client.close()


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator_in_every_version(client: RawClient, group: str, version: int) -> None:
    fields = {"key": group, "key_type": 0, "coordinator_keys": [group, "another"]}
    answer = client.call(ApiKey.FIND_COORDINATOR, version, fields)
    rows = answer["coordinators"] if version >= 4 else [answer]
    host, port = client.socket.getpeername()[:2]
    assert [(row["error_code"], row["host"], row["port"]) for row in rows] == [(0, host, port)] * len(rows)
    if version >= 4:
        assert [row["key"] for row in rows] == [group, "another"]


def test_consumer_offsets_topic_is_internal_and_compacted(client: RawClient, group: str) -> None:
    row = client.describe_topic("__consumer_offsets")
    assert (row["error_code"], row["is_internal"], len(row["partitions"])) == (0, True, 50)
    configs = read_configs(client, kind=TOPIC, resource=row["name"])
    shown = [configs[name]["value"] for name in ("cleanup.policy", "compression.type", "segment.bytes")]
    assert shown == ["compact", "producer", "104857600"]


def test_produce_to_consumer_offsets_topic_is_rejected(client: RawClient, group: str) -> None:
    row = client.produce("__consumer_offsets", batch(b"x"))
    assert row["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION


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


def test_leave_group_ends_the_rebalance_wait(member: NewMember) -> None:
    one, two = member(), member()
    settle([one, two])
    one.send_join(protocols=[{"name": "range", "metadata": subscription("changed")}])
    while two.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:
        pass
    two.leave()
    answer = one.joined()
    assert (answer["error_code"], answer["leader"]) == (0, one.member_id)


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


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"session_timeout": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_invalid_join_group_is_rejected(
    client: RawClient, group: str, changes: dict[str, object], code: ErrorCode
) -> None:
    answer = client.call(ApiKey.JOIN_GROUP, 3, {**join_fields(group), **changes})
    assert (answer["error_code"], answer["generation_id"]) == (code, -1)
    assert group not in list_groups(client) or describe(client, group)["group_state"] in ("Empty", "Dead")


def test_join_group_with_inconsistent_protocol_is_rejected(
    client: RawClient, group: str, member: NewMember
) -> None:
    settle([member()])
    fields = join_fields(group, protocols=[{"name": "other", "metadata": b""}])
    assert client.call(ApiKey.JOIN_GROUP, 3, fields)["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    fields = join_fields(group, protocol_type="connect")
    assert client.call(ApiKey.JOIN_GROUP, 3, fields)["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


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


def test_sync_group_with_other_protocol_is_rejected(member: NewMember) -> None:
    one = member()
    one.join()
    assert one.sync(protocol_type=None)["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert one.sync(protocol_name="other")["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


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


def test_describe_groups_returns_authorized_operations(client: RawClient, group: str, member: NewMember) -> None:
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
