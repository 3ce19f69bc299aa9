"""The rules of a consumer group: joins, epochs, fencing, static members, revocation, deadlines, commits (KIP-848)."""

from __future__ import annotations

from contextlib import suppress

import pytest
from msgspec.structs import replace

from kproc.broker.config import Config
from kproc.broker.coordinator.member_deadlines import REMOVED_AT_ONCE
from kproc.broker.group.consumer.messages import ConsumerHeartbeat
from kproc.broker.group.consumer.records import TargetEpoch
from kproc.broker.group.messages import CommitRequest
from kproc.broker.group.records import CommittedOffset, OffsetKey
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.consumer_groups import GroupRig, HonestMember, settle, topic_id

T = topic_id("t")


def rejected(code: ErrorCode) -> pytest.RaisesContext[KafkaError]:
    return pytest.raises(KafkaError, check=lambda error: error.code == code)


def test_first_member_gets_all_partitions_at_once(rig: GroupRig) -> None:
    result = HonestMember(rig, "a").heartbeat()
    assert result.member_epoch == 2  # Kafka creates a group at epoch 1.
    assert result.heartbeat_interval_ms == 5_000
    assert result.assignment == {T: {0, 1, 2, 3}}
    assert rig.group.state_name == "Stable"


def test_group_without_a_subscription_starts_at_epoch_1(rig: GroupRig) -> None:
    assert HonestMember(rig, "a", topics=()).heartbeat().member_epoch == 1
    assert HonestMember(rig, "b").heartbeat().member_epoch == 2


def test_group_that_became_empty_has_a_target_without_time(rig: GroupRig) -> None:
    """The interval between assignments does not hold up who joins next."""
    rig.settings["consumer.assignment.interval.ms"] = "15000"
    first = HonestMember(rig, "a")
    first.heartbeat()
    first.leave()
    assert rig.group.state.target_epoch == TargetEpoch(3)
    assert HonestMember(rig, "b").heartbeat().assignment == {T: {0, 1, 2, 3}}


def test_partitions_move_only_after_their_owner_confirmed(rig: GroupRig) -> None:
    first, second = HonestMember(rig, "a"), HonestMember(rig, "b")
    first.heartbeat()
    assert second.heartbeat().assignment == {}
    assert rig.group.state_name == "Reconciling"
    told = first.heartbeat()
    # The epoch of a member stands still until it has given up what its target lacks.
    assert (told.member_epoch, told.assignment) == (2, {T: {0, 1}})
    assert second.heartbeat().assignment == {}
    assert first.heartbeat().member_epoch == 3
    assert second.heartbeat().assignment == {T: {2, 3}}
    assert rig.group.state_name == "Stable"


def test_heartbeat_that_changes_nothing_writes_nothing(rig: GroupRig) -> None:
    member = HonestMember(rig, "a")
    settle([member])
    count = len(rig.log)
    assert (
        rig.group.heartbeat(ConsumerHeartbeat(member_id="a", member_epoch=2), rig.now_ms).assignment is None
    )
    assert len(rig.log) == count + 1  # client id and host of this request are others
    rig.group.heartbeat(ConsumerHeartbeat(member_id="a", member_epoch=2), rig.now_ms)
    assert len(rig.log) == count + 1


def test_member_that_waits_for_partitions_asks_again_soon(rig: GroupRig) -> None:
    rig.settings["consumer.assignment.interval.ms"] = "1000"
    first, second = HonestMember(rig, "a"), HonestMember(rig, "b")
    assert first.heartbeat().heartbeat_interval_ms == 5_000
    # The next assignment comes later, and then the first member has to give up partitions.
    assert second.heartbeat().heartbeat_interval_ms == 500
    rig.advance(1_000)
    assert second.heartbeat().heartbeat_interval_ms == 500
    first.heartbeat()
    assert first.heartbeat().heartbeat_interval_ms == 5_000
    assert second.heartbeat().heartbeat_interval_ms == 5_000


def test_lost_response_is_repeated(rig: GroupRig) -> None:
    """A member that did not get its new epoch sends the old one again, with what it owned then."""
    member = HonestMember(rig, "a")
    member.heartbeat()
    member.heartbeat()
    rig.set_topics({"t": 6})
    before = member.request()
    first = rig.group.heartbeat(before, rig.now_ms)
    assert first.member_epoch == 3
    assert rig.group.heartbeat(before, rig.now_ms).assignment == {T: set(range(6))}


@pytest.mark.parametrize("epoch", [1, 2, 4])
def test_wrong_epoch_is_fenced(rig: GroupRig, epoch: int) -> None:
    member = HonestMember(rig, "a")
    member.heartbeat()
    rig.set_topics({"t": 6})
    member.heartbeat()
    with rejected(ErrorCode.FENCED_MEMBER_EPOCH):
        rig.group.heartbeat(ConsumerHeartbeat(member_id="a", member_epoch=epoch), rig.now_ms)


def test_unknown_member_is_rejected(rig: GroupRig) -> None:
    HonestMember(rig, "a").heartbeat()
    for epoch in (1, -1):
        with rejected(ErrorCode.UNKNOWN_MEMBER_ID):
            rig.group.heartbeat(ConsumerHeartbeat(member_id="b", member_epoch=epoch), rig.now_ms)


def test_full_group_rejects_a_new_member() -> None:
    rig = GroupRig(config=Config(group_consumer_max_size=1))
    rig.set_topics({"t": 4})
    HonestMember(rig, "a").heartbeat()
    with rejected(ErrorCode.GROUP_MAX_SIZE_REACHED):
        HonestMember(rig, "b").heartbeat()
    HonestMember(rig, "a").heartbeat()


def test_member_that_leaves_frees_its_partitions(rig: GroupRig) -> None:
    first, second = HonestMember(rig, "a"), HonestMember(rig, "b")
    settle([first, second])
    settle([first, second])
    assert second.leave().member_epoch == -1
    assert first.heartbeat().assignment == {T: {0, 1, 2, 3}}
    assert first.leave().member_epoch == -1
    assert rig.group.state_name == "Empty"


def test_silent_member_is_removed_after_its_session(rig: GroupRig) -> None:
    member = HonestMember(rig, "a")
    member.heartbeat()
    rig.advance(30_000)
    member.heartbeat()
    rig.advance(44_999)
    assert rig.group.state.members
    rig.advance(1)
    assert not rig.group.state.members
    with rejected(ErrorCode.UNKNOWN_MEMBER_ID):
        member.heartbeat()


def test_member_that_keeps_revoked_partitions_is_removed(rig: GroupRig) -> None:
    first, second = HonestMember(rig, "a"), HonestMember(rig, "b")
    first.heartbeat()
    first.heartbeat()
    second.heartbeat()
    for _ in range(4):
        # It sends heartbeats in time, but always says that it still owns everything.
        rig.group.heartbeat(first.request(), rig.now_ms)
        second.heartbeat()
        rig.advance(19_000)
    assert "a" not in rig.group.state.members
    with rejected(ErrorCode.UNKNOWN_MEMBER_ID):
        first.heartbeat()
    settle([second])
    assert second.owned == {T: {0, 1, 2, 3}}


def test_static_member_returns_without_a_rebalance(rig: GroupRig) -> None:
    first, other = HonestMember(rig, "a", instance_id="i"), HonestMember(rig, "b")
    settle([first, other])
    settle([first, other])
    epoch, owned = rig.group.state.epoch.epoch, first.owned
    first.leave(-2)
    assert rig.group.state_name == "Reconciling"
    successor = HonestMember(rig, "c", instance_id="i")
    assert successor.heartbeat().assignment == owned
    assert (rig.group.state.epoch.epoch, rig.group.state_name) == (epoch, "Stable")
    with rejected(ErrorCode.FENCED_INSTANCE_ID):
        first.heartbeat()


def test_instance_of_a_present_member_is_not_released(rig: GroupRig) -> None:
    HonestMember(rig, "a", instance_id="i").heartbeat()
    with rejected(ErrorCode.UNRELEASED_INSTANCE_ID):
        HonestMember(rig, "b", instance_id="i").heartbeat()


def test_static_member_that_does_not_return_is_removed(rig: GroupRig) -> None:
    first, other = HonestMember(rig, "a", instance_id="i"), HonestMember(rig, "b")
    settle([first, other])
    first.leave(-2)
    rig.advance(40_000)
    other.heartbeat()
    rig.advance(6_000)
    settle([other])
    assert other.owned == {T: {0, 1, 2, 3}}


def test_topic_that_grows_raises_the_epoch_at_the_next_heartbeat(rig: GroupRig) -> None:
    member = HonestMember(rig, "a")
    settle([member])
    rig.set_topics({"t": 4, "other": 2})
    assert member.heartbeat().member_epoch == 2
    rig.set_topics({"t": 5, "other": 2})
    assert member.heartbeat().assignment == {T: {0, 1, 2, 3, 4}}


def test_new_targets_wait_for_the_assignment_interval(rig: GroupRig) -> None:
    rig.settings["consumer.assignment.interval.ms"] = "1000"
    first, second = HonestMember(rig, "a"), HonestMember(rig, "b")
    first.heartbeat()
    second.heartbeat()
    assert rig.group.state_name == "Assigning"
    rig.advance(999)
    assert rig.group.state_name == "Assigning"
    rig.advance(1)
    assert rig.group.state_name == "Reconciling"


def test_most_members_choose_the_assignor(rig: GroupRig) -> None:
    first, second = HonestMember(rig, "a", assignor="range"), HonestMember(rig, "b")
    first.heartbeat()
    assert rig.group.describe_consumers().assignor == "range"
    second.assignor = "uniform"
    second.heartbeat()
    assert rig.group.describe_consumers().assignor == "uniform"


def test_group_loads_from_its_log(rig: GroupRig) -> None:
    members = [HonestMember(rig, "a", instance_id="i"), HonestMember(rig, "b", topics=(), regex="t.*")]
    settle(members)
    settle(members)
    before = rig.group.describe_consumers()
    rig.restart()
    assert rig.group.describe_consumers() == before
    assert rig.group.state.owners == {(T, 0): "a", (T, 1): "a", (T, 2): "b", (T, 3): "b"}
    rig.advance(45_000)
    assert rig.group.state_name == "Empty"


def test_keys_name_every_record_of_the_group(rig: GroupRig) -> None:
    settle([HonestMember(rig, "a", regex="t.*"), HonestMember(rig, "b")])
    assert {key for key, _value in rig.log} == set(rig.group.record_keys())


@pytest.mark.parametrize("count", range(1, 9))
def test_heartbeat_goes_on_after_an_append_that_failed(rig: GroupRig, count: int) -> None:
    first, second = HonestMember(rig, "a"), HonestMember(rig, "b")
    rig.broken_after = count
    for member in (first, second):
        try:
            member.heartbeat()
        except KafkaError:
            break
    rig.broken_after = None
    rig.restart()
    for member in (first, second):
        member.rejoin()
    settle([first, second])
    assert rig.group.state_name == "Stable"
    assert first.partitions | second.partitions == {(T, number) for number in range(4)}
    assert len(first.partitions) == len(second.partitions)


@pytest.mark.parametrize("count", range(6))
def test_leave_goes_on_after_an_append_that_failed(rig: GroupRig, count: int) -> None:
    first, second = HonestMember(rig, "a"), HonestMember(rig, "b")
    settle([first, second])
    settle([first, second])
    rig.broken_after = len(rig.log) + count
    for _ in range(2):
        with suppress(KafkaError):
            second.leave()
        rig.broken_after = None
        rig.restart()
    settle([first])
    assert first.owned == {T: {0, 1, 2, 3}}


def test_all_members_of_a_large_group_expire_in_parts(rig: GroupRig) -> None:
    members = [HonestMember(rig, f"m{number}") for number in range(REMOVED_AT_ONCE + 1)]
    for member in members:
        member.heartbeat()
    rig.now_ms += 45_000
    rig.group.tick(rig.now_ms)
    assert rig.group.member_count == 1
    assert rig.group.next_deadline_ms() == rig.now_ms
    rig.group.tick(rig.now_ms)
    assert rig.group.state_name == "Empty"


def test_group_config_holds_from_the_next_heartbeat(rig: GroupRig) -> None:
    member = HonestMember(rig, "a")
    settle([member])
    rig.settings["consumer.session.timeout.ms"] = "60000"
    rig.settings["consumer.heartbeat.interval.ms"] = "7000"
    assert member.heartbeat().heartbeat_interval_ms == 7_000
    rig.advance(59_000)
    assert rig.group.member_count == 1
    rig.advance(1_000)
    assert rig.group.is_empty


def test_owned_partitions_that_do_not_exist_have_no_effect(rig: GroupRig) -> None:
    member = HonestMember(rig, "a")
    settle([member])
    odd = {T: frozenset({-1, 0, 2**31 - 1}), b"\xee" * 16: frozenset({-(2**31)})}
    count = len(rig.log)
    assert rig.group.heartbeat(replace(member.request(), owned=odd), rig.now_ms).member_epoch == member.epoch
    assert len(rig.log) == count


def test_very_long_member_id_is_kept(rig: GroupRig) -> None:
    member_id = "m" * 32_767
    settle([HonestMember(rig, member_id)])
    rig.restart()
    assert set(rig.group.state.members) == {member_id}


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
