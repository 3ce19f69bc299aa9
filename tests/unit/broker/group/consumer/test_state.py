"""ConsumerGroupState: members, names of states, and replay of partial records in any order (KIP-848)."""

from __future__ import annotations

from kproc.broker.coordinator.member_phase import MemberPhase
from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.group.consumer.records import (
    ConsumerRecordType,
    ConsumerRecordValue,
    ExpressionTopics,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    MemberTarget,
    TargetEpoch,
)
from kproc.broker.group.consumer.state import ConsumerGroupState

T = b"t" * 16


def key(record_type: ConsumerRecordType, name: str = "") -> RecordKey:
    return RecordKey(record_type, "g", name)


def member(*names: str, instance_id: str | None = None) -> MemberMetadata:
    return MemberMetadata(client_id="c", client_host="/h", topic_names=names, instance_id=instance_id)


def owning(epoch: int, *partitions: int) -> MemberState:
    return MemberState(epoch, epoch - 1, owned={T: dict.fromkeys(partitions, epoch)})


def group_of(*member_ids: str) -> ConsumerGroupState:
    state = ConsumerGroupState("g")
    for member_id in member_ids:
        state.apply(key(ConsumerRecordType.MEMBER, member_id), member("t"))
    return state


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


def test_name_of_the_state_follows_epochs_and_members() -> None:
    state = state_of(None)
    assert (state_of().state_name, state.state_name) == ("Empty", "Stable")
    state.apply(key(ConsumerRecordType.MEMBER_STATE, "m0"), MemberState(2, 1, MemberPhase.UNRELEASED))
    assert state.state_name == "Reconciling"
    state.apply(RecordKey(ConsumerRecordType.GROUP, "g"), GroupEpoch(3))
    assert state.state_name == "Assigning"


def test_any_record_can_be_the_first_one() -> None:
    """Compaction has removed the older records of the group."""
    values: dict[ConsumerRecordType, ConsumerRecordValue] = {
        ConsumerRecordType.MEMBER: member("t", instance_id="seat"),
        ConsumerRecordType.GROUP: GroupEpoch(10, -5),
        ConsumerRecordType.MEMBER_TARGET: MemberTarget({T: frozenset({0})}),
        ConsumerRecordType.TARGET: TargetEpoch(10, 12345),
        ConsumerRecordType.MEMBER_STATE: owning(3, 0),
        ConsumerRecordType.EXPRESSION: ExpressionTopics(frozenset({"t"}), 1, 2),
    }
    assert values.keys() == set(ConsumerRecordType) - {ConsumerRecordType.PARTITION_METADATA}
    for record_type, value in values.items():
        state = ConsumerGroupState("g")
        state.apply(key(record_type, "m"), value)
        known = state.members.get("m")
        found: dict[ConsumerRecordType, object] = {
            ConsumerRecordType.MEMBER: None if known is None else known.metadata,
            ConsumerRecordType.GROUP: state.epoch,
            ConsumerRecordType.MEMBER_TARGET: MemberTarget(state.target_of("m")),
            ConsumerRecordType.TARGET: state.target_epoch,
            ConsumerRecordType.MEMBER_STATE: None if known is None else known.state,
            ConsumerRecordType.EXPRESSION: state.expressions.get("m"),
        }
        assert found[record_type] == value
        assert state.record_keys()


def test_members_tombstones_remove_it() -> None:
    state = ConsumerGroupState("g")
    state.apply(key(ConsumerRecordType.MEMBER, "m"), member("t", instance_id="seat"))
    state.apply(key(ConsumerRecordType.MEMBER_TARGET, "m"), MemberTarget({T: frozenset({0})}))
    state.apply(key(ConsumerRecordType.MEMBER_STATE, "m"), owning(3, 0))
    assert (state.owners, state.instance_ids) == ({(T, 0): "m"}, {"seat": "m"})
    for kind in (
        ConsumerRecordType.MEMBER_STATE,
        ConsumerRecordType.MEMBER_TARGET,
        ConsumerRecordType.MEMBER,
    ):
        state.apply(key(kind, "m"), None)
    assert (state.members, state.owners, state.instance_ids) == ({}, {}, {})
    assert (state.target_of("m"), state.subscribed_names()) == ({}, frozenset())


def test_state_without_its_member_is_dropped() -> None:
    state = ConsumerGroupState("g")
    state.apply(key(ConsumerRecordType.MEMBER_STATE, "m"), owning(3, 0))
    state.drop_incomplete_members()
    assert (state.members, state.owners) == ({}, {})


def test_tombstone_of_a_members_state_frees_its_partitions() -> None:
    state = group_of("m")
    state.apply(key(ConsumerRecordType.MEMBER_STATE, "m"), owning(3, 0))
    state.apply(key(ConsumerRecordType.MEMBER_STATE, "m"), None)
    assert (state.members["m"].state, state.owners) == (MemberState(0), {})


def test_partition_stays_with_its_owner_after_compaction() -> None:
    """The record by which `a` gave the partition up is missing, but an earlier one is still there."""
    state = group_of("a", "b")
    for member_id, value in (("a", owning(11, 0)), ("b", owning(12, 0)), ("a", owning(13, 1))):
        state.apply(key(ConsumerRecordType.MEMBER_STATE, member_id), value)
    assert state.owners == {(T, 0): "b", (T, 1): "a"}


def test_partition_without_owner_is_free_after_compaction() -> None:
    state = group_of("a", "b")
    states = (("a", owning(11, 0)), ("b", owning(12, 0)), ("b", owning(13)), ("a", owning(14, 1)))
    for member_id, value in states:
        state.apply(key(ConsumerRecordType.MEMBER_STATE, member_id), value)
    assert state.owners == {(T, 1): "a"}


def test_successor_keeps_its_place_if_tombstone_comes_later() -> None:
    state = ConsumerGroupState("g")
    state.apply(key(ConsumerRecordType.MEMBER, "a"), member("t", instance_id="seat"))
    state.apply(key(ConsumerRecordType.MEMBER, "b"), member("t", instance_id="seat"))
    state.apply(key(ConsumerRecordType.MEMBER, "a"), None)
    assert (list(state.members), state.instance_ids) == (["b"], {"seat": "b"})


def test_keys_of_group_name_all_its_records() -> None:
    state = group_of("m")
    written = {key(ConsumerRecordType.MEMBER, "m")}
    for record_type, name, value in (
        (ConsumerRecordType.GROUP, "", GroupEpoch(7)),
        (ConsumerRecordType.TARGET, "", TargetEpoch(7, 12345)),
        (ConsumerRecordType.EXPRESSION, "t.*", ExpressionTopics(frozenset({"t"}), 1, 2)),
        (ConsumerRecordType.MEMBER_TARGET, "m", MemberTarget({T: frozenset({0})})),
        (ConsumerRecordType.MEMBER_STATE, "m", owning(7, 0)),
    ):
        state.apply(key(record_type, name), value)
        written.add(key(record_type, name))
    assert set(state.record_keys()) == written
    state.apply(key(ConsumerRecordType.EXPRESSION, "t.*"), None)
    assert state.expressions == {}
