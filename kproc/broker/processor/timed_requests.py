"""TimedRequests: measures how long requests take, on a sample, so that other requests cost nothing more.

The first request that a Processor reads in a duty cycle is timed, unless one of the same API was timed within the last
10 ms. At a low rate that is every request, under load up to 100 a second of each API. Rates do not follow from this:
the Handlers count all requests. A request is timed from the poll that reported it to the `send` that took its last
byte:

    RequestQueueTime   poll ... the Handler takes it       (publication, the ring, wake-up)
    LocalTime          ... the Handler can do no more      (append or read; other requests of the same pass)
    RemoteTime         ... answered                        (the disk, another Handler, the purgatory)
    ResponseQueueTime  ... the Processor takes the answer
    ResponseSendTime   ... nothing of it waits here any more

The Handler's times come in a TIMES record right before the answer. An answer's wait for earlier answers counts as
ResponseSendTime. If the client has left, the request ends when its answer comes. Requests whose Handler died, or whose
connection migrated meanwhile, are not timed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from kproc.broker.metrics.requests import Timings
from kproc.broker.processor.connection import Connection
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.envelope import FLAG_TIMED, SEQUENCE_MASK, TIMES_BODY, UNTIMED_KEY
from kproc.common.clock import Clock

_GAP_NS: Final = 10_000_000
_OPEN_MAX: Final = 1024  # Most requests that are being timed; with one more, the oldest is dropped.
_KEY: Final = struct.Struct(">h")
_NS_PER_US: Final = 1000


class _Timed:
    """The times of one sampled request, as far as they are known."""

    __slots__ = ("api_key", "frame_bytes", "handler", "start_ns", "taken_ns", "times")

    def __init__(self, handler: AgentId, start_ns: int, frame_bytes: int) -> None:
        self.handler = handler
        self.start_ns = start_ns
        self.frame_bytes = frame_bytes
        self.api_key = UNTIMED_KEY
        self.times = (0, 0, 0, 0)  # Throttle in ms; the Handler's three times.
        self.taken_ns = 0  # When the request's answer came to this Processor.


class TimedRequests:
    """Measures the times of a sample of requests for the metrics. One per Processor."""

    __slots__ = ("_clock", "_open", "_timed_at_ns", "_timings", "leaving")

    def __init__(self, timings: Timings, clock: Clock) -> None:
        self._timings = timings
        self._clock = clock
        self._open: dict[tuple[int, int], _Timed] = {}
        # By the low byte of the API key. APIs with equal low bytes share the 10 ms.
        self._timed_at_ns = [-_GAP_NS] * 256
        # Requests that their Handler has answered, but whose answers may not be sent completely yet.
        self.leaving: dict[tuple[int, int], _Timed] = {}

    def start(self, connection: Connection, frame: memoryview, handler: AgentId, now_ns: int) -> int:
        """Decide whether to time the connection's next request, given its frame. Return FLAG_TIMED, or 0."""
        if len(frame) < _KEY.size or now_ns - self._timed_at_ns[frame[1]] < _GAP_NS:
            return 0
        self._timed_at_ns[frame[1]] = now_ns
        if len(self._open) >= _OPEN_MAX:
            del self._open[next(iter(self._open))]
        self._open[connection.id, connection.next_sequence] = _Timed(handler, now_ns, len(frame))
        return FLAG_TIMED

    def cancel(self, connection: Connection) -> None:
        """Discard a request that was not forwarded after all."""
        self._open.pop((connection.id, connection.next_sequence), None)

    def answered(self, connection_id: int, sequence: int, body: memoryview) -> None:
        """Store the times that the Handler has sent in a TIMES record. The answer to the request is right behind it."""
        timed = self._open.pop((connection_id, sequence), None)
        if timed is None:
            return
        timed.api_key, *times = TIMES_BODY.unpack(body)
        if timed.api_key != UNTIMED_KEY:
            timed.times = (times[0], times[1], times[2], times[3])
            timed.taken_ns = self._clock.now_ns()
            self.leaving[connection_id, sequence] = timed

    def finish(self, connections: Mapping[int, Connection]) -> None:
        """Record the requests whose answers are sent completely."""
        now_ns = self._clock.now_ns()
        for (connection_id, sequence), timed in list(self.leaving.items()):
            connection = connections.get(connection_id)
            if connection is not None:
                ahead = (connection.next_send - sequence - 1) & SEQUENCE_MASK
                # Keep a request whose answer still waits for earlier answers (`ahead` then wraps to a large number), or
                # for room in the socket.
                if connection.out or ahead > SEQUENCE_MASK >> 1:
                    continue
            del self.leaving[connection_id, sequence]
            self._enter(timed, now_ns)

    def _enter(self, timed: _Timed, sent_ns: int) -> None:
        throttle_ms, taken_ns, done_ns, answered_ns = timed.times
        times = (
            (taken_ns - timed.start_ns) // _NS_PER_US,
            (done_ns - taken_ns) // _NS_PER_US,
            (answered_ns - done_ns) // _NS_PER_US,
            throttle_ms * 1000,
            (timed.taken_ns - answered_ns) // _NS_PER_US,
            (sent_ns - timed.taken_ns) // _NS_PER_US,
            (sent_ns - timed.start_ns) // _NS_PER_US,
        )
        self._timings.add(timed.api_key, times, timed.frame_bytes)

    def discard_connection(self, connection_id: int) -> None:
        """Discard the requests of a connection that migrated, because another Processor gets their answers."""
        for key in [key for key in self._open if key[0] == connection_id]:
            del self._open[key]

    def discard_handler(self, handler: AgentId) -> None:
        """Discard the requests of a Handler that has died."""
        for key in [key for key, timed in self._open.items() if timed.handler == handler]:
            del self._open[key]
