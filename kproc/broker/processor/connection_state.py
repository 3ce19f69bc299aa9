"""The state of a connection: whether it still takes requests, why it is not read at present, and what it waits for.

A connection waits for one thing at a time, its interest. The first line that holds decides:

    what holds                                              interest    what it waits for
    answers wait in `out`                                   WRITING     room in its socket
    its state is not OPEN, it has a Pause or as many        PAUSED      whatever ends that
        requests in work as it may have, or the broker stops
    otherwise                                               ACTIVE      a request
    paused, and its client has hung up                      DETACHED    whatever ends the pause

`ConnectionTable.update_interest` applies these lines. Every function that changes one of the conditions calls it.

    state       entered                                         requests    answers      closed
    OPEN        at the start                                    are read    are sent     -
    DRAINING    from OPEN: invalid bytes, or a TLS client of    not read    are sent     after the last answer
                a Processor that leaves
    CLOSING     from any: a Handler sent CLOSE, or a file       not read    discarded    when `out` is empty
                range cannot be sent

Kafka mutes a channel while one of its requests is being served. Here a connection may have many requests in work and is
read meanwhile. Kafka's state (KafkaChannel.ChannelMuteState) is computed for people from three facts, so none of its
illegal transitions can occur:

    is it read    throttled    requests in work    state
    yes           no           any                 NOT_MUTED
    no            no           none                MUTED
    no            no           some                MUTED_AND_RESPONSE_PENDING
    no            yes          none                MUTED_AND_THROTTLED
    no            yes          some                MUTED_AND_THROTTLED_AND_RESPONSE_PENDING

The five response actions are records of transport/envelope.py: Send (SEND, SEND_PARTS) and NoOp (NO_OP) take one
request out of work; CloseConnection (CLOSE) ends the connection; StartThrottling (THROTTLE) comes before the answer it
belongs to, which leaves at once; EndThrottling is the Processor's own timer (connection_table.py).
"""

from __future__ import annotations

import enum
import select
from typing import Final

# The interests are epoll's event masks, because every pass compares them with the masks that epoll reports.
ACTIVE: Final = select.EPOLLIN
PAUSED: Final = 0
WRITING: Final = select.EPOLLOUT
# The connection is not in the epoll, because epoll reports EPOLLHUP even for an empty event mask, and without end.
DETACHED: Final = -1


class ConnectionState(enum.Enum):
    """The phase of a connection: it decides which requests are read and which answers are sent."""

    OPEN = 0
    DRAINING = 1
    CLOSING = 2


# A connection's state is compared with these at every answer. In CPython 3.11 the look-up of an enum member calls a
# Python function, which is slow.
OPEN: Final = ConnectionState.OPEN
DRAINING: Final = ConnectionState.DRAINING
CLOSING: Final = ConnectionState.CLOSING


class Pause(enum.IntFlag):
    """A reason not to read an open connection. It may have several, and is read again when the last one ends."""

    STALLED = enum.auto()  # Its requests have no room in a ring, or wait for answers of another Handler.
    NO_MEMORY = enum.auto()  # The memory budget has no room for a new request.
    NO_BLOCK = enum.auto()  # Its unfinished frame waits for a block.
    HANDSHAKE = enum.auto()  # Its TLS handshake waits for its turn (handshakes.py).
    THROTTLED = enum.auto()  # A quota is exceeded, until `throttled_until_ns`.
    NEW_HOME = enum.auto()  # It changes to `next_home` when no request is in work.
    MIGRATING = enum.auto()  # It migrates to another Processor, see `migration`.


NO_PAUSE: Final = Pause(0)


class MuteState(enum.Enum):
    """Kafka's names for the reasons why a connection is not read (SocketServer's mute states)."""

    NOT_MUTED = "NOT_MUTED"
    MUTED = "MUTED"
    MUTED_AND_RESPONSE_PENDING = "MUTED_AND_RESPONSE_PENDING"
    MUTED_AND_THROTTLED = "MUTED_AND_THROTTLED"
    MUTED_AND_THROTTLED_AND_RESPONSE_PENDING = "MUTED_AND_THROTTLED_AND_RESPONSE_PENDING"


def mute_state(*, is_read: bool, is_throttled: bool, has_work: bool) -> MuteState:
    """Return the mute state that Kafka would show for a connection. A throttled connection is never read.

    has_work: a request of the connection has no answer yet.
    """
    if is_throttled:
        return (
            MuteState.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING if has_work else MuteState.MUTED_AND_THROTTLED
        )
    if is_read:
        return MuteState.NOT_MUTED
    return MuteState.MUTED_AND_RESPONSE_PENDING if has_work else MuteState.MUTED
