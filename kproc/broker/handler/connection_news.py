"""ConnectionNews: handles a Processor's records about its connections, which are no requests of clients.

A login or logout, a disconnect, a change of the home Handler, the steps of a migration, the time that a socket cost,
and the recall of a lent block (transport/envelope.py lists the records).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kproc.broker.request.fast_path import CONNECTION_BYTES
from kproc.broker.share.session.owner_call import close_sessions
from kproc.broker.transport.envelope import (
    BLOCK_FREE,
    DISCONNECTED,
    FLAG_MOVED,
    FLAG_NEW_HOME,
    HEAD,
    HEAD_BYTES,
    IDENTITY,
    METERED,
    MOVE_OUT,
    RECALL_BLOCK,
    SOCKET_NS,
    SOCKET_TIME,
    unpack_sequences,
)

if TYPE_CHECKING:
    from kproc.broker.handler.fault_switch import FaultSwitch
    from kproc.broker.handler.held_connections import HeldConnections
    from kproc.broker.handler.logins import Logins
    from kproc.broker.handler.migrating_connections import MigratingConnections
    from kproc.broker.handler.processor_peer import ProcessorPeer
    from kproc.broker.produce.append_queue import AppendQueue
    from kproc.broker.request.context import Services


class ConnectionNews:
    """The receiver of the records about connections in one Handler."""

    __slots__ = ("_clock", "_faults", "_held", "_logins", "_moving", "_queue", "_rates", "_services")

    def __init__(
        self,
        services: Services,
        queue: AppendQueue,
        *,
        held: HeldConnections,
        logins: Logins,
        moving: MigratingConnections,
        faults: FaultSwitch,
    ) -> None:
        self._services = services
        self._clock = services.clock
        self._rates = services.client_rates
        self._queue = queue
        self._held = held
        self._logins = logins
        self._moving = moving
        self._faults = faults

    def handle(self, client: ProcessorPeer, kind: int, view: memoryview) -> None:
        """Handle a record about a connection that is not a request, such as IDENTITY, MOVE_OUT or DISCONNECTED."""
        connection_id, attempt, _, flags = HEAD.unpack_from(view)
        if kind == IDENTITY:
            self._on_identity(client, connection_id, view)
        elif kind == SOCKET_TIME:
            self._charge_socket_time(client, connection_id, view[HEAD_BYTES:])
        elif kind == RECALL_BLOCK:
            # Append the queued Produce requests first, because their records can be in the recalled block.
            self._queue.flush()
            key = view[:CONNECTION_BYTES].tobytes()
            if key not in client.held or self._held.copy_block(client, key, attempt):
                client.outbox.push(BLOCK_FREE, HEAD.pack(connection_id, attempt, 0, 0))
        elif kind == MOVE_OUT:
            # Append the queued Produce requests first, so that their responses go to the old Processor.
            self._queue.flush()
            self._moving.move_out(client.requests, connection_id, attempt)
        elif kind == DISCONNECTED and flags & FLAG_NEW_HOME:
            # The client sends its next ShareFetch to its new home, where it cannot continue the share sessions of this
            # Handler. The connection is still open, so keep everything else.
            close_sessions(self._services, connection_id)
        elif kind == DISCONNECTED:
            self._on_disconnected(client, connection_id, view, has_moved=bool(flags & FLAG_MOVED))
        else:
            self._moving.move_in(client.requests, connection_id, unpack_sequences(view[HEAD_BYTES:]))

    def _on_identity(self, client: ProcessorPeer, connection_id: int, view: memoryview) -> None:
        """Store the address and the principal of a client that has connected or logged in."""
        client.requests.introduce(connection_id, view[HEAD_BYTES:])
        # Discard the fast path, because it was learned with the rights of the former session, whose principal can be
        # another one.
        key = view[:CONNECTION_BYTES].tobytes()
        client.paths.pop(key, None)
        # A parked connection has its HeldConnection in the place of a fast path, so that its requests are still parked.
        if key in client.held:
            client.paths[key] = client.held[key]

    def _on_disconnected(
        self, client: ProcessorPeer, connection_id: int, view: memoryview, *, has_moved: bool
    ) -> None:
        """Discard the state of a connection that was closed, or that `has_moved` to another Processor."""
        key = view[:CONNECTION_BYTES].tobytes()
        self._held.abandon(client, key)
        client.requests.cancel(connection_id)
        close_sessions(self._services, connection_id)
        client.paths.pop(key, None)
        client.metered.discard(connection_id)
        if has_moved:
            # Keep an unfinished re-authentication, because it continues at the next Processor.
            self._moving.gave_away(client.requests, connection_id, self._clock.host_ns())
        else:
            self._logins.discard_login(connection_id)
            self._moving.gone(client.requests, connection_id)
            self._faults.release((connection_id,))

    def _charge_socket_time(self, client: ProcessorPeer, connection_id: int, body: memoryview) -> None:
        """Charge a client for the time that its Processor spent on the socket.

        If no request_percentage quota applies to the client any more, let the Processor stop measuring.
        """
        (used_ns,) = SOCKET_NS.unpack_from(body)
        client_id = bytes(body[SOCKET_NS.size :])
        identity = client.requests.identities.get(connection_id)
        if identity is not None and not self._rates.on_socket_time(
            identity.principal.name, client_id, used_ns
        ):
            meter_socket(client, connection_id, client_id, is_on=False)


def meter_socket(client: ProcessorPeer, connection_id: int, client_id: bytes, *, is_on: bool) -> None:
    """Make the Processor start (or stop, without `is_on`) measuring its time for a connection."""
    (client.metered.add if is_on else client.metered.discard)(connection_id)
    client.outbox.push(METERED, HEAD.pack(connection_id, is_on, 0, 0), client_id)
