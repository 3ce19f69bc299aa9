"""The states through which a member comes to its target assignment."""

from __future__ import annotations

from kproc.broker.coordinator.member_phase import MemberPhase
from kproc.broker.group.consumer.records import MemberState

STATE = MemberState(4, 3)


def test_change_keeps_the_former_epoch_as_the_previous_one() -> None:
    changed = STATE.changed(epoch=5, phase=MemberPhase.UNRELEASED)
    assert changed == MemberState(5, 4, MemberPhase.UNRELEASED)
    assert changed.changed(owned={b"t": {0: 5}}).previous_epoch == 5


def test_state_without_a_change_is_the_same_object() -> None:
    """The group writes a record for any other object."""
    assert STATE.changed(epoch=4, owned={}) is STATE


def test_reconciled_member_is_stable_at_the_target_epoch() -> None:
    assert STATE.is_reconciled(4)
    assert not STATE.is_reconciled(5)
    assert not STATE.changed(phase=MemberPhase.UNRELEASED).is_reconciled(4)
    assert MemberPhase(9) is MemberPhase.UNKNOWN
