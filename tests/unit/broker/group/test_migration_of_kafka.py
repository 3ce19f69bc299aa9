"""Conversions of groups in Kafka's GroupMetadataManagerConsumerGroupTest that no other test has (tests/UPSTREAM.md)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from kproc.broker.group.consumer.embedded import encode_assignment
from kproc.broker.group.messages import JoinResult, LeavingMember, SyncRequest
from kproc.common.errors import ErrorCode
from tests.support.group_coordinator_rig import TOPIC_ID, Rig
from tests.support.mixed_groups import (
    NO_DATA,
    beat,
    classic_group,
    consumer,
    described,
    join,
    join_request,
    mixed_rig,
    partitions,
    sync,
)

ALL = frozenset(range(4))


@pytest.fixture
def rig() -> Rig:
    return mixed_rig()


def two_classic_members(rig: Rig) -> tuple[JoinResult, JoinResult]:
    """Return the leader and another member of a classic group that waits for their SyncGroups."""
    first = classic_group(rig)
    results: list[JoinResult] = []
    for member_id in ("", first.member_id):
        rig.coordinator.join("g", join_request(member_id), results.append)
    leader, follower = sorted(results, key=lambda each: each.member_id != first.member_id)
    assert (leader.leader, leader.generation, follower.generation) == (first.member_id, 2, 2)
    return leader, follower


@pytest.mark.parametrize("waits_for", ["join", "sync"])
def test_upgrade_ends_the_rebalance_of_the_classic_group(rig: Rig, waits_for: str) -> None:
    """A member that waits for the others must join again."""
    leader, follower = two_classic_members(rig)
    waiting: list[Any] = []
    if waits_for == "sync":
        request = SyncRequest(member_id=follower.member_id, generation=follower.generation)
        rig.coordinator.sync("g", request, waiting.append)
    else:
        assignment = (leader.member_id, encode_assignment(1, {"t": ALL}))
        assert sync(rig, leader, assignment).error_code == ErrorCode.NONE
        rig.coordinator.join("g", join_request(leader.member_id), waiting.append)
    assert not waiting
    new = consumer(rig, "n")
    assert [each.error_code for each in waiting] == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert (new.error_code, new.member_epoch, new.assignment) == (ErrorCode.NONE, 3, {})
    epochs = {each.member_id: each.member_epoch for each in described(rig).members}
    assert epochs == {leader.member_id: 2, follower.member_id: 2, "n": 3}
    rig.pass_ms(9_999)
    assert len(described(rig).members) == 3
    rig.pass_ms(1)  # Their sessions are those of their JoinGroups.
    assert [each.member_id for each in described(rig).members] == ["n"]


def test_classic_member_without_assignment_is_upgraded(rig: Rig) -> None:
    """It has not sent its first SyncGroup yet, so it owns nothing."""
    joined = join(rig)
    assert rig.states() == {"g": "CompletingRebalance"}
    assigned = consumer(rig, "n").assignment
    (classic, _new) = described(rig).members
    assert (classic.member_id, classic.member_epoch, classic.assignment) == (joined.member_id, 1, {})
    assert assigned == {TOPIC_ID: ALL - classic.target[TOPIC_ID]}
    assert partitions(sync(rig, join(rig, joined.member_id))) == classic.target[TOPIC_ID]


def test_empty_data_of_an_assignor_does_not_prevent_an_upgrade(rig: Rig) -> None:
    joined = join(rig)
    assignment = encode_assignment(1, {"t": ALL}).removesuffix(NO_DATA) + b"\0\0\0\0"
    assert sync(rig, joined, (joined.member_id, assignment)).error_code == ErrorCode.NONE
    assert consumer(rig, "n").error_code == ErrorCode.NONE


def test_group_with_malformed_subscription_is_not_upgraded(rig: Rig) -> None:
    results: list[JoinResult] = []
    request = replace(join_request(), protocols=(("range", b"\0\1\xff\xff\xff\xff"),))
    rig.coordinator.join("g", request, results.append)
    (joined,) = results
    assert sync(rig, joined, (joined.member_id, b"")).error_code == ErrorCode.NONE
    rejected = consumer(rig, "n")
    assert rejected.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert str(rejected.error_message).endswith("because the embedded consumer protocol is malformed.")
    assert (beat(rig, joined), rig.states()) == (ErrorCode.NONE, {"g": "Stable"})


def test_static_member_is_upgraded_with_its_member_id(rig: Rig) -> None:
    consumer(rig, "n")
    classic = join(rig, instance_id="seat")
    before = described(rig)
    upgraded = consumer(rig, classic.member_id, instance_id="seat")
    assert (upgraded.error_code, upgraded.member_id) == (ErrorCode.NONE, classic.member_id)
    after = described(rig)
    assert after.group_epoch == upgraded.member_epoch == before.group_epoch
    assert {each.member_id: each.is_classic for each in after.members} == {
        "n": False,
        classic.member_id: False,
    }
    rig.pass_ms(10_001)  # The session of the classic member would have ended.
    assert len(described(rig).members) == 2


def test_group_is_classic_again_after_a_rebalance_timeout(rig: Rig) -> None:
    """The last member of the consumer protocol does not give up its partitions."""
    consumer(rig, "n")
    joined = join(rig)
    assert partitions(sync(rig, joined)) == set()
    owned = {TOPIC_ID: ALL}
    assert consumer(rig, "n", 2, owned=owned).assignment == {TOPIC_ID: {0, 1}}
    for _ in range(3):
        rig.pass_ms(6_000)
        consumer(rig, "n", 2, owned=owned)
        assert beat(rig, joined) == ErrorCode.NONE
    assert len(described(rig).members) == 2
    rig.pass_ms(2_001)
    assert rig.states() == {"g": "PreparingRebalance"}
    rejoined = join(rig, joined.member_id)
    assert (rejoined.error_code, rejoined.leader) == (ErrorCode.NONE, joined.member_id)


@pytest.mark.parametrize("has_target", [True, False])
def test_restart_before_the_next_assignment_rebalances(rig: Rig, has_target: bool) -> None:
    """The last member of the consumer protocol restarts as a classic one, with its topics, while a target is due."""
    configs = {"consumer.assignment.interval.ms": "0"}
    rig.cluster = replace(rig.cluster, group_configs=lambda _group_id: configs)
    rig.make()
    consumer(rig, "n", instance_id="seat", topic_names=("other",) if has_target else ("t",))
    if has_target:
        join(rig)
    configs["consumer.assignment.interval.ms"] = "60000"
    if has_target:
        assert consumer(rig, "n", 2, instance_id="seat", topic_names=("t",)).error_code == ErrorCode.NONE
    else:
        join(rig)
    before = described(rig)
    assert before.assignment_epoch < before.group_epoch
    assert join(rig, instance_id="seat").error_code == ErrorCode.NONE
    assert rig.states() == {"g": "PreparingRebalance"}


def test_group_above_the_classic_size_stays_a_consumer_group(rig: Rig) -> None:
    rig.settings["group.max.size"] = 1
    rig.make()
    consumer(rig, "n")
    for _ in range(2):
        join(rig)
    assert consumer(rig, "n", -1).error_code == ErrorCode.NONE
    assert [each.is_classic for each in described(rig).members] == [True, True]


def test_administrator_removes_the_last_consumer_members(rig: Rig) -> None:
    """A LeaveGroup names members of both protocols, by their ids or their instance ids."""
    consumer(rig, "n", topic_regex="t.*")
    consumer(rig, "o", instance_id="o")
    first, second = join(rig), join(rig, instance_id="seat")
    leaving = [LeavingMember(second.member_id), LeavingMember("n"), LeavingMember("", "o")]
    rig.log.error = ErrorCode.KAFKA_STORAGE_ERROR
    before = described(rig)
    results: list[Any] = []
    rig.coordinator.leave("g", leaving, results.append)
    rig.log.flush()
    assert (results[0].error_code, described(rig)) == (ErrorCode.NOT_COORDINATOR, before)
    rig.log.error = 0
    rig.coordinator.leave("g", leaving, results.append)
    rig.log.sync()
    assert [each.error_code for each in results[1].members] == [ErrorCode.NONE] * 3
    assert rig.coordinator.describe_consumer_group("g") is None
    found = rig.coordinator.describe("g")
    assert found is not None
    assert (found.state, [each.member_id for each in found.members]) == (
        "PreparingRebalance",
        [first.member_id],
    )
    rig.make()
    assert rig.coordinator.describe_consumer_group("g") is None
