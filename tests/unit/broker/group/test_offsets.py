"""Committed offsets: deleted topics, topic ids, and expiry."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.group.messages import LeavingMember
from kproc.broker.group.records import OffsetKey, decode_record
from kproc.wire.primitives import ZERO_UUID
from tests.support.coordinators import run_steps
from tests.support.group_coordinator_rig import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_offsets_of_subscribed_topics_are_kept(rig: Rig) -> None:
    member_id = rig.settle()
    for topic in ("t", "u"):
        rig.commit(1, topic=topic, member_id=member_id, generation=1)
    rig.log.sync()
    told: list[Any] = []
    keys = [OffsetKey("g", "t", 0), OffsetKey("g", "u", 0), OffsetKey("g", "u", 9)]
    rig.coordinator.offset_requests.delete_offsets(
        "g", keys, lambda code, subscribed: told.append((code, subscribed))
    )
    rig.log.sync()
    assert told == [(0, frozenset({"t"}))]
    assert (rig.offset("t"), rig.offset("u")) == (1, None)


def test_deleted_topic_drops_offsets_and_namesake_gets_none(rig: Rig) -> None:
    rig.commit(1)
    rig.commit(2, topic="u")
    rig.log.sync()
    rig.delete_topic("t", b"n" * 16)
    assert rig.coordinator.offsets.get("g", "t", 0, b"n" * 16) is None
    rig.coordinator.topics_deleted(rig.known_topics())
    run_steps(rig.coordinator)
    rig.log.sync()
    assert (rig.offset("t"), rig.offset("u")) == (None, 2)


def test_topic_deleted_without_coordinator_is_noticed(rig: Rig) -> None:
    rig.commit(1)
    rig.log.sync()
    rig.delete_topic("t")
    rig.make()
    rig.log.sync()
    assert rig.offset() is None
    key, value = rig.log.records[-1]
    assert (decode_record(key, value), value) == ((OffsetKey("g", "t", 0), None), None)


def test_load_drops_leader_epochs_above_the_partitions(rig: Rig) -> None:
    """A consumer waits for metadata with the epoch of its committed offset, and asks the partition for nothing."""
    rig.commit(1, topic="t", leader_epoch=5)
    rig.commit(2, topic="u", leader_epoch=6)
    rig.log.sync()
    rig.make()
    epochs = {}
    for topic in ("t", "u"):
        found = rig.coordinator.offsets.get("g", topic, 0)
        assert found is not None
        epochs[topic] = found.leader_epoch
    assert epochs == {"t": 5, "u": -1}


def test_offsets_that_count_by_name_go_with_their_topic(rig: Rig) -> None:
    rig.commit(7)
    rig.log.sync()
    rig.topics["t"] = b"n" * 16
    rig.make()
    rig.delete_topic("t")
    rig.coordinator.topics_deleted(rig.known_topics())
    run_steps(rig.coordinator)
    rig.log.sync()
    assert rig.offset() is None


def test_offset_without_topic_id_goes_with_a_deleted_name(rig: Rig) -> None:
    """Records from before Kafka 4.1, and those of transactions, name the topic alone."""
    for topic in ("t", "u"):
        rig.commit(7, topic=topic, topic_id=ZERO_UUID)
    rig.log.sync()
    rig.delete_topic("t")
    del rig.topics["u"]
    rig.make()
    rig.log.sync()
    assert (rig.offset("t"), rig.offset("u")) == (None, 7), "nobody deleted u"


HOUR_MS = 3_600_000


def test_simple_consumer_offsets_expire_after_last_commit(rig: Rig) -> None:
    rig.commit(1)
    rig.log.sync()
    rig.pass_ms(HOUR_MS - 1)
    rig.sweep()
    assert rig.offset() == 1
    rig.pass_ms(1)
    rig.sweep()
    assert (rig.offset(), rig.states()) == (None, {})
    rig.make()
    assert rig.states() == {}


def test_offsets_of_a_group_expire_after_it_became_empty(rig: Rig) -> None:
    member_id = rig.settle()
    rig.commit(1, member_id=member_id, generation=1)
    rig.commit(1, topic="u", member_id=member_id, generation=1)
    rig.log.sync()
    for _ in range(4):
        rig.clock.advance_ms(HOUR_MS // 2)
        assert rig.coordinator.heartbeat("g", member_id, None, 1) == 0
    rig.sweep()
    # The group is alive and reads t; what it does not read expires.
    assert (rig.offset("t"), rig.offset("u"), rig.states()) == (1, None, {"g": "Stable"})
    rig.coordinator.leave("g", [LeavingMember(member_id)], lambda result: None)
    rig.log.sync()
    rig.pass_ms(HOUR_MS - 1)
    rig.sweep()
    assert rig.offset() == 1
    rig.pass_ms(1)
    rig.sweep()
    assert (rig.offset(), rig.states()) == (None, {})


def test_an_expiry_that_a_client_set_comes_before_the_brokers(rig: Rig) -> None:
    rig.commit(1, expires=rig.clock.wall_ms() + 10)
    rig.log.sync()
    rig.pass_ms(10)
    rig.sweep()
    assert rig.offset() is None
