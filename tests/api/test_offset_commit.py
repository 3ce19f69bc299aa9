"""OffsetCommit: who may commit what, and the errors of each partition."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.groups import Member, commit, commit_fields, describe, fetch_group, list_groups, offsets_of
from tests.support.offset_fetches import fetch_fields
from tests.support.raw import RawClient
from tests.support.topics import fresh_name
from tests.support.wait import wait_until


@pytest.mark.parametrize("version", range(2, 11))
def test_offset_commit_in_every_version(
    client: RawClient, group: str, log: tuple[str, bytes], version: int
) -> None:
    name, topic_id = log
    fields = commit_fields(group, name, {0: 42}, metadata="väl")
    fields["topics"][0]["topic_id"] = topic_id
    answer = client.call(ApiKey.OFFSET_COMMIT, version, fields)
    (topic,) = answer["topics"]
    assert topic["partitions"] == [{"partition_index": 0, "error_code": 0}]
    assert topic["topic_id"] == topic_id if version >= 10 else topic["name"] == name
    row = fetch_group(client, group, {name: [0]})["topics"][0]["partitions"][0]
    assert (row["committed_offset"], row["metadata"]) == (42, "väl")


def test_offset_commit_of_unknown_partitions_fails_by_partition(
    client: RawClient, group: str, log: tuple[str, bytes]
) -> None:
    assert commit(client, group, log[0], {0: 1, 1: 2}) == {0: 0, 1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    absent = fresh_name("absent")
    assert commit(client, group, absent, {0: 1}) == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    fields = commit_fields(group, "", {0: 1})
    fields["topics"][0]["topic_id"] = bytes(range(16))
    (topic,) = client.call(ApiKey.OFFSET_COMMIT, 10, fields)["topics"]
    assert topic["partitions"][0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
    answer = client.call(ApiKey.OFFSET_FETCH, 10, fetch_fields(10, group, "", bytes(range(16))))
    (topic,) = answer["groups"][0]["topics"]
    assert {each["error_code"] for each in topic["partitions"]} == {ErrorCode.UNKNOWN_TOPIC_ID}
    assert offsets_of(client, group) == {(log[0], 0): 1}


def test_offset_commit_with_long_metadata_is_rejected(
    client: RawClient, group: str, log: tuple[str, bytes]
) -> None:
    # Characters count, whatever the setting's name says.
    assert commit(client, group, log[0], {0: 1}, metadata="ä" * 4096) == {0: 0}
    assert commit(client, group, log[0], {0: 2}, metadata="x" * 4097) == {
        0: ErrorCode.OFFSET_METADATA_TOO_LARGE
    }
    assert offsets_of(client, group) == {(log[0], 0): 1}


def test_offset_commit_null_metadata_becomes_empty(
    client: RawClient, group: str, log: tuple[str, bytes]
) -> None:
    commit(client, group, log[0], {0: 1}, metadata=None)
    assert fetch_group(client, group, {log[0]: [0]})["topics"][0]["partitions"][0]["metadata"] == ""


def test_offset_commit_of_non_member_in_active_group_is_rejected(
    client: RawClient, group: str, one: Member, log: tuple[str, bytes]
) -> None:
    assert commit(client, group, log[0], {0: 1}) == {0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert one.commit(log[0], {0: 1}, member_id="nobody") == {0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert one.commit(log[0], {0: 9}) == {0: 0}
    one.leave()
    assert commit(client, group, log[0], {0: 4}) == {0: 0}
    assert offsets_of(client, group) == {(log[0], 0): 4}


def test_offset_commit_checks_member_before_metadata_size(
    client: RawClient, group: str, one: Member, log: tuple[str, bytes]
) -> None:
    assert commit(client, group, log[0], {0: 1}, metadata="x" * 5000) == {0: ErrorCode.UNKNOWN_MEMBER_ID}


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_offset_commit_with_generation_of_no_group_is_rejected(
    client: RawClient, group: str, log: tuple[str, bytes], version: int, code: ErrorCode
) -> None:
    changes = {"generation_id_or_member_epoch": 3, "member_id": "m"}
    assert commit(client, group, log[0], {0: 1}, version=version, **changes) == {0: code}
    assert group not in list_groups(client)


def test_offset_commit_without_member_creates_simple_group(
    client: RawClient, group: str, log: tuple[str, bytes]
) -> None:
    commit(client, group, log[0], {0: 1})
    row = list_groups(client)[group]
    assert (row["protocol_type"], row["group_state"], row["group_type"]) == ("", "Empty", "classic")
    assert describe(client, group)["group_state"] == "Empty"


def test_offset_commit_during_rebalance(broker: BrokerUnderTest, one: Member, log: tuple[str, bytes]) -> None:
    with Member(broker.bootstrap, one.group_id) as two:
        two.send_join()
        two.member_id = two.client.receive(ApiKey.JOIN_GROUP, 9)[1]["member_id"]
        two.send_join()
        wait_until(lambda: one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, what="the rebalance")
        # Members may still commit what they did before they join again.
        assert one.commit(log[0], {0: 3}) == {0: 0}
        one.join()
        assert one.commit(log[0], {0: 4}) == {0: ErrorCode.REBALANCE_IN_PROGRESS}
