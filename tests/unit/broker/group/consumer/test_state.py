"""ConsumerGroupState: members by their ids, and the name of the group's state."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.group.consumer.records import (
    ConsumerRecordType,
    GroupEpoch,
    MemberMetadata,
    MemberPhase,
    MemberState,
    TargetEpoch,
)
from kproc.broker.group.consumer.state import ConsumerGroupState
from kproc.common.errors import ErrorCode, KafkaError


def state_of(*instance_ids: str | None) -> ConsumerGroupState:
    """Return a group with members m0, m1 ..., in epoch 2."""
    state = ConsumerGroupState("g")
    state.apply(RecordKey(ConsumerRecordType.GROUP, "g"), GroupEpoch(2))
    state.apply(RecordKey(ConsumerRecordType.TARGET, "g"), TargetEpoch(2))
    for number, instance_id in enumerate(instance_ids):
        metadata = MemberMetadata(client_id="c", client_host="/h", instance_id=instance_id)
        state.apply(RecordKey(ConsumerRecordType.MEMBER, "g", f"m{number}"), metadata)
        state.apply(RecordKey(ConsumerRecordType.MEMBER_STATE, "g", f"m{number}"), MemberState(2))
    return state


def test_member_is_found_by_its_ids() -> None:
    state = state_of(None, "i")
    assert state.get_member("m0").member_id == "m0"
    assert state.get_member("m1", "i").member_id == "m1"


@pytest.mark.parametrize(
    ("member_id", "instance_id", "code"),
    [
        ("x", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("m1", "x", ErrorCode.UNKNOWN_MEMBER_ID),
        ("m0", "i", ErrorCode.FENCED_INSTANCE_ID),
    ],
)
def test_unknown_or_fenced_member_raises(member_id: str, instance_id: str | None, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as raised:
        state_of(None, "i").get_member(member_id, instance_id)
    assert raised.value.code == code


def test_name_of_the_state_follows_epochs_and_members() -> None:
    state = state_of(None)
    assert (state_of().state_name, state.state_name) == ("Empty", "Stable")
    key = RecordKey(ConsumerRecordType.MEMBER_STATE, "g", "m0")
    state.apply(key, MemberState(2, 1, MemberPhase.UNRELEASED))
    assert state.state_name == "Reconciling"
    state.apply(RecordKey(ConsumerRecordType.GROUP, "g"), GroupEpoch(3))
    assert state.state_name == "Assigning"
