"""One request on its Handler: the RequestContext that answers over a link to the Processor."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kproc.broker.request.context import RequestContext, Services
from kproc.broker.request.registry import lookup
from kproc.broker.role.handoff import ADDRESS_BYTES, address_text
from kproc.broker.security.acl import Operation, ResourceType, host_of_rule
from kproc.broker.security.principal import ANONYMOUS, Identity
from kproc.broker.security.session import Session
from kproc.broker.transport.envelope import (
    AUTHENTICATED,
    CLOSE,
    FLAG_LOOPBACK,
    FLAG_PROBE,
    FLAG_TIMED,
    HEAD,
    MOVED,
    NO_OP,
    NOTE,
    SEND,
    SEND_PARTS,
    THROTTLE,
    THROTTLE_MS,
    TIMES,
    TIMES_BODY,
    UNTIMED_KEY,
    encode_parts,
    encode_range_answer,
    pack_sequences,
)
from kproc.common.bounded import short_name
from kproc.common.errors import ErrorCode
from kproc.wire.file_range import FileRange

if TYPE_CHECKING:
    from kproc.broker.handler.migrating_connections import KeptAnswers
    from kproc.broker.transport.outbox import Outbox

logger = logging.getLogger(__name__)

UNKNOWN_HOST: Final = "/unknown"
_UNKNOWN: Final = Identity(UNKNOWN_HOST, ANONYMOUS)
# Limit of the cached texts of addresses. With the cache all connections of a host share one text.
_HOSTS_KEPT: Final = 4096


@lru_cache(_HOSTS_KEPT)
def host_text(packed: bytes) -> str:
    """Format a client's address as Java and therefore Kafka prints it: after a slash, and IPv6 without `::`."""
    return f"/{host_of_rule(address_text(packed))}"


@lru_cache(_HOSTS_KEPT)
def _session(packed: bytes) -> Session:
    """Decode a session. All connections of one user whose sessions never expire share one object."""
    return Session.unpack(packed)


class ClientPeer:
    """A Processor as a Handler sees it: the outbox for responses, its clients, and their parked requests."""

    __slots__ = ("identities", "moving", "outbox", "sessions", "waiting")

    def __init__(self, outbox: Outbox | KeptAnswers) -> None:
        self.outbox = outbox
        self.identities: dict[int, Identity] = {}  # Connection id -> address and principal of the client.
        self.sessions: dict[int, Session] = {}  # Connection id -> session of a client that has logged in.
        # Connection id of a connection that migrates to another Processor -> (the store of its responses, number of the
        # attempt). See migrating_connections.py.
        self.moving: dict[int, tuple[ClientPeer, int]] = {}
        # Connection id -> callbacks that cancel its parked requests when the client disconnects.
        self.waiting: dict[int, dict[HandlerRequest, Callable[[], None]]] = {}

    def introduce(self, connection_id: int, identity: memoryview) -> None:
        """Store the identity of a connection's client. The Processor sends it before the connection's requests."""
        # Remove the old identity first. Decoding the new one may fail, and then the connection must have no identity.
        self.identities.pop(connection_id, None)
        self.sessions.pop(connection_id, None)
        host = host_text(bytes(identity[:ADDRESS_BYTES]))
        session = _session(bytes(identity[ADDRESS_BYTES:]))
        self.identities[connection_id] = Identity(host, session.principal)
        if session.mechanism:
            self.sessions[connection_id] = session

    def cancel(self, connection_id: int) -> None:
        """Cancel the parked requests of a client that has disconnected.

        Each of them is still answered, because the Processor may have lent an arena block for the request. It frees the
        block when the response comes, not when the connection ends.
        """
        self.identities.pop(connection_id, None)
        self.sessions.pop(connection_id, None)
        for request, on_gone in list(self.waiting.pop(connection_id, {}).items()):
            on_gone()
            request.no_op()


class HandlerRequest(RequestContext):
    """One request of a client. It is answered exactly once.

    The Processor orders the responses of a connection by their sequence. `identity` is the client's identity when the
    request arrived, and never changes.
    """

    identity: Identity

    __slots__ = (
        "_is_waiting",
        "_taken_ns",
        "done_ns",
        "flags",
        "identity",
        "is_answered",
        "is_closed",
        "peer",
        "sequence",
    )

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
        # Read the identity once, when the request arrives. `peer` does not have the connection any more while it
        # migrates or after its client has disconnected, and then the request would be handled as one of ANONYMOUS.
        self.identity = peer.identities.get(connection_id, _UNKNOWN)
        self.connection_id = connection_id
        self.sequence = sequence
        self.listener_index = listener_index
        self.flags = flags
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id_bytes = client_id_bytes
        self.throttle_ms = 0
        self.meter = None
        self._is_waiting = self.is_answered = False
        self.decoded = None
        # True if the connection is being closed, so that its further frames are ignored.
        self.is_closed = False
        # Times of a timed request (processor/timed_requests.py), in ns: when it was dequeued, and when its local work
        # ended.
        self._taken_ns = services.clock.host_ns() if flags & FLAG_TIMED else 0
        self.done_ns = 0

    @property
    def is_from_loopback(self) -> bool:
        return bool(self.flags & FLAG_LOOPBACK)

    @property
    def client_host(self) -> str:
        return self.identity.host

    def is_allowed(
        self,
        operation: Operation,
        resource: ResourceType,
        name: str,
        *,
        is_question: bool = False,
        count: int = 1,
    ) -> bool:
        authorizer = self.services.authorizer
        if authorizer is None or self.flags & FLAG_PROBE:
            return True
        client = self.identity
        if client is _UNKNOWN:
            # The Processor has sent no identity for this connection. Do not grant it the rights that ANONYMOUS may
            # have.
            return False
        return authorizer.is_allowed(
            (client, operation, resource, name), api_key=self.api_key, is_question=is_question, count=count
        )

    def is_allowed_for_any(self, operation: Operation, resource: ResourceType) -> bool:
        authorizer = self.services.authorizer
        if authorizer is None or self.flags & FLAG_PROBE:
            return True
        client = self.identity
        return client is not _UNKNOWN and authorizer.is_allowed_for_any(
            client, operation, resource, api_key=self.api_key
        )

    @property
    def is_timed(self) -> bool:
        """True if the Processor expects a TIMES record with this request's durations."""
        return self._taken_ns > 0

    @property
    def taken_ns(self) -> int:
        """The time in monotonic ns at which the Handler dequeued the request, or 0 if the request is not timed.

        The Processor times a sample of the requests for the metrics, and marks them with FLAG_TIMED.
        """
        return self._taken_ns

    def skip_timing(self) -> None:
        """Record no times for this request, because it belongs to no advertised API."""
        if self._taken_ns:
            self._taken_ns = 0
            body = TIMES_BODY.pack(UNTIMED_KEY, 0, 0, 0, 0)
            self.peer.outbox.push(TIMES, HEAD.pack(self.connection_id, self.sequence, 0, 0), body)

    def _send_times(self) -> None:
        """Send the TIMES record with the request's durations. The caller must send the response right after it."""
        now_ns = self.services.clock.host_ns()
        body = TIMES_BODY.pack(self.api_key, self.throttle_ms, self._taken_ns, self.done_ns or now_ns, now_ns)
        self._taken_ns = 0
        self.peer.outbox.push(TIMES, HEAD.pack(self.connection_id, self.sequence, 0, 0), body)

    def divide(self, name_rows: Callable[[], dict[str, Any]]) -> None:
        # Later requests of the connection wait for this one unless it was parked.
        self.services.clients.divided.divide(self, name_rows, is_held=not self._is_waiting)

    def send(self, frame: bytes) -> None:
        self.is_answered = True
        if self._is_waiting:
            self.stop_waiting()
        if self._taken_ns:
            self._send_times()
        self.peer.outbox.push(SEND, HEAD.pack(self.connection_id, self.sequence, 0, 0), frame)

    def send_parts(self, parts: list[bytes | FileRange]) -> None:
        self.is_answered = True
        if self._is_waiting:
            self.stop_waiting()
        if self._taken_ns:
            self._send_times()
        head = HEAD.pack(self.connection_id, self.sequence, 0, 0)
        if any(isinstance(part, FileRange) for part in parts):
            self.peer.outbox.push(SEND_PARTS, head, encode_parts(parts))
        else:
            self.peer.outbox.push(SEND, head, *(part for part in parts if isinstance(part, bytes)))

    def send_range(self, head: bytes, records: FileRange, end: bytes) -> None:
        """Send bytes, one file range and bytes, as `send_parts` does. Only for a request that is not timed."""
        self.is_answered = True
        if self._is_waiting:
            self.stop_waiting()
        # The first 12 bytes of a head are the connection id and the sequence, which `encode_range_answer` expects.
        ids = HEAD.pack(self.connection_id, self.sequence, 0, 0)[:12]
        self.peer.outbox.push(SEND_PARTS, encode_range_answer(ids, head, records, end))

    def no_op(self) -> None:
        self._finish(NO_OP)

    def close(self) -> None:
        self._finish(CLOSE)

    def reject(self, reason: str) -> None:
        """Close the connection and log the reason, unless too many such lines were logged just now."""
        if self.services.clients.refusals.has_room(self.services.clock.host_ns()):
            logger.warning(
                "closing connection %d: %s (API key %d, version %d)",
                self.connection_id,
                reason,
                self.api_key,
                self.api_version,
            )
        self.skip_timing()
        self.close()

    def close_after(self, frame: bytes) -> None:
        """Send a whole frame as the response, then close the connection."""
        self._finish(CLOSE, frame)

    def record_lost_answer(self, outcome: str, sent_bytes: int) -> None:
        """Record that a fault rule drops or cuts the answer. Only requests with a line in the request log do this."""

    def authenticated(self, session: Session) -> None:
        """Tell the Processor that the client has logged in. The caller must send the response right after it."""
        head = HEAD.pack(self.connection_id, self.sequence, 0, 0)
        self.peer.outbox.push(AUTHENTICATED, head, session.pack())

    def fail(self) -> None:
        if self.is_answered:
            return
        served = lookup(self.api_key)
        if self.decoded is not None and served is not None and served.error_response is not None:
            try:
                self.reply(served.error_response(self.decoded, int(ErrorCode.UNKNOWN_SERVER_ERROR), None))
            except Exception as error:  # noqa: BLE001 - without an answer the connection is closed
                self.services.containment.caught("the answer to a request that failed", error)
        if not self.is_answered:
            self.close()

    def throttle(self, duration_ms: int, quota: str) -> None:
        """Tell the Processor not to read this connection for `duration_ms`. Call it before the response is sent.

        If it is called several times, the longest duration counts.
        """
        head = HEAD.pack(self.connection_id, self.sequence, 0, 0)
        self.peer.outbox.push(THROTTLE, head, THROTTLE_MS.pack(duration_ms) + quota.encode())

    def set_client(self, software_name: str, software_version: str) -> None:
        client_id = short_name((self.client_id_bytes or b"").decode("utf-8", "replace"))
        software_name, software_version = short_name(software_name), short_name(software_version)
        note = msgspec.msgpack.encode([client_id, software_name, software_version])
        self.peer.outbox.push(NOTE, HEAD.pack(self.connection_id, self.sequence, 0, 0), note)

    def when_gone(self, on_gone: Callable[[], None]) -> None:
        self._is_waiting = True
        moving = self.peer.moving.get(self.connection_id)
        # The request parks while its connection migrates. Tell the Processor not to wait for this response before
        # the connection migrates.
        if moving is not None:
            keeper, attempt = moving
            sequences = pack_sequences((self.sequence,))
            self.peer.outbox.push(MOVED, HEAD.pack(self.connection_id, attempt, 0, 0), sequences)
            self.peer = keeper
        self.peer.waiting.setdefault(self.connection_id, {})[self] = on_gone

    def _finish(self, kind: int, frame: bytes = b"") -> None:
        self.is_answered = True
        self.is_closed = kind == CLOSE
        if self._is_waiting:
            self.stop_waiting()
        if self._taken_ns:
            self._send_times()
        self.peer.outbox.push(kind, HEAD.pack(self.connection_id, self.sequence, 0, 0), frame)

    def stop_waiting(self) -> None:
        """Undo `when_gone`. Called before the request is answered, or when it is handled after its wait."""
        self._is_waiting = False
        requests = self.peer.waiting.get(self.connection_id)
        if requests is not None:
            requests.pop(self, None)
            if not requests:
                del self.peer.waiting[self.connection_id]
