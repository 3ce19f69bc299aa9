"""Groups on a broker with several Handlers: any connection serves any group, and what they keep is kept."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest, EmbeddedBroker
from tests.support.groups import (
    Member,
    commit,
    commit_fields,
    delete_groups,
    describe,
    fetch_group,
    find_coordinator,
    list_groups,
    offsets_of,
    settle,
)
from tests.support.raw import RawClient, create_topics_fields
from tests.support.topics import fresh_name
from tests.support.wait import wait_until

pytestmark = pytest.mark.own_broker

HANDLERS, PROCESSORS = 3, 2
SETTINGS = {
    "num.io.threads": HANDLERS,
    "num.network.threads": PROCESSORS,
    "kproc.flush": "group",
    "offsets.topic.num.partitions": 8,
}


@pytest.fixture(scope="module")
def several(transport: str) -> Iterator[BrokerUnderTest]:
    """One broker with several Handlers, for all tests of a transport."""
    with EmbeddedBroker(transport=transport, settings=SETTINGS) as running:
        with RawClient(running.bootstrap) as client:
            find_coordinator(client, "any")
        yield running


@pytest.fixture
def clients(several: BrokerUnderTest) -> Iterator[list[RawClient]]:
    """More connections than Handlers, so that each Handler is home to some."""
    opened = [RawClient(several.bootstrap) for _ in range(2 * HANDLERS)]
    yield opened
    for client in opened:
        client.close()


@pytest.fixture
def topic(clients: list[RawClient]) -> str:
    name = fresh_name("groups")
    clients[0].create_topic(name, partitions=4)
    return name


def test_every_connection_serves_every_group(clients: list[RawClient], topic: str) -> None:
    groups = [fresh_name("each") for _ in range(12)]
    for turn, client in enumerate(clients):
        for group in groups:
            assert commit(client, group, topic, {turn % 4: turn}) == {turn % 4: 0}
    for client in clients:
        for group in groups:
            found = offsets_of(client, group)
            assert found == {(topic, turn % 4): turn for turn in range(len(clients))}


def test_describe_groups_joins_all_coordinators_in_order(
    clients: list[RawClient], topic: str
) -> None:
    groups = [fresh_name("many") for _ in range(30)]
    for number, group in enumerate(groups):
        commit(clients[0], group, topic, {0: number})
    for client in clients:
        assert set(groups) <= set(list_groups(client))
        wanted = [{"name": topic, "partition_indexes": [0]}]
        fields = {
            "groups": [{"group_id": group, "topics": wanted} for group in groups],
            "require_stable": False,
        }
        rows = client.call(ApiKey.OFFSET_FETCH, 8, fields)["groups"]
        assert [row["group_id"] for row in rows] == groups
        assert [row["topics"][0]["partitions"][0]["committed_offset"] for row in rows] == list(range(30))
        described = client.call(
            ApiKey.DESCRIBE_GROUPS, 5, {"groups": groups, "include_authorized_operations": False}
        )
        assert [row["group_id"] for row in described["groups"]] == groups
    assert delete_groups(clients[1], *groups, "absent") == {
        **dict.fromkeys(groups, 0),
        "absent": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    assert not set(groups) & set(list_groups(clients[2]))


@pytest.mark.every_transport
def test_group_members_join_by_any_connection(several: BrokerUnderTest, topic: str) -> None:
    members = [Member(several.bootstrap, fresh_name("one"), topics=[topic]) for _ in range(6)]
    for member in members:
        member.group_id = members[0].group_id
    try:
        settle(members)
        codes = [member.commit(topic, {0: number}) for number, member in enumerate(members)]
        assert codes == [{0: 0}] * len(members)
        assert len(describe(members[3].client, members[0].group_id)["members"]) == len(members)
    finally:
        for member in members:
            member.client.close()


@pytest.mark.every_transport
def test_many_groups_at_once(several: BrokerUnderTest, topic: str) -> None:
    def live(number: int) -> dict[int, int]:
        with Member(several.bootstrap, fresh_name(f"busy{number}"), topics=[topic]) as member:
            settle([member])
            codes = member.commit(topic, {0: number})
            assert member.heartbeat() == 0
            member.leave()
            return codes

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(live, range(24))) == [{0: 0}] * 24


def test_pipelined_offset_commits_are_all_stored(clients: list[RawClient], topic: str) -> None:
    """Many in one read: they become few batches, each is answered, the last one counts."""
    group, client = fresh_name("pipe"), clients[0]
    for offset in range(200):
        client.send(ApiKey.OFFSET_COMMIT, 8, commit_fields(group, topic, {offset % 4: offset}))
    for _ in range(200):
        _, answer = client.receive(ApiKey.OFFSET_COMMIT, 8)
        assert [part["error_code"] for part in answer["topics"][0]["partitions"]] == [0]
    assert offsets_of(client, group) == {(topic, index): 196 + index for index in range(4)}


def test_offset_commit_larger_than_one_batch(clients: list[RawClient]) -> None:
    name, group = fresh_name("wide"), fresh_name("wide")
    # Without `create_topic`, which asks for each log: making them is nothing that a commit needs, and where many files
    # were deleted within the last minutes ext4 looks 1 ms for each new one (`recently_deleted` in its ialloc.c).
    created = clients[0].call(ApiKey.CREATE_TOPICS, 7, create_topics_fields(name, partitions=2_000))
    assert created["topics"][0]["error_code"] == 0
    offsets = {index: index for index in range(2_000)}
    # 2,000 records of more than 4 KB each are 8 MB; __consumer_offsets takes batches of 1 MB.
    fields = commit_fields(group, name, offsets, metadata="x" * 4_000)
    answer = clients[0].call(ApiKey.OFFSET_COMMIT, 8, fields)
    assert {part["error_code"] for part in answer["topics"][0]["partitions"]} == {0}
    row = fetch_group(clients[1], group, {name: list(offsets)})
    assert [part["committed_offset"] for part in row["topics"][0]["partitions"]] == list(range(2_000))


@pytest.mark.transports("process", "inline")
def test_expired_offsets_and_their_groups_are_removed(start_broker, transport: str) -> None:  # type: ignore[no-untyped-def]
    """The client's own expiry (OffsetCommit v2-4), because a minute is the broker's shortest."""
    del transport
    broker = start_broker({**SETTINGS, "offsets.retention.check.interval.ms": 50})
    with RawClient(broker.bootstrap) as client:
        name, group = fresh_name("old"), fresh_name("old")
        client.create_topic(name)
        find_coordinator(client, group)
        fields = commit_fields(group, name, {0: 5}, retention_time=1)
        client.call(ApiKey.OFFSET_COMMIT, 4, fields)
        wait_until(lambda: group not in list_groups(client), what="the group is gone")
        assert offsets_of(client, group) == {}


def test_deletion_of_consumer_offsets_topic_removes_all_groups(start_broker) -> None:  # type: ignore[no-untyped-def]
    broker = start_broker(SETTINGS)
    with RawClient(broker.bootstrap) as client, Member(broker.bootstrap, "g") as member:
        name = fresh_name("t")
        client.create_topic(name)
        find_coordinator(client, "g")
        settle([member])
        member.commit(name, {0: 1})
        client.delete_topic("__consumer_offsets")
        assert member.heartbeat() == ErrorCode.NOT_COORDINATOR
        find_coordinator(client, "g")
        assert member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
        assert offsets_of(client, "g") == {}


@pytest.mark.parametrize("retention_ms", [2**63 - 1, -(2**63), -2, 0])
def test_offset_retention_accepts_every_length(
    several: BrokerUnderTest, clients: list[RawClient], topic: str, retention_ms: int
) -> None:
    for client in clients:
        for offset in (2**63 - 1, 0):
            group = fresh_name("kept")
            fields = commit_fields(group, topic, {1: offset}, retention_time=retention_ms)
            answer = client.call(ApiKey.OFFSET_COMMIT, 4, fields)
            assert [row["error_code"] for row in answer["topics"][0]["partitions"]] == [ErrorCode.NONE]
            assert offsets_of(client, group) == {(topic, 1): offset}
