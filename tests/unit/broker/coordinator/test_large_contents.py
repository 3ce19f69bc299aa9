"""Long subscriptions of members of all group protocols are shared, and have a limit together."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator import large_contents
from kproc.broker.coordinator.large_contents import LargeContents, SubscriptionContent
from kproc.broker.group.classic.subscription import CONSUMER_PROTOCOL_TYPE
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.consumer_groups import GroupRig, HonestMember
from tests.support.group_coordinator_rig import run_steps
from tests.support.mixed_groups import classic_group, consumer, mixed_rig
from tests.support.share_groups import ShareRig


def names(prefix: str) -> tuple[str, ...]:
    """Ten names, which count as about 1,300 bytes. Two lists of them have room, and three have not."""
    return tuple(f"{prefix}{number}" for number in range(10))


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_contents, "LARGE_BYTES", 1_000)
    monkeypatch.setattr(large_contents, "LARGE_BYTES_MAX", 3_000)


def too_large() -> pytest.RaisesContext[KafkaError]:
    return pytest.raises(KafkaError, check=lambda error: error.code == ErrorCode.GROUP_MAX_SIZE_REACHED)


def test_equal_contents_count_once_until_the_last_is_released() -> None:
    subscriptions = LargeContents()
    a, b, c = (SubscriptionContent(names(prefix)) for prefix in "abc")
    assert subscriptions.share(SubscriptionContent(("t",))) is None
    first, second = subscriptions.share(a), subscriptions.share(SubscriptionContent(names("a")))
    assert first is second is not None
    other = subscriptions.share(b)
    assert not subscriptions.has_room(c)
    assert subscriptions.has_room(c, replaced=other)
    # An unusual character makes a string four times as large.
    assert SubscriptionContent(("\N{OWL}" + "n" * 300,)).size > SubscriptionContent(("n" * 1_200,)).size
    assert subscriptions.has_room(a, b, SubscriptionContent(("t",) * 5))
    with too_large():
        subscriptions.check_room(c)
    # More than the limit is loaded from a log.
    assert subscriptions.share(c) is not None
    first = None
    assert not subscriptions.has_room(c)
    second = None
    assert subscriptions.has_room(c)


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
    assert rig.environment.cluster.large_contents.has_room(
        *map(SubscriptionContent, map(names, ("x", "y")))
    )


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
        assert rig.cluster.large_contents.has_room(*(SubscriptionContent(names(each)) for each in "xy"))
        rig.make()
    epoch = rig.group().state.members["b"].state.epoch
    assert rig.heartbeat("b", epoch, topic_names=names("d")).error_code == 0
    assert rig.heartbeat("e", 0, topic_names=names("e")).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    rig.heartbeat("b", -1)
    assert rig.heartbeat("e", 0, topic_names=names("e")).error_code == 0


def test_conversion_of_a_classic_group_needs_room(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = mixed_rig()
    classic_group(rig)
    monkeypatch.setattr(large_contents, "LARGE_BYTES", 100)
    monkeypatch.setattr(large_contents, "LARGE_BYTES_MAX", 200)
    assert consumer(rig, "n").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    described = rig.coordinator.describe("g")
    assert described is not None
    assert described.protocol_type == CONSUMER_PROTOCOL_TYPE
    monkeypatch.setattr(large_contents, "LARGE_BYTES_MAX", 2_000)
    assert consumer(rig, "n").error_code == ErrorCode.NONE
