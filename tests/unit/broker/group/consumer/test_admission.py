"""Members of a consumer group that join or return while something fails, and changes that need a new epoch."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import force_setattr

from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.group.consumer.admission import is_new_epoch_needed
from kproc.broker.group.consumer.records import CONSUMER_RECORDS, ConsumerRecordType, MemberMetadata
from kproc.broker.group.consumer.state import ConsumerGroupState
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.cases import in_one_test
from tests.support.consumer_groups import GroupRig, HonestMember, settle, topic_id

T = topic_id("t")


@pytest.fixture
def rig() -> GroupRig:
    """Return a group whose static member, with all partitions, is away."""
    rig = GroupRig()
    rig.set_topics({"t": 4})
    member = HonestMember(rig, "a", instance_id="seat")
    settle([member])
    member.leave(-2)
    return rig


def test_rejected_successor_leaves_the_static_member(rig: GroupRig) -> None:
    """Its expression is invalid. Without the write the member would have no session any more, and never be removed."""

    def reject(*_args: object) -> frozenset[str]:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, "invalid")

    force_setattr(rig.environment.cluster, "match_topics", reject)
    before = len(rig.log)
    with pytest.raises(KafkaError, check=lambda error: error.code == ErrorCode.INVALID_REGULAR_EXPRESSION):
        HonestMember(rig, "b", instance_id="seat", topics=(), regex="(").heartbeat()
    assert (len(rig.log), list(rig.group.state.members)) == (before, ["a"])
    rig.advance(45_000)
    assert rig.group.state_name == "Empty"


def test_replacement_of_a_static_member_is_one_write(rig: GroupRig) -> None:
    before = len(rig.log)
    rig.broken_after = before + 6
    with pytest.raises(KafkaError):
        HonestMember(rig, "b", instance_id="seat", topics=("t", "u")).heartbeat()
    assert (len(rig.log), list(rig.group.state.members)) == (before, ["a"])
    rig.broken_after = None
    result = HonestMember(rig, "b", instance_id="seat").heartbeat()
    assert (result.member_epoch, result.assignment) == (2, {T: frozenset({0, 1, 2, 3})})
    kinds = ConsumerRecordType
    written = [(CONSUMER_RECORDS.decode(*record)[0], record[1]) for record in rig.log[before:]]
    assert [(key.record_type, key.name, value is None) for key, value in written] == [
        (kinds.MEMBER_STATE, "a", True),
        (kinds.MEMBER_TARGET, "a", True),
        (kinds.MEMBER, "a", True),
        (kinds.MEMBER, "b", False),
        (kinds.MEMBER_TARGET, "b", False),
        (kinds.MEMBER_STATE, "b", False),
        (kinds.MEMBER_STATE, "b", False),
    ]
    assert rig.group.state.instance_ids == {"seat": "b"}


def test_member_without_an_assignment_has_a_session() -> None:
    """The write of its target fails, and it does not return."""
    rig = GroupRig()
    rig.set_topics({"t": 4})
    rig.broken_after = 2
    with pytest.raises(KafkaError):
        HonestMember(rig, "a").heartbeat()
    rig.broken_after = None
    assert list(rig.group.state.members) == ["a"]
    rig.advance(45_000)
    assert rig.group.state_name == "Empty"


def test_member_that_gets_an_instance_id_keeps_the_epoch() -> None:
    """It joins again with the same subscription, so that nothing has to be assigned anew."""
    rig = GroupRig()
    rig.set_topics({"t": 4})
    member = HonestMember(rig, "a")
    settle([member])
    before = rig.group.state.epoch.epoch
    result = HonestMember(rig, "a", instance_id="seat", assignor=None).heartbeat()
    assert (result.member_epoch, result.assignment) == (before, {T: frozenset({0, 1, 2, 3})})
    assert rig.group.state.instance_ids == {"seat": "a"}


@in_one_test(
    ("before", "updated", "is_needed"),
    [
        (None, {}, False),
        (None, {"topic_names": ("t",)}, True),
        ({"topic_names": ("t", "u")}, {"topic_names": ("u", "t")}, False),
        ({"topic_names": ("t",)}, {"topic_names": ("t",), "topic_regex": "x"}, True),
        ({"topic_names": ("t",)}, {"topic_names": ("t",), "rack_id": "r"}, False),
        ({"topic_names": ("t",)}, {"topic_names": ("t",), "assignor": "range"}, True),
    ],
)
def test_new_epoch_needs_a_changed_subscription(
    before: dict[str, Any] | None, updated: dict[str, Any], is_needed: bool
) -> None:
    """A change of a member's assignor counts if it changes the assignor that most members prefer."""
    known = None if before is None else MemberMetadata(client_id="c", client_host="/h", **before)
    now = MemberMetadata(client_id="c", client_host="/h", **updated)
    state = ConsumerGroupState("g")
    if known is not None:
        state.apply(RecordKey(ConsumerRecordType.MEMBER, "g", "m"), known)
    after = state.subscriptions.after([] if known is None else [known], [now])
    assert is_new_epoch_needed(state, known, now, after, ("uniform", "range")) is is_needed
