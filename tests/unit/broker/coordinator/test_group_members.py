"""Look-ups of members by their ids, and the errors of heartbeats."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator.group_members import wrong_epoch
from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.group.consumer.records import ConsumerRecordType, MemberMetadata
from kproc.broker.group.consumer.state import ConsumerGroupState
from kproc.common.errors import ErrorCode, KafkaError


@pytest.fixture
def group() -> ConsumerGroupState:
    """Return a group with the dynamic member m0 and the static member m1."""
    state = ConsumerGroupState("g")
    for member_id, instance_id in (("m0", None), ("m1", "i")):
        metadata = MemberMetadata(client_id="c", client_host="/h", instance_id=instance_id)
        state.apply(RecordKey(ConsumerRecordType.MEMBER, "g", member_id), metadata)
    return state


def test_member_is_found_by_its_ids(group: ConsumerGroupState) -> None:
    assert group.get_member("m0").member_id == "m0"
    assert group.get_member("m1", "i").member_id == "m1"


@pytest.mark.parametrize(
    ("member_id", "instance_id", "code"),
    [
        ("x", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("m1", "x", ErrorCode.UNKNOWN_MEMBER_ID),
        ("m0", "i", ErrorCode.FENCED_INSTANCE_ID),
    ],
)
def test_unknown_or_fenced_member_raises(
    group: ConsumerGroupState, member_id: str, instance_id: str | None, code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as raised:
        group.get_member(member_id, instance_id)
    assert raised.value.code == code


@pytest.mark.parametrize(("epoch", "order"), [(2, "smaller"), (4, "greater")])
def test_wrong_epoch_says_on_which_side_it_is(epoch: int, order: str) -> None:
    error = wrong_epoch("share", epoch, 3)
    assert error.code == ErrorCode.FENCED_MEMBER_EPOCH
    assert f"The share group member has a {order} member epoch ({epoch})" in str(error.message)
