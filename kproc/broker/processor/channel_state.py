"""The mute state of a connection: Kafka's KafkaChannel.ChannelMuteState, derived instead of stored.

Kafka mutes a channel while one of its requests is being served. Here a connection may have many requests in work and is
read meanwhile. The state is computed from three facts, so none of Kafka's illegal transitions can occur:

    is it read    throttled    requests in work    state
    yes           no           any                 NOT_MUTED
    no            no           none                MUTED                        stalled, short of memory, `out` waits
    no            no           some                MUTED_AND_RESPONSE_PENDING
    no            yes          none                MUTED_AND_THROTTLED
    no            yes          some                MUTED_AND_THROTTLED_AND_RESPONSE_PENDING

The five response actions are records of transport/envelope.py: Send (SEND, SEND_PARTS) and NoOp (NO_OP) take one
request out of work; CloseConnection (CLOSE) ends the connection; StartThrottling (THROTTLE) comes before the answer it
belongs to, which leaves at once; EndThrottling is the Processor's own timer (connection_table.py).
"""

from __future__ import annotations

import enum


class MuteState(enum.Enum):
    """Kafka's names of the mute states."""

    NOT_MUTED = "NOT_MUTED"
    MUTED = "MUTED"
    MUTED_AND_RESPONSE_PENDING = "MUTED_AND_RESPONSE_PENDING"
    MUTED_AND_THROTTLED = "MUTED_AND_THROTTLED"
    MUTED_AND_THROTTLED_AND_RESPONSE_PENDING = "MUTED_AND_THROTTLED_AND_RESPONSE_PENDING"


def mute_state(*, is_read: bool, is_throttled: bool, has_work: bool) -> MuteState:
    """Return the state for these three facts. A throttled connection is never read."""
    if is_throttled:
        return (
            MuteState.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING if has_work else MuteState.MUTED_AND_THROTTLED
        )
    if is_read:
        return MuteState.NOT_MUTED
    return MuteState.MUTED_AND_RESPONSE_PENDING if has_work else MuteState.MUTED
