"""TimedRequests: how long requests take, by samples that cost the others nothing.

The first request that a Processor reads in a duty cycle is timed unless its API was within the last 10 ms. So at a low
rate every request is, under load up to 100 a second of each API; the rates of APIs do not follow from it (the
Handlers count them, all). A request is timed from the poll that reported it to the `send` that took its last byte:

    RequestQueueTime   poll ... the Handler takes it       (publication, the ring, wake-up)
    LocalTime          ... the Handler can do no more      (append or read; other requests of the same pass)
    RemoteTime         ... answered                        (the disk, another Handler, the purgatory)
    ResponseQueueTime  ... the Processor takes the answer
    ResponseSendTime   ... nothing of it waits here any more

The parts in the Handler come in a TIMES record right before the answer. An answer that must wait for those before it
does so in ResponseSendTime. A client that has left ends its request's times when the answer comes. Not timed are
requests whose Handler died, and those whose connection went to another Processor meanwhile.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from kproc.clock import Clock
from kproc.metrics.requests import Timings
from kproc.net.connection import Connection
from kproc.transport.agent import AgentId
from kproc.transport.envelope import FLAG_TIMED, SEQUENCE_MASK, TIMES_BODY, UNTIMED_KEY

_GAP_NS: Final = 10_000_000
_OPEN_MAX: Final = 1024  # Requests that are being timed; beyond it the oldest is forgotten.
_KEY: Final = struct.Struct(">h")
_NS_PER_US: Final = 1000


class _Timed:
    """One request on its way, as far as it is known."""

    __slots__ = ("api_key", "frame_bytes", "handler", "start_ns", "taken_ns", "times")

    def __init__(self, handler: AgentId, start_ns: int, frame_bytes: int) -> None:
        self.handler = handler
        self.start_ns = start_ns
        self.frame_bytes = frame_bytes
        self.api_key = UNTIMED_KEY
        self.times = (0, 0, 0, 0)  # Throttle in ms; the Handler's three times.
        self.taken_ns = 0  # When its answer came here.


class TimedRequests:
    """One per Processor."""

    __slots__ = ("_clock", "_open", "_timed_at_ns", "_timings", "leaving")

    def __init__(self, timings: Timings, clock: Clock) -> None:
        self._timings = timings
        self._clock = clock
        self._open: dict[tuple[int, int], _Timed] = {}
        self._timed_at_ns = [
            -_GAP_NS
        ] * 256  # By the low byte of the API key; two APIs that share it share the gap.
        # Answered, and perhaps not sent.
        self.leaving: dict[tuple[int, int], _Timed] = {}

    def begin(self, connection: Connection, frame: memoryview, handler: AgentId, now_ns: int) -> int:
        """Consider the connection's next request, whose frame this is without its length: FLAG_TIMED, or 0."""
        if len(frame) < _KEY.size or now_ns - self._timed_at_ns[frame[1]] < _GAP_NS:
            return 0
        self._timed_at_ns[frame[1]] = now_ns
        if len(self._open) >= _OPEN_MAX:
            del self._open[next(iter(self._open))]
        self._open[connection.id, connection.next_sequence] = _Timed(handler, now_ns, len(frame))
        return FLAG_TIMED

    def cancel(self, connection: Connection) -> None:
        """It was not passed on after all."""
        self._open.pop((connection.id, connection.next_sequence), None)

    def answered(self, connection_id: int, sequence: int, body: memoryview) -> None:
        """TIMES came; the answer is right behind it."""
        timed = self._open.pop((connection_id, sequence), None)
        if timed is None:
            return
        timed.api_key, *times = TIMES_BODY.unpack(body)
        if timed.api_key != UNTIMED_KEY:
            timed.times = (times[0], times[1], times[2], times[3])
            timed.taken_ns = self._clock.now_ns()
            self.leaving[connection_id, sequence] = timed

    def finish(self, connections: Mapping[int, Connection]) -> None:
        """Enter those of which nothing waits here any more."""
        now_ns = self._clock.now_ns()
        for (connection_id, sequence), timed in list(self.leaving.items()):
            connection = connections.get(connection_id)
            if connection is not None:
                ahead = (connection.next_send - sequence - 1) & SEQUENCE_MASK
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

    def forget_connection(self, connection_id: int) -> None:
        """It went to another Processor, which gets the answers."""
        for key in [key for key in self._open if key[0] == connection_id]:
            del self._open[key]

    def forget_handler(self, handler: AgentId) -> None:
        """It died with what it had."""
        for key in [key for key, timed in self._open.items() if timed.handler == handler]:
            del self._open[key]
