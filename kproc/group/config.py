"""What the broker's settings say about groups. Kafka's names and defaults; offsets.* are not the state machine's."""

from __future__ import annotations

import msgspec


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One for all groups of a broker."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    # How long the first rebalance of an empty group waits for more members.
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 0x7FFF_FFFF
    # Kafka's classic.group.* has no setting for it: how long MEMBER_ID_REQUIRED is remembered is the session timeout.
