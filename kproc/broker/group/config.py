"""The settings of groups for the state machine, with Kafka's names and defaults. It does not use offsets.*."""

from __future__ import annotations

from typing import Final

import msgspec


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One for all groups of a broker."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    # How long the first rebalance of an empty group waits for more members.
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 0x7FFF_FFFF


# How long the first join of a member may wait. Kafka has no setting for it either. A client that knows no member id
# of its own yet cannot send heartbeats, so without this a client that goes on retrying would leave a member each time.
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1_000
