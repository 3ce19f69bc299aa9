"""ReconciledState: how far a member of a consumer or streams group has come on the way to its target assignment."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, Self

import msgspec

NO_EPOCH: Final = -1
# Member epochs of heartbeats that have a special meaning (KIP-848): the member joins, leaves, or stops for a while.
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2  # A static member stops and will return.


class MemberPhase(IntEnum):
    """The state of a member in the reconciliation (Kafka's MemberState)."""

    STABLE = 0
    UNREVOKED = 1  # The member must give up partitions or tasks, and has not confirmed that yet.
    UNRELEASED = 2  # Other members still own partitions or tasks of its target.
    UNKNOWN = 127  # A state that a newer Kafka has written.

    @classmethod
    def _missing_(cls, value: object) -> MemberPhase:
        # As in Kafka's MemberState.fromValue(), the state of a newer Kafka must not prevent the load after a downgrade.
        return cls.UNKNOWN


class ReconciledState(msgspec.Struct, frozen=True):
    """A member's epochs and phase.

    Subclasses add the fields `owned` and `pending_revocation`, which the member has and must give up.
    """

    epoch: int
    previous_epoch: int = NO_EPOCH
    phase: MemberPhase = MemberPhase.STABLE

    def is_reconciled(self, target_epoch: int) -> bool:
        """Return True if the member has reached the target of the group epoch `target_epoch`."""
        return self.phase is MemberPhase.STABLE and self.epoch == target_epoch

    def changed(self, **fields: Any) -> Self:
        """Return the next state with new values of some fields, and the present epoch as `previous_epoch`.

        Return `self` if no field differs.
        """
        updated = msgspec.structs.replace(self, **fields)
        return self if updated == self else msgspec.structs.replace(updated, previous_epoch=self.epoch)
