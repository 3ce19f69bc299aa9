"""Long subscriptions of members of all group protocols are shared, and have a limit together."""

from __future__ import annotations

from sys import getsizeof

import pytest

from kproc.broker.coordinator import member_memory
from kproc.broker.coordinator.member_memory import PARTITION_BYTES, MemberMemory, SubscriptionContent
from kproc.broker.group.classic.subscription import CONSUMER_PROTOCOL_TYPE
from kproc.broker.group.consumer.messages import ConsumerHeartbeat
from kproc.broker.share.membership.messages import ShareHeartbeat
from kproc.broker.streams.topology import Subtopology, Topology
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.consumer_groups import GroupRig, HonestMember, settle
from tests.support.group_coordinator_rig import run_steps
from tests.support.mixed_groups import classic_group, consumer, mixed_rig
from tests.support.share_groups import ShareRig


def names(prefix: str) -> tuple[str, ...]:
    """Ten names, which count as about 1,300 bytes, and their member has 200 more. Two have room, and three have not."""
    return tuple(f"{prefix}{number}" for number in range(10))


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_memory, "SMALL_BYTES", 1_000)
    monkeypatch.setattr(member_memory, "MEMBER_BYTES", 0)
    monkeypatch.setattr(member_memory, "GROUP_BYTES", 0)
    monkeypatch.setattr(member_memory, "MEMBERS_BYTES_MAX", 4_000)


def too_large() -> pytest.RaisesContext[KafkaError]:
    return pytest.raises(KafkaError, check=lambda error: error.code == ErrorCode.GROUP_MAX_SIZE_REACHED)


def test_equal_contents_count_once_until_the_last_is_released() -> None:
    memory = MemberMemory()
    a, b, c = (SubscriptionContent(names(prefix)) for prefix in "abc")
    memory.limit.bytes_max = 2 * a.size + 10
    small = memory.hold(SubscriptionContent(("t",)))
    assert memory.limit.used_bytes == 0
    first, second = memory.hold(a), memory.hold(SubscriptionContent(names("a")))
    assert first.content is second.content is a
    assert memory.limit.used_bytes == a.size
    other = memory.hold(b)
    assert not memory.has_room(c)
    assert memory.has_room(c, replaced=other)
    # The second member keeps the content that it shares, so its replacement by the first one adds one. A member that
    # grows may use the reserve, up to twice the limit.
    assert memory.has_room(c, replaced=first)
    memory.limit.bytes_max = a.size
    assert not memory.has_room(c, replaced=first)
    assert memory.has_room(c, replaced=other)
    memory.limit.bytes_max = 2 * a.size + 10
    # An unusual character makes a string four times as large.
    assert SubscriptionContent(("\N{OWL}" + "n" * 300,)).size > SubscriptionContent(("n" * 1_200,)).size
    assert memory.has_room(a, b, SubscriptionContent(("t",) * 5))
    with too_large():
        memory.check_room(c)
    # More than the limit is loaded from a log.
    third = memory.hold(c)
    assert memory.limit.used_bytes == 3 * a.size
    del first, third
    assert not memory.has_room(c)
    del second
    assert memory.has_room(c)
    del other, small
    assert memory.limit.used_bytes == 0


def test_each_member_counts_and_one_that_does_not_grow_has_room() -> None:
    memory = MemberMemory()
    memory.limit.bytes_max = 1_000
    short = SubscriptionContent(("t",))
    held = [memory.hold(short, 300) for _ in range(3)]
    assert not memory.has_room(short, own_bytes=300)
    memory.limit.bytes_max = 450
    assert memory.has_room(short, own_bytes=300, replaced=held[0])
    assert not memory.has_room(short, own_bytes=301, replaced=held[0])
    memory.limit.accept_load()
    assert memory.has_room(short, own_bytes=301, replaced=held[0])
    assert not memory.has_room(short, own_bytes=1)
    # An assignment stays with its member, so it is no room for a longer subscription.
    held[0].count_assignment(5_000)
    assert memory.has_room(short, own_bytes=300, replaced=held[0])
    assert not memory.has_room(short, own_bytes=310, replaced=held[0])
    held.clear()
    assert memory.limit.used_bytes == 0


def test_assignment_counts_in_place_of_the_former_one() -> None:
    memory = MemberMemory()
    held = memory.hold(SubscriptionContent(), 10)
    for size, counted in ((1_000, 0), (2_000, 2_000), (1_500, 1_500), (0, 0)):
        held.count_assignment(size)
        assert memory.limit.used_bytes == 10 + counted


def join(rig: ShareRig, protocol: str, group_id: str) -> None:
    """Add a member to a new group."""
    if protocol == "classic":
        rig.join(group_id)
    elif protocol == "streams":
        topology = Topology(1, (Subtopology(subtopology_id="0", source_topics=("t",)),))
        rig.streams_heartbeat("m", 0, group_id, topology=topology, process_id="p", rebalance_timeout_ms=60_000)
    elif protocol == "share":
        heartbeat = ShareHeartbeat(member_id="m", member_epoch=0, topic_names=("t",))
        rig.coordinator.share_requests.heartbeat(group_id, heartbeat, lambda _result: None)
    else:
        full = ConsumerHeartbeat(
            member_id="m", member_epoch=0, topic_names=("t",), rebalance_timeout_ms=60_000, owned={}
        )
        rig.coordinator.consumer_heartbeat(group_id, full, lambda _result: None)


@pytest.mark.parametrize("protocol", ["classic", "consumer", "share", "streams"])
def test_id_of_a_group_counts_for_its_member(protocol: str) -> None:
    """An id can have 32 kB, and 120 kB of memory if one of its characters is unusual."""
    rig = ShareRig()
    limit = rig.cluster.member_memory.limit
    limit.bytes_max = 100_000
    join(rig, protocol, "g" * 20_000)
    # Once for the group, which stays after its members have left, and once for the member.
    assert 40_000 < limit.used_bytes < 45_000
    join(rig, protocol, "\N{OWL}" + "h" * 20_000)
    assert 40_000 < limit.used_bytes < 45_000


@pytest.mark.parametrize("protocol", ["classic", "consumer", "share", "streams"])
def test_empty_group_counts_until_it_is_removed(protocol: str) -> None:
    rig = ShareRig()
    limit = rig.cluster.member_memory.limit
    limit.bytes_max = 100_000
    join(rig, protocol, "g" * 20_000)
    rig.run_all()
    rig.pass_ms(3_600_000)
    rig.run_all()
    # A streams group keeps its topology, which counts with the id of the group.
    empty = limit.used_bytes
    assert 20_000 <= empty < 21_000 if protocol != "streams" else 40_000 < empty < 42_000
    rig.coordinator.resign()
    run_steps(rig.coordinator)
    assert limit.used_bytes == 0
    rig.make()
    # A streams group that was loaded has its topology once, not also the copy that is fitted to the topics.
    assert empty - 1_000 < limit.used_bytes <= empty
    rig.coordinator.deletion.delete("g" * 20_000, lambda _code: None)
    rig.run_all()
    run_steps(rig.coordinator)
    rig.run_all()
    assert not rig.coordinator._groups
    assert limit.used_bytes == 0


def test_consumer_group_rejects_names_beyond_the_limit() -> None:
    rig = GroupRig()
    a, b, c = (HonestMember(rig, member_id, names(member_id)) for member_id in "abc")
    a.heartbeat()
    b.heartbeat()
    before = len(rig.log)
    with too_large():
        c.heartbeat()
    assert len(rig.log) == before
    c.topics = names("a")
    c.heartbeat()
    for _ in range(2):
        metadata = [member.metadata for member in rig.group.state.members.values()]
        assert [each.topic_names for each in metadata if each] == [names("a"), names("b"), names("a")]
        assert metadata[0]
        assert metadata[2]
        assert metadata[0].topic_names is metadata[2].topic_names
        rig.restart()
    a.leave()
    b.topics = names("d")  # In the place of its own names.
    b.heartbeat()
    a.topics = names("e")
    with too_large():
        a.rejoin()
    c.leave()
    a.rejoin()
    rig.advance(60_000)
    assert rig.group.is_empty
    assert rig.environment.cluster.member_memory.has_room(
        *map(SubscriptionContent, map(names, ("x", "y")))
    )


def test_target_of_a_consumer_group_counts_and_is_never_rejected() -> None:
    rig = GroupRig()
    limit = rig.environment.cluster.member_memory.limit
    member = HonestMember(rig, "a", ("t0",))
    member.heartbeat()
    before = limit.used_bytes
    rig.set_topics({"t0": 20, "t1": 10})
    member.heartbeat()
    assert limit.used_bytes == before + 20 * PARTITION_BYTES
    limit.bytes_max = 0
    member.topics = ("t0", "t1")
    member.heartbeat()
    rig.advance(5_000)
    settle([member])
    assert limit.used_bytes == before + 30 * PARTITION_BYTES
    rig.restart()
    assert limit.used_bytes == before + 30 * PARTITION_BYTES
    with too_large():
        HonestMember(rig, "b", ("t0",)).heartbeat()
    member.leave()
    assert limit.used_bytes < 100  # Only the empty group.


def test_topics_of_an_expression_count() -> None:
    rig = GroupRig()
    limit = rig.environment.cluster.member_memory.limit
    rig.set_topics({f"t{number}": 1 for number in range(100)})
    member = HonestMember(rig, "a", (), regex="t.*")
    settle([member])
    names = rig.group.state.expressions["t.*"].topic_names
    assert limit.used_bytes > getsizeof(names) + 100 * PARTITION_BYTES
    member.leave()
    assert limit.used_bytes < 100


def test_target_of_a_share_group_counts() -> None:
    rig = ShareRig({"t": 20})
    rig.configs["share.assignment.interval.ms"] = "0"
    epoch = rig.heartbeat("m", 0, topic_names=("t",)).member_epoch
    rig.heartbeat("m", epoch)
    used = rig.cluster.member_memory.limit.used_bytes
    assert rig.group().state.target_of("m")
    assert 0 < used - 20 * PARTITION_BYTES < 1_000


def test_share_group_rejects_names_beyond_the_limit() -> None:
    rig = ShareRig()
    a, b = (rig.heartbeat(member_id, 0, topic_names=names(member_id)) for member_id in "ab")
    refused = rig.heartbeat("c", 0, topic_names=names("c"))
    assert (a.error_code, b.error_code, refused.error_code) == (0, 0, ErrorCode.GROUP_MAX_SIZE_REACHED)
    assert rig.heartbeat("c", 0, topic_names=names("a")).error_code == 0
    for _ in range(2):
        subscriptions = [rig.group().state.members[each].subscription for each in "abc"]
        assert subscriptions[0]
        assert subscriptions[2]
        assert subscriptions[0].topic_names is subscriptions[2].topic_names
        rig.coordinator.resign()
        run_steps(rig.coordinator)
        assert rig.cluster.member_memory.has_room(*(SubscriptionContent(names(each)) for each in "xy"))
        rig.make()
    epoch = rig.group().state.members["b"].state.epoch
    assert rig.heartbeat("b", epoch, topic_names=names("d")).error_code == 0
    assert rig.heartbeat("e", 0, topic_names=names("e")).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    rig.heartbeat("b", -1)
    assert rig.heartbeat("e", 0, topic_names=names("e")).error_code == 0


def test_conversion_of_a_classic_group_needs_room(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = mixed_rig()
    classic_group(rig)
    monkeypatch.setattr(member_memory, "SMALL_BYTES", 100)
    limit = rig.cluster.member_memory.limit
    limit.bytes_max = limit.used_bytes
    assert consumer(rig, "n").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    described = rig.coordinator.describe("g")
    assert described is not None
    assert described.protocol_type == CONSUMER_PROTOCOL_TYPE
    limit.bytes_max += 5_000
    assert consumer(rig, "n").error_code == ErrorCode.NONE
