"""What others see of a group, what outlives its coordinator, and its two ends."""

from __future__ import annotations

import msgspec
import pytest

from kproc.broker.group.classic.group import ClassicGroup
from kproc.broker.group.classic.subscription import subscribed_topics, topics_of_all
from kproc.broker.group.messages import DescribedMember, GroupOverview
from kproc.broker.group.records import GroupSnapshot
from kproc.common.errors import ErrorCode, ProtocolError
from tests.support.group_rig import INITIAL_DELAY_MS, SESSION_MS, GroupRig

# Version, topics, user data: of a version that does not exist, with something after it.
SUBSCRIPTION = (
    b"\x00\x09" + b"\x00\x00\x00\x02" + b"\x00\x01a" + b"\x00\x02bb" + b"\xff\xff\xff\xff" + b"owned"
)
READS_A_AND_BB = (("range", SUBSCRIPTION),)
READS_C = (("range", b"\x00\x00" + b"\x00\x00\x00\x01" + b"\x00\x01c"),)


@pytest.fixture
def rig() -> GroupRig:
    return GroupRig()


def reloaded(rig: GroupRig, snapshot: GroupSnapshot | None = None) -> ClassicGroup:
    """The group as a successor has it."""
    rig.group = ClassicGroup.restore(snapshot or rig.log[-1], rig.environment, rig.now_ms)
    return rig.group


# DescribeGroups and ListGroups.


def test_protocol_and_metadata_are_shown_of_a_stable_group_only(rig: GroupRig) -> None:
    members = rig.make_stable()
    stable = rig.group.describe()
    assert (stable.group_id, stable.state, stable.protocol_type, stable.protocol_name) == (
        "g",
        "Stable",
        "consumer",
        "range",
    )
    assert stable.members[1] == DescribedMember(members[1], None, "c", "/127.0.0.1", b"r", b"a1")
    rig.join()
    preparing = rig.group.describe()
    assert (preparing.state, preparing.protocol_name) == ("PreparingRebalance", "")
    assert [(each.metadata, each.assignment) for each in preparing.members] == [
        (b"", b"a0"),
        (b"", b"a1"),
        (b"", b""),
    ]


def test_names_of_all_states(rig: GroupRig) -> None:
    seen = [rig.state]
    join = rig.join()
    seen.append(rig.state)
    rig.pass_ms(INITIAL_DELAY_MS)
    seen.append(rig.state)
    rig.sync_all([join.value.member_id])
    seen.append(rig.state)
    rig.group.kill()
    seen.append(rig.state)
    assert seen == ["Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"]


def test_overview(rig: GroupRig) -> None:
    assert rig.group.overview() == GroupOverview("g", "", "Empty", "classic")
    rig.make_stable()
    assert rig.group.overview() == GroupOverview("g", "consumer", "Stable", "classic")


# What the group reads.


def test_topics_of_a_subscription_of_any_version() -> None:
    assert subscribed_topics(SUBSCRIPTION) == ["a", "bb"]
    assert topics_of_all([SUBSCRIPTION, READS_C[0][1]]) == {"a", "bb", "c"}
    assert topics_of_all([]) == frozenset()


@pytest.mark.parametrize(
    "damaged",
    [
        *(SUBSCRIPTION[:size] for size in range(13)),
        b"\xff\xff" + SUBSCRIPTION[2:],
        b"\x00\x00\xff\xff\xff\xff",
        b"\x00\x00\x7f\xff\xff\xff" + b"\x00\x00" * 10,
        b"\x00\x00\x00\x00\x00\x01\xff\xff",
        b"\x00\x00\x00\x00\x00\x01\x00\x01\xff",
    ],
)
def test_damaged_subscriptions_are_refused(damaged: bytes) -> None:
    with pytest.raises(ProtocolError):
        subscribed_topics(damaged)
    assert topics_of_all([SUBSCRIPTION, damaged]) is None


def test_a_consumer_group_is_subscribed_to_its_members_topics(rig: GroupRig) -> None:
    joins = [rig.join(protocols=READS_A_AND_BB), rig.join(protocols=READS_C)]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    assert [rig.group.is_subscribed_to(topic) for topic in ("a", "bb", "c", "d")] == [True, True, True, False]
    rig.leave(*(join.value.member_id for join in joins))
    assert not rig.group.is_subscribed_to("a")


def test_the_topics_are_those_of_the_present_generation(rig: GroupRig) -> None:
    (member,) = rig.make_stable(1, protocols=READS_A_AND_BB)
    rig.join(member, protocols=READS_C)
    assert rig.group.state.subscribed_topics == {"c"}


def test_group_with_unreadable_subscription_blocks_all_topics(rig: GroupRig) -> None:
    rig.make_stable(1)
    assert rig.group.is_subscribed_to("a")


def test_other_groups_are_subscribed_to_nothing(rig: GroupRig) -> None:
    assert not rig.group.is_subscribed_to("a")
    rig.make_stable(1, protocol_type="connect", protocols=READS_A_AND_BB)
    assert not rig.group.is_subscribed_to("a")


# Deletion and expiration.


def test_only_an_empty_group_can_be_deleted(rig: GroupRig) -> None:
    assert rig.group.delete_refusal() == ErrorCode.NONE
    members = rig.make_stable()
    assert rig.group.delete_refusal() == ErrorCode.NON_EMPTY_GROUP
    rig.leave(*members)
    assert rig.group.delete_refusal() == ErrorCode.NONE
    rig.group.kill()
    assert rig.group.delete_refusal() == ErrorCode.GROUP_ID_NOT_FOUND


def test_offset_delete_with_members_needs_consumer_protocol(rig: GroupRig) -> None:
    assert rig.group.offset_delete_refusal() == ErrorCode.NONE
    members = rig.make_stable(protocol_type="connect")
    assert rig.group.offset_delete_refusal() == ErrorCode.NON_EMPTY_GROUP
    rig.leave(*members)
    assert rig.group.offset_delete_refusal() == ErrorCode.NONE
    rig.make_stable()
    assert rig.group.offset_delete_refusal() == ErrorCode.NONE
    rig.group.kill()
    assert rig.group.offset_delete_refusal() == ErrorCode.GROUP_ID_NOT_FOUND


def test_when_offsets_begin_to_expire(rig: GroupRig) -> None:
    """KIP-211."""
    group = rig.group
    assert group.offset_expires_from_ms("a", 7) == 7  # Never had members: since the commit.
    (member,) = rig.make_stable(1, protocols=READS_A_AND_BB)
    assert group.offset_expires_from_ms("a", 7) is None
    assert group.offset_expires_from_ms("d", 7) == 7  # It no longer reads it.
    rig.join(requires_known_member_id=True)
    rig.join(member, protocols=READS_A_AND_BB)
    assert group.offset_expires_from_ms("d", 7) is None  # Not while it rebalances.
    rig.clock.advance_ms(1)
    rig.leave(member)
    rig.pass_ms(SESSION_MS)
    assert rig.state == "Empty"
    assert group.offset_expires_from_ms("a", 7) == group.state.current_state_timestamp_ms > 7


def test_offsets_of_other_groups_with_members_do_not_expire(rig: GroupRig) -> None:
    rig.make_stable(1, protocol_type="connect", protocols=(("eager", b""),))
    assert rig.group.offset_expires_from_ms("a", 7) is None


def test_group_of_old_records_has_no_empty_since_time(rig: GroupRig) -> None:
    rig.leave(*rig.make_stable(1))
    group = reloaded(rig, msgspec.structs.replace(rig.log[-1], current_state_timestamp_ms=-1))
    assert group.offset_expires_from_ms("a", 7) == 7


def test_what_was_never_written_has_no_history(rig: GroupRig) -> None:
    assert rig.group.has_no_history
    rig.join("stranger")
    assert rig.group.has_no_history
    rig.leave(*rig.make_stable(1))
    assert rig.group.is_empty
    assert not rig.group.has_no_history


# Snapshots.


def test_a_stable_group_comes_back_as_it_was(rig: GroupRig) -> None:
    members = rig.make_stable(3, static=True, protocols=READS_A_AND_BB)
    before = rig.group.describe()
    group = reloaded(rig)
    assert group.describe() == before
    assert group.snapshot() == rig.log[-1]
    assert (group.roster.leader, group.generation) == (members[0], 1)
    assert group.state.subscribed_topics == {"a", "bb"}
    for member in members:
        assert rig.heartbeat(member) == ErrorCode.NONE
        assert rig.join(group_instance_id="i2").value.generation == 1
        break


def test_the_leader_stays_the_leader(rig: GroupRig) -> None:
    members = rig.make_stable()
    reloaded(rig, msgspec.structs.replace(rig.log[-1], leader=members[1]))
    assert rig.group.roster.leader == members[1]


def test_its_members_have_a_whole_session_to_be_heard_of(rig: GroupRig) -> None:
    members = rig.make_stable()
    snapshot = rig.log[-1]
    rig.clock.advance_ms(100 * SESSION_MS)
    reloaded(rig, snapshot)
    rig.pass_ms(SESSION_MS - 1)
    assert rig.heartbeat(members[1]) == ErrorCode.NONE
    rig.pass_ms(1)
    assert list(rig.group.roster.members) == [members[1]]


def test_an_empty_group_comes_back_empty(rig: GroupRig) -> None:
    rig.leave(*rig.make_stable())
    emptied_ms = rig.group.state.current_state_timestamp_ms
    rig.clock.advance_ms(1_000)
    group = reloaded(rig)
    assert (group.state_name, group.generation) == ("Empty", 2)
    assert group.state.current_state_timestamp_ms == emptied_ms
    assert group.next_deadline_ms() is None
    assert not group.has_no_history
    assert group.snapshot() == rig.log[-1]


def test_only_the_chosen_protocol_comes_back(rig: GroupRig) -> None:
    both = (("range", b"r"), ("sticky", b"s"))
    leader, follower = rig.make_stable(2, protocols=both)
    reloaded(rig)
    rig.join(follower, protocols=both)
    assert rig.state == "PreparingRebalance"
    rig.join(leader, protocols=both)
    assert rig.state == "CompletingRebalance"


def test_a_value_of_version_0_knows_no_rebalance_timeout(rig: GroupRig) -> None:
    rig.make_stable(1)
    (member,) = rig.log[-1].members
    old = msgspec.structs.replace(member, rebalance_timeout_ms=-1)
    group = reloaded(rig, msgspec.structs.replace(rig.log[-1], members=(old,)))
    assert group.roster.rebalance_timeout_ms == SESSION_MS


def test_foreign_records_make_a_working_group(rig: GroupRig) -> None:
    members = rig.make_stable()
    snapshot = rig.log[-1]
    group = reloaded(rig, msgspec.structs.replace(snapshot, leader="gone"))
    assert group.roster.leader == members[0]
    group = reloaded(rig, msgspec.structs.replace(snapshot, protocol_name=None))
    assert (group.state_name, group.generation, len(group.roster)) == ("Empty", 1, 0)


# The two ends.


def test_whoever_waits_is_told_that_the_coordinator_changed(rig: GroupRig) -> None:
    members = rig.make_stable()
    joins = [rig.join(), rig.join(members[0])]
    rig.group.resign()
    assert [join.code for join in joins] == [ErrorCode.NOT_COORDINATOR] * 2
    assert joins[1].value.member_id == members[0]
    assert (rig.state, rig.group.next_deadline_ms()) == ("Dead", None)
    rig.group.tick(rig.now_ms + 1_000_000)


def test_also_who_waits_for_a_write(rig: GroupRig) -> None:
    joins = [rig.join(), rig.join()]
    rig.pass_ms(2 * INITIAL_DELAY_MS)
    members = [join.value.member_id for join in joins]
    rig.holds_writes = True
    syncs = [rig.sync(member) for member in members]
    rig.group.resign()
    assert [sync.code for sync in syncs] == [ErrorCode.NOT_COORDINATOR] * 2
    rig.write(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # Nobody is told twice.
    assert rig.state == "Dead"


def test_also_who_left_last(rig: GroupRig) -> None:
    members = rig.make_stable()
    rig.holds_writes = True
    leave = rig.leave(*members)
    rig.group.resign()
    assert (leave.code, leave.value.members) == (ErrorCode.NOT_COORDINATOR, ())
    rig.write()


def test_also_who_restarts(rig: GroupRig) -> None:
    rig.make_stable(static=True)
    rig.holds_writes = True
    join = rig.join(group_instance_id="i1")
    rig.group.resign()
    assert join.code == ErrorCode.NOT_COORDINATOR
    rig.write(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_a_deleted_group_lets_its_last_write_report(rig: GroupRig) -> None:
    members = rig.make_stable()
    rig.holds_writes = True
    leave = rig.leave(*members)
    rig.group.kill()
    assert leave.is_open
    rig.write()
    assert leave.code == ErrorCode.NONE
