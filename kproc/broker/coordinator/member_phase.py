"""MemberPhase: how far a member of a consumer or streams group has come on the way to its target assignment."""

from __future__ import annotations

from enum import IntEnum


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
