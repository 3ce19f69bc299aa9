"""ClassicState: the view of a group in each state, and when it may be deleted."""

from __future__ import annotations

import msgspec

from kproc.broker.group.classic.group import ClassicGroup
from kproc.broker.group.messages import DescribedMember
from kproc.broker.group.records import GroupSnapshot
from kproc.common.errors import ErrorCode
from tests.support.group_rig import INITIAL_DELAY_MS, SESSION_MS, GroupRig

# Version, topics, user data: of a version that does not exist, with something after it.
SUBSCRIPTION = (
    b"\x00\x09" + b"\x00\x00\x00\x02" + b"\x00\x01a" + b"\x00\x02bb" + b"\xff\xff\xff\xff" + b"owned"
)
READS_A_AND_BB = (("range", SUBSCRIPTION),)


def reloaded(rig: GroupRig, snapshot: GroupSnapshot | None = None) -> ClassicGroup:
    """The group as a successor has it."""
    rig.restore(snapshot or rig.log[-1])
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
    assert (rig.group.protocol_type, rig.group.state_name) == ("", "Empty")
    rig.make_stable()
    assert (rig.group.protocol_type, rig.group.state_name) == ("consumer", "Stable")


# Deletion and expiration.


def test_offset_delete_with_members_needs_consumer_protocol(rig: GroupRig) -> None:
    assert rig.group.offset_delete_refusal() == ErrorCode.NONE
    members = rig.make_stable(protocol_type="connect")
    assert rig.group.offset_delete_refusal() == ErrorCode.NON_EMPTY_GROUP
    rig.leave(*members)
    assert rig.group.offset_delete_refusal() == ErrorCode.NONE
    rig.make_stable()
    assert rig.group.offset_delete_refusal() == ErrorCode.NONE


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


def test_group_is_unwritten_until_its_first_record(rig: GroupRig) -> None:
    assert rig.group.is_unwritten
    rig.join("stranger")
    assert rig.group.is_unwritten
    rig.leave(*rig.make_stable(1))
    assert rig.group.is_empty
    assert not rig.group.is_unwritten
