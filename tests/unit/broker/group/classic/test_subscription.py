"""The topics to which a consumer group is subscribed."""

from __future__ import annotations

from collections import deque

import pytest

from kproc.broker.coordinator import member_memory
from kproc.broker.coordinator.member_memory import GroupContent
from kproc.broker.group.classic.group import ClassicGroup
from kproc.broker.group.classic.subscription import SUBSCRIPTIONS_BYTES_MAX, subscribed_topics, topics_of_all
from kproc.common.errors import ErrorCode, ProtocolError
from tests.support.cases import in_one_test
from tests.support.group_rig import INITIAL_DELAY_MS, REBALANCE_MS, GroupRig

# Version, topics, user data: of a version that does not exist, with something after it.
SUBSCRIPTION = (
    b"\x00\x09" + b"\x00\x00\x00\x02" + b"\x00\x01a" + b"\x00\x02bb" + b"\xff\xff\xff\xff" + b"owned"
)
READS_A_AND_BB = (("range", SUBSCRIPTION),)
READS_C = (("range", b"\x00\x00" + b"\x00\x00\x00\x01" + b"\x00\x01c"),)


# What the group reads.


def test_topics_of_a_subscription_of_any_version() -> None:
    assert subscribed_topics(SUBSCRIPTION) == ["a", "bb"]
    assert topics_of_all([SUBSCRIPTION, READS_C[0][1]]) == {"a", "bb", "c"}
    assert topics_of_all([]) == frozenset()


@in_one_test(
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


def test_topics_without_room_block_all_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups subscribe to 100 topics each, which take about 10 kB, and 400 bytes in the metadata."""
    monkeypatch.setattr(member_memory, "SMALL_BYTES", 1_000)
    monkeypatch.setattr(member_memory, "MEMBER_BYTES", 0)
    monkeypatch.setattr(member_memory, "GROUP_BYTES", 0)
    monkeypatch.setattr(member_memory, "MEMBERS_BYTES_MAX", 15_000)
    names = b"".join(b"\x00\x02%02d" % number for number in range(100))
    protocols = (("range", b"\x00\x00" + b"\x00\x00\x00\x64" + names),)
    rig, other = GroupRig(), GroupRig()
    other.environment.member_memory = rig.environment.member_memory
    other.group = ClassicGroup("other", other.environment)
    (member,) = rig.make_stable(1, protocols=protocols)
    other.make_stable(1, protocols=protocols)
    asked = [group.is_subscribed_to("none") for group in (rig.group, other.group)]
    assert asked == [False, True]
    rig.leave(member)
    rejoined = other.join(protocols=READS_C)
    other.pass_ms(REBALANCE_MS)
    assert rejoined.code == ErrorCode.NONE
    assert not other.group.is_subscribed_to("none")
    rig.make_stable(1, protocols=protocols)
    all_bytes = GroupContent("x", "", 14_000)
    assert not rig.environment.member_memory.has_room(all_bytes)
    deque(rig.group.resign(), maxlen=0)
    assert rig.environment.member_memory.has_room(all_bytes)


def test_group_with_unreadable_subscription_blocks_all_topics(rig: GroupRig) -> None:
    rig.make_stable(1)
    assert rig.group.is_subscribed_to("a")


def test_other_groups_are_subscribed_to_nothing(rig: GroupRig) -> None:
    assert not rig.group.is_subscribed_to("a")
    rig.make_stable(1, protocol_type="connect", protocols=READS_A_AND_BB)
    assert not rig.group.is_subscribed_to("a")


def test_large_subscriptions_are_not_read() -> None:
    """One JoinGroup with a megabyte of short names stopped the Handler for 150 ms at the end of its join phase."""
    count = SUBSCRIPTIONS_BYTES_MAX // 4
    metadata = b"\x00\x00" + count.to_bytes(4, "big") + b"\x00\x02bb" * count
    assert topics_of_all([metadata]) is None
    smaller = b"\x00\x00" + (count - 2).to_bytes(4, "big") + b"\x00\x02bb" * (count - 2)
    assert topics_of_all([smaller]) == {"bb"}
    assert topics_of_all([smaller] * 1000) == {"bb"}
