"""One request on its Handler: the RequestContext that answers over a link to the Processor."""

from __future__ import annotations

from collections.abc import Callable

from kproc.api.context import RequestContext, Services
from kproc.transport.envelope import CLOSE, FLAG_LOOPBACK, HEAD, NO_OP, SEND, SEND_PARTS, encode_parts
from kproc.transport.outbox import Outbox
from kproc.wire.file_range import FileRange


class ClientPeer:
    """One Processor as its Handlers see it: where answers go, and which requests of which client still wait."""

    __slots__ = ("outbox", "waiting")

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        # Connection id -> what to cancel when the client leaves. Only parked requests are in here.
        self.waiting: dict[int, dict[HandlerRequest, Callable[[], None]]] = {}

    def forget(self, connection_id: int) -> None:
        """The client left: nobody wants the answers of its parked requests.

        They are finished all the same: the Processor may have lent us a block for the request, which comes back to
        it with the answer and not with the connection's end.
        """
        for request, on_gone in list(self.waiting.pop(connection_id, {}).items()):
            on_gone()
            request.no_op()


class HandlerRequest(RequestContext):
    """Answers exactly once, with the sequence by which the Processor orders the answers of a connection."""

    __slots__ = ("_flags", "_is_waiting", "_sequence", "is_closed", "peer")

    def __init__(
        self,
        services: Services,
        peer: ClientPeer,
        connection_id: int,
        sequence: int,
        listener_index: int,
        flags: int,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id_bytes: bytes | None,
    ) -> None:
        self.services = services
        self.peer = peer
        self.connection_id = connection_id
        self._sequence = sequence
        self.listener_index = listener_index
        self._flags = flags
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id_bytes = client_id_bytes
        self._is_waiting = False
        self.is_closed = False  # The connection is being closed: its other frames do not count any more.

    @property
    def is_from_loopback(self) -> bool:
        return bool(self._flags & FLAG_LOOPBACK)

    def send(self, frame: bytes) -> None:
        if self._is_waiting:
            self._stop_waiting()
        self.peer.outbox.push(SEND, HEAD.pack(self.connection_id, self._sequence, 0, 0), frame)

    def send_parts(self, parts: list[bytes | FileRange]) -> None:
        if self._is_waiting:
            self._stop_waiting()
        head = HEAD.pack(self.connection_id, self._sequence, 0, 0)
        if any(isinstance(part, FileRange) for part in parts):
            self.peer.outbox.push(SEND_PARTS, head, encode_parts(parts))
        else:
            self.peer.outbox.push(SEND, head, *(part for part in parts if isinstance(part, bytes)))

    def no_op(self) -> None:
        self._finish(NO_OP)

    def close(self) -> None:
        self._finish(CLOSE)

    def when_gone(self, on_gone: Callable[[], None]) -> None:
        self._is_waiting = True
        self.peer.waiting.setdefault(self.connection_id, {})[self] = on_gone

    def _finish(self, kind: int) -> None:
        self.is_closed = kind == CLOSE
        if self._is_waiting:
            self._stop_waiting()
        self.peer.outbox.push(kind, HEAD.pack(self.connection_id, self._sequence, 0, 0))

    def _stop_waiting(self) -> None:
        self._is_waiting = False
        requests = self.peer.waiting.get(self.connection_id)
        if requests is not None:
            requests.pop(self, None)
            if not requests:
                del self.peer.waiting[self.connection_id]
