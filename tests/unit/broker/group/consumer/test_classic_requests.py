"""Requests of the classic protocol to a consumer group, as Kafka's GroupMetadataManagerConsumerGroupTest has them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kproc.broker.group.consumer.messages import DescribedConsumer
from kproc.broker.group.consumer.records import CONSUMER_RECORDS, ConsumerRecordType
from kproc.broker.group.messages import (
    JoinRequest,
    JoinResult,
    LeavingMember,
    LeftMember,
    SyncRequest,
    SyncResult,
)
from kproc.common.errors import ErrorCode
from tests.support.consumer_groups import cluster_of
from tests.support.group_coordinator_rig import TOPIC_ID, Rig
from tests.support.mixed_groups import (
    NO_DATA,
    beat,
    consumer,
    described,
    join,
    join_request,
    mixed_rig,
    partitions,
    sync,
)

ALL = frozenset(range(4))
OTHER_ID = b"o" * 16


@pytest.fixture
def rig() -> Rig:
    return mixed_rig()


def members(rig: Rig) -> dict[str, DescribedConsumer]:
    return {each.member_id: each for each in described(rig).members}


def send_join(rig: Rig, member_id: str = "", **fields: Any) -> JoinResult:
    results: list[JoinResult] = []
    rig.coordinator.join("g", replace(join_request(member_id), **fields), results.append)
    rig.log.sync()
    (result,) = results
    return result


def send_sync(rig: Rig, joined: JoinResult, **fields: Any) -> SyncResult:
    results: list[SyncResult] = []
    request = SyncRequest(member_id=joined.member_id, generation=joined.generation)
    rig.coordinator.sync("g", replace(request, **fields), results.append)
    rig.log.sync()
    (result,) = results
    return result


def send_leave(rig: Rig, *leaving: tuple[str, str | None]) -> list[int]:
    results: list[Any] = []
    rig.coordinator.leave("g", [LeavingMember(*each) for each in leaving], results.append)
    rig.log.sync()
    left: tuple[LeftMember, ...] = results[0].members
    assert [(each.member_id, each.group_instance_id) for each in left] == list(leaving)
    return [each.error_code for each in left]


def written_expressions(rig: Rig) -> set[str]:
    """Return the expressions of the group in its log."""
    last = {
        CONSUMER_RECORDS.decode(key, None)[0]: value
        for key, value in rig.log.records
        if CONSUMER_RECORDS.has(key)
    }
    kind = ConsumerRecordType.EXPRESSION
    return {key.name for key, value in last.items() if key.record_type == kind and value is not None}


def protocol(version: int, *topics: str) -> JoinRequest:
    """Return the protocols of a JoinGroup whose member subscribes in this version and owns nothing."""
    names = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in topics)
    more = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff")[:version]
    metadata = version.to_bytes(2, "big") + len(topics).to_bytes(4, "big") + names + NO_DATA + b"".join(more)
    return replace(join_request(), protocols=(("range", metadata),))


@pytest.mark.parametrize("version", range(4))
def test_classic_member_joins_in_two_steps_in_every_version(rig: Rig, version: int) -> None:
    """The first JoinGroup only gets a member id. The assignment has the version of the subscription."""
    consumer(rig, "n", topic_names=())
    protocols = protocol(version, "t").protocols
    count = len(rig.log.records)
    first = send_join(rig, protocols=protocols, requires_known_member_id=True)
    assert (first.error_code, len(rig.log.records)) == (ErrorCode.MEMBER_ID_REQUIRED, count)
    joined = send_join(rig, first.member_id, protocols=protocols, requires_known_member_id=True)
    assert joined == JoinResult(ErrorCode.NONE, first.member_id, 2, "consumer", "range")
    synced = sync(rig, joined)
    assert (synced.assignment[:2], partitions(synced)) == (version.to_bytes(2, "big"), ALL)


def test_new_static_classic_member_joins_in_one_step(rig: Rig) -> None:
    consumer(rig, "n")
    joined = send_join(rig, group_instance_id="seat", requires_known_member_id=True)
    assert (joined.error_code, joined.generation) == (ErrorCode.NONE, 3)
    assert members(rig)[joined.member_id].instance_id == "seat"
    rig.pass_ms(10_000)
    assert list(members(rig)) == ["n"]


def test_join_that_is_not_written_leaves_no_member(rig: Rig) -> None:
    consumer(rig, "n")
    before = described(rig)
    rig.log.error = ErrorCode.KAFKA_STORAGE_ERROR
    results: list[JoinResult] = []
    rig.coordinator.join("g", join_request(), results.append)
    rig.log.flush()
    assert (results[0].error_code, described(rig)) == (ErrorCode.NOT_COORDINATOR, before)


def test_other_subscription_of_a_classic_member_raises_the_epoch() -> None:
    rig = Rig(cluster_of({"t": (TOPIC_ID, 4), "o": (OTHER_ID, 1)}))
    consumer(rig, "n")
    joined = send_join(rig, protocols=protocol(1, "t").protocols, group_instance_id="seat")
    assert described(rig).group_epoch == 3
    # The request leaves out the instance id.
    rejoined = send_join(rig, joined.member_id, protocols=protocol(1, "t", "o").protocols)
    assert (rejoined.error_code, rejoined.generation, described(rig).group_epoch) == (ErrorCode.NONE, 4, 4)
    member = members(rig)[joined.member_id]
    assert (member.instance_id, member.topic_names) == ("seat", ("o", "t"))
    assert OTHER_ID in member.assignment


def test_join_that_does_not_fit_the_group_is_rejected(rig: Rig) -> None:
    """Its protocols are malformed, of another type, or not those of the other classic members."""
    consumer(rig, "n")
    join(rig)
    before = described(rig)
    wrong: tuple[dict[str, Any], ...] = (
        {"protocols": (("cooperative-sticky", b"\0\1\xff\xff\xff\xff"),)},
        {"protocols": (("roundrobin", join_request().protocols[0][1]),)},
        {"protocols": ()},
        {"protocol_type": "connect"},
    )
    for fields in wrong:
        assert send_join(rig, **fields).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL, fields
    assert described(rig) == before
    rig.settings["group.consumer.max.size"] = 2
    rig.make()
    assert join(rig).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert described(rig) == before


def test_classic_requests_with_wrong_ids_are_rejected(rig: Rig) -> None:
    consumer(rig, "n", instance_id="new")
    joined, static = join(rig), join(rig, instance_id="seat")
    unknown, fenced = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID
    before = described(rig)
    for member_id, instance_id, code in (
        (joined.member_id, "?", unknown),
        ("?", "?", unknown),
        ("?", "seat", fenced),
        (joined.member_id, "seat", fenced),
    ):
        case = JoinResult(0, member_id, static.generation)
        assert send_join(rig, member_id, group_instance_id=instance_id).error_code == code, case
        assert send_sync(rig, case, group_instance_id=instance_id).error_code == code, case
        assert rig.coordinator.heartbeat("g", member_id, instance_id, static.generation) == code, case
    # A member of the consumer protocol has no classic requests, but its instance id tells its place.
    assert send_sync(rig, JoinResult(0, "n", 2), group_instance_id="new").error_code == unknown
    assert send_sync(rig, JoinResult(0, "?", 2), group_instance_id="new").error_code == fenced
    assert rig.coordinator.heartbeat("g", "n", "new", 2) == unknown
    assert described(rig) == before


def test_sync_names_the_protocol_of_its_member_or_none(rig: Rig) -> None:
    consumer(rig, "n")
    joined = join(rig)
    for name, protocol_type, code in (
        ("roundrobin", "consumer", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("cooperative-sticky", "connect", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("cooperative-sticky", "consumer", ErrorCode.NONE),
        (None, None, ErrorCode.NONE),
    ):
        result = send_sync(rig, joined, protocol_name=name, protocol_type=protocol_type)
        assert result.error_code == code, name
    assert (result.protocol_name, result.protocol_type) == ("cooperative-sticky", "consumer")


@pytest.mark.parametrize("request_name", ["sync", "heartbeat"])
def test_classic_member_rejoins_for_a_target_in_time(rig: Rig, request_name: str) -> None:
    """It is told as soon as a target exists, and removed if it does not join within its rebalance timeout."""
    consumer(rig, "n")
    consumer(rig, "m", topic_names=())
    joined = join(rig)
    assert sync(rig, joined).error_code == ErrorCode.NONE

    def code() -> int:
        return beat(rig, joined) if request_name == "heartbeat" else sync(rig, joined).error_code

    consumer(rig, "m", -1)
    assert code() == ErrorCode.NONE
    consumer(rig, "n", 2)
    assert code() == ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(3):
        rig.pass_ms(6_000)
        beat(rig, joined)
        consumer(rig, "n", members(rig)["n"].member_epoch, owned=members(rig)["n"].assignment)
    assert joined.member_id in members(rig)
    rig.pass_ms(2_000)
    assert list(members(rig)) == ["n"]
    assert code() == ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeats_keep_the_session_of_a_classic_member(rig: Rig) -> None:
    consumer(rig, "n", topic_names=())
    joined = join(rig)
    assert sync(rig, joined).error_code == ErrorCode.NONE
    for _ in range(4):
        rig.pass_ms(9_000)
        assert beat(rig, joined) == ErrorCode.NONE
        consumer(rig, "n", members(rig)["n"].member_epoch)
    before = described(rig).group_epoch
    rig.pass_ms(9_999)
    assert len(members(rig)) == 2
    rig.pass_ms(1)
    assert (list(members(rig)), described(rig).group_epoch) == (["n"], before + 1)


def test_eager_member_gives_up_partitions_by_its_join(rig: Rig) -> None:
    """It owns nothing when it joins. So it is at the epoch of the target at once, and others get what it had."""
    consumer(rig, "n", topic_names=())
    joined = join(rig)
    assert partitions(sync(rig, joined)) == ALL
    new = consumer(rig, "m")
    assert beat(rig, joined) == ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = join(rig, joined.member_id)
    assert rejoined.generation == new.member_epoch == described(rig).group_epoch
    kept = partitions(sync(rig, rejoined))
    assert (len(kept), beat(rig, rejoined)) == (2, ErrorCode.NONE)
    assert consumer(rig, "m", new.member_epoch).assignment == {TOPIC_ID: ALL - kept}


@pytest.mark.parametrize("topics", [("t",), ()])
def test_static_successor_without_expression_removes_it(rig: Rig, topics: tuple[str, ...]) -> None:
    """A member of the classic protocol has no expression, whatever the names that its subscription has."""
    consumer(rig, "n", instance_id="seat", topic_names=("t",) if topics else (), topic_regex="x.*")
    consumer(rig, "o")
    before = described(rig).group_epoch
    joined = send_join(rig, group_instance_id="seat", protocols=protocol(1, *topics).protocols)
    assert (joined.error_code, described(rig).group_epoch) == (ErrorCode.NONE, before + 1)
    member = members(rig)[joined.member_id]
    assert (member.topic_names, member.topic_regex) == (topics, None)
    assert written_expressions(rig) == set()


def test_members_of_both_protocols_leave_together(rig: Rig) -> None:
    consumer(rig, "n")
    consumer(rig, "o", instance_id="o", topic_regex="x.*")
    assert written_expressions(rig) == {"x.*"}
    joined, static = join(rig), join(rig, instance_id="seat")
    before = described(rig)
    wrong = [("?", None), ("", "?"), ("?", "o")]
    codes = [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID]
    assert send_leave(rig, *wrong) == codes
    assert described(rig) == before
    left = [(joined.member_id, None), ("", "seat"), ("o", "o")]
    assert send_leave(rig, *left, *wrong) == [ErrorCode.NONE] * 3 + codes
    assert (list(members(rig)), described(rig).group_epoch) == (["n"], before.group_epoch + 1)
    assert written_expressions(rig) == set()
    assert beat(rig, joined) == beat(rig, static) == ErrorCode.UNKNOWN_MEMBER_ID
    rig.pass_ms(20_001)  # No deadline of the members that left is due.
    assert described(rig).group_epoch == before.group_epoch + 1
