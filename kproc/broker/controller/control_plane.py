"""ControlPlane: handles the control listener's requests. That listener's Processor is linked with the controller.

No Handler and no ring of the data plane takes part, so the control listener works while those are saturated. It
handles the APIs that administrators need (SERVED), with the dispatch and registry of the Handlers. ApiVersions lists
only these, and any other API key closes the connection. As in Kafka the queue holds 20 requests. While 20 requests are
in progress (a scale that migrates connections takes long), no further request is read, and TCP pushes back.

The controller responds to a change of the metadata when it is on disk. The data plane's Handlers can be busy and learn
of it later. A client that uses the data plane at once can therefore get UNKNOWN_TOPIC_OR_PARTITION for a moment and has
to retry, as with Kafka. On the data plane the response waits for all Handlers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.calls.calls import Call
from kproc.broker.request.client_rates import ClientRates
from kproc.broker.request.context import ClientServices, Peers, Services
from kproc.broker.request.dispatch import dispatch
from kproc.broker.request.divided_requests import DividedRequests
from kproc.broker.request.own_requests import PRIVATE_API_KEY
from kproc.broker.request.request import ClientPeer, HandlerRequest
from kproc.broker.role.linked_role import LinkedPeer
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.role.roles import CONTROLLER
from kproc.broker.security.authorizer import make_authorizer
from kproc.broker.transport.agent import AgentId, Link
from kproc.broker.transport.envelope import (
    BLOCK,
    BLOCK_FREE,
    DISCONNECTED,
    FLAG_TIMED,
    HEAD,
    HEAD_BYTES,
    IDENTITY,
    RECALL_BLOCK,
    REQUEST,
    REQUEST_BLOCK,
    SEQUENCE_MASK,
)
from kproc.common.errors import ErrorCode, KafkaError, ProtocolError
from kproc.wire.file_range import FileRange
from kproc.wire.header import REQUEST_HEADER, ApiKey, kafka_name

if TYPE_CHECKING:
    from kproc.broker.controller.controller import Controller

QUEUE_MAX: Final = 20
SERVED: Final = frozenset(
    int(key)
    for key in (
        ApiKey.API_VERSIONS,
        ApiKey.METADATA,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.ALTER_CLIENT_QUOTAS,
    )
)
_LENGTH: Final = struct.Struct(">i")


class ControlPlane:
    """Handles the control listener's requests. Every controller has one, which is idle without a control listener."""

    def __init__(self, plan: BrokerPlan, controller: Controller) -> None:
        self._controller = controller
        endpoints = [plan.control] if plan.control is not None else []
        config, now_ns = plan.config, plan.clock.now_ns
        self._services = Services(
            config=config,
            clock=plan.clock,
            image=controller.image,
            endpoints=endpoints,
            handler_index=0,
            peers=Peers(self._call_controller),
            clients=ClientServices(served=SERVED),
            # No quota applies to the control listener. Its ClientRates stay off, because nobody calls their `on_image`.
            client_rates=ClientRates(
                quotas=lambda: controller.image.client_quotas,
                now_ns=now_ns,
                sample_count=config.quota_window_num,
                sample_s=config.quota_window_size_seconds,
            ),
            counts=controller.counts,
            containment=controller.containment,
        )
        self._services.authorizer = make_authorizer(config, lambda: controller.image.acls, kafka_name, now_ns)
        # While a divided request is in progress, no other request is read, so that each connection keeps its order.
        self._divided = DividedRequests(controller.containment, HandlerRequest.reject)
        self._services.clients.divided = self._divided
        self._peer: LinkedPeer | None = None
        self._requests: ClientPeer | None = None
        self.in_work = 0

    def report_suppressed(self, now_ns: int) -> None:
        """Log how many messages about rejected connections and denied operations were suppressed since the last report.

        The controller calls this at each of its ticks.
        """
        self._services.clients.refusals.report_suppressed(now_ns)
        if self._services.authorizer is not None:
            self._services.authorizer.report_suppressed(now_ns)

    def attach(self, peer: LinkedPeer) -> None:
        """Use the link to the control listener's Processor, which has started."""
        self._peer = peer
        self._requests = ClientPeer(peer.outbox)
        self.in_work = 0

    def detach(self) -> None:
        """Discard the link and the requests of the Processor, which has died."""
        self._peer = self._requests = None
        self._divided.clear()

    def work(self) -> int:
        """Read and handle requests while fewer than 20 are in progress. Return 0 if there was nothing to do."""
        peer = self._peer
        if peer is None:
            return 0
        taken = self._divided.work()
        # Leave the other requests in the ring, so that the Processor stops reading when it is full, and TCP pushes
        # back.
        while self.in_work < QUEUE_MAX and not self._divided:
            batch = peer.inbox.poll(1)
            if not batch:
                break
            for kind, view in batch:
                self._handle_record(kind, view, peer.link)
            peer.inbox.release()
            taken += 1
        return taken

    def has_input(self) -> bool:
        """Return True if there are requests that `work` would read."""
        if self._divided:
            return self._divided.is_ready()
        return self._peer is not None and self.in_work < QUEUE_MAX and not self._peer.inbox.is_empty()

    def _call_controller(
        self,
        peer: AgentId,
        call: Call[Any, Any],
        body: Any,
        on_reply: Callable[[Any], None],
        _payload: bytes | memoryview = b"",
    ) -> None:
        """Handle an API's call to the controller, which is this process. No API of SERVED calls another role."""
        if peer != CONTROLLER:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "The control listener serves only requests to the controller.",
            )
        self._controller.served_at_once.handle_own(call, body, on_reply)

    def _handle_record(self, kind: int, view: memoryview, link: Link) -> None:
        connection_id, sequence, listener, flags = HEAD.unpack_from(view)
        requests = self._requests
        assert requests is not None
        if kind == IDENTITY:
            requests.introduce(connection_id, view[HEAD_BYTES:])
        elif kind == DISCONNECTED:
            requests.cancel(connection_id)
        # RECALL_BLOCK: the arena block is free already, because its request was dispatched when it was read, and no
        # view outlives the dispatch.
        elif kind == RECALL_BLOCK:
            requests.outbox.push(BLOCK_FREE, HEAD.pack(connection_id, sequence, 0, 0))
        elif kind == REQUEST_BLOCK:
            assert link.arena is not None, "a Processor's link comes with its arena"
            frame = link.arena.view(*BLOCK.unpack_from(view, HEAD_BYTES))
            self._handle_frame(frame, (connection_id, sequence, listener, flags))
        else:
            assert kind == REQUEST, kind
            position = HEAD_BYTES
            while position < len(view):
                end = position + 4 + _LENGTH.unpack_from(view, position)[0]
                # If the connection is being closed, skip its other frames, because nobody would get their responses.
                if not self._handle_frame(
                    view[position + 4 : end], (connection_id, sequence, listener, flags)
                ):
                    return
                # FLAG_TIMED is only for the first frame of a record (envelope.py), so the other frames must not have
                # it.
                flags &= ~FLAG_TIMED
                sequence = (sequence + 1) & SEQUENCE_MASK
                position = end

    def _handle_frame(self, frame: memoryview, head: tuple[int, int, int, int]) -> bool:
        """Dispatch one request frame of a connection. The response can come later.

        Return False if the connection is being closed, because the frame is malformed or its API is not allowed here.
        """
        api_key = version = correlation_id = 0
        body, client_id = REQUEST_HEADER.size, None
        if len(frame) >= REQUEST_HEADER.size:
            api_key, version, correlation_id, client_id_length = REQUEST_HEADER.unpack_from(frame)
            if client_id_length >= 0:
                client_id = bytes(frame[body : body + client_id_length])
                body += client_id_length
        assert self._requests is not None
        request = _ControlRequest(
            self._services, self._requests, *head, api_key, version, correlation_id, client_id
        )
        request.plane = self
        self.in_work += 1
        try:
            if body > len(frame):
                raise ProtocolError("the frame is shorter than its request header")
            # Close the connection for an API outside of SERVED, which ApiVersions does not list. Kafka's clients
            # understand a closed connection as an unknown API.
            if api_key not in SERVED and api_key != PRIVATE_API_KEY:
                raise ProtocolError("the control listener does not serve this API")
            self._services.containment.owner = request
            dispatch(request, frame[body:])
            if request.is_timed:
                request.done_ns = self._services.clock.now_ns()
        except ProtocolError as error:
            request.reject(str(error))
        except Exception as error:  # noqa: BLE001 - contained
            self._services.containment.caught(f"API key {api_key} version {version}", error, request)
        finally:
            self._services.containment.owner = None
        return not request.is_closed


class _ControlRequest(HandlerRequest):
    """A request of the control listener. When it is answered, it no longer counts among the 20 requests in progress."""

    __slots__ = ("plane",)

    plane: ControlPlane

    def send(self, frame: bytes) -> None:
        super().send(frame)
        self._release_place()

    def send_parts(self, parts: list[bytes | FileRange]) -> None:
        super().send_parts(parts)
        self._release_place()

    def _finish(self, kind: int, frame: bytes = b"") -> None:
        super()._finish(kind, frame)
        self._release_place()

    def _release_place(self) -> None:
        # Skip a request of a Processor that has died, because `attach` has set the count to 0 for the Processor's
        # successor.
        if self.plane._requests is self.peer:
            self.plane.in_work -= 1
