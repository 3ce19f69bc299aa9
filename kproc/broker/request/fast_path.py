"""FastPath: a cache of a connection's last request, so that requests which repeat it need no decoding and no lookup.

A producer repeats all bytes around its records; a consumer that catches up repeats its Fetch except for the offset.
Each connection has one FastPath, which stores the repeated bytes and the looked-up partition: `produce_fast_path.py`
and `fetch_fast_path.py`. A request that differs falls back to the general path. So does each request that is timed,
logged or throttled, and each error, so that they are handled in one place. A change of the metadata invalidates all
fast paths. `python -m bench.pass_costs` counts what a request costs with them.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, Protocol

from kproc.broker.request.request import HandlerRequest

# Start of a REQUEST record with one frame: connection id; sequence; listener, flags (transport/envelope.py: HEAD),
# frame length, API key and version; correlation id. The fields stay bytes, as they are only compared or sent back.
RECORD_START: Final = "8s4s12s4s"
RECORD_START_BYTES: Final = Struct(RECORD_START).size
CONNECTION_BYTES: Final = 8
# A fast path stores the bytes that its requests repeat, for the life of the connection. Requests that repeat more bytes
# than this, because of a long client id for example, get none.
REPEATED_BYTES_MAX: Final = 2048
_LISTENER_AND_FLAGS: Final = Struct("=HH")
_IDS: Final = Struct("=QI")  # Connection id, sequence number of the request.
_CORRELATION: Final = Struct(">i")


class RequestTemplate:
    """Creates request objects for repetitions of a learned request that must wait.

    Their fields are those of the learned request.
    """

    __slots__ = ("_request", "listener_and_flags", "peer", "services")

    def __init__(self, request: HandlerRequest) -> None:
        self._request = request
        self.listener_and_flags = _LISTENER_AND_FLAGS.pack(request.listener_index, request.flags)
        self.peer = request.peer
        self.services = request.services

    def is_from(self, listener: int, flags: int) -> bool:
        """Return True if a request came through the same listener with the same flags as the learned one."""
        return listener == self._request.listener_index and flags == self._request.flags

    def make(self, connection_id: int, sequence: int, correlation_id: int) -> HandlerRequest:
        like = self._request
        return HandlerRequest(
            self.services, self.peer, connection_id, sequence, like.listener_index, like.flags,
            like.api_key, like.api_version, correlation_id, like.client_id_bytes,
        )  # fmt: skip

    def make_from_bytes(self, connection: bytes, sequence: bytes, correlation: bytes) -> HandlerRequest:
        """Create a request object from the first fields of its ring record (RECORD_START)."""
        like = self._request
        connection_id, sequence_id = _IDS.unpack(connection + sequence)
        (correlation_id,) = _CORRELATION.unpack(correlation)
        return HandlerRequest(
            self.services, self.peer, connection_id, sequence_id, like.listener_index, like.flags,
            like.api_key, like.api_version, correlation_id, like.client_id_bytes,
        )  # fmt: skip


class FastPath(Protocol):
    """Handles repetitions of one connection's last request without decoding them.

    Discarded at each change of the metadata.
    """

    misses: int  # Requests that did not match, minus those that did: see `should_learn`.

    def handle(self, record: memoryview) -> bool:
        """Handle a REQUEST record that holds one frame. Return False without effect if it does not match."""

    def handle_frame(
        self, frame: memoryview, connection_id: int, sequence: int, listener: int, flags: int
    ) -> bool:
        """Handle one frame in a ring or an arena, given without its length field.

        Return False, without effect, if it does not repeat the learned request.
        """


class NoFastPath:
    """Placeholder for a connection whose requests cannot have a fast path."""

    __slots__ = ("misses",)

    def __init__(self) -> None:
        self.misses = 0

    def handle(self, record: memoryview) -> bool:
        return False

    def handle_frame(
        self, frame: memoryview, connection_id: int, sequence: int, listener: int, flags: int
    ) -> bool:
        return False


def should_learn(path: FastPath | None) -> bool:
    """Return True if the connection should learn from a request that fell back to the general path.

    It learns from the first request, then at the second miss, the fourth, the eighth and so on. So one different
    request does not replace the fast path, and requests of alternating or unusual form cost little.
    """
    if path is None:
        return True
    path.misses += 1
    return path.misses > 1 and not path.misses & (path.misses - 1)
