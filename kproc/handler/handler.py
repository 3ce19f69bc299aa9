"""Handler: takes requests from the Processors' rings, owns partitions, answers.

One duty cycle: drain every Processor's ring (Produce requests are gathered), append per partition, give the
rings back, take the other roles' calls, collect finished syncs, complete what is due, publish once per link.
Views of rings and arenas live no longer than the drain that took them.

This file is long because it joins everything that a Handler has, and because its hot loop is written out.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from kproc.api.calls import Call
from kproc.api.context import Endpoint, Services
from kproc.api.coordinator_call import send_back
from kproc.api.fetch_session import SessionCache
from kproc.api.init_producer_id import ProducerIdAllocator
from kproc.api.produce import Placed, ProduceBatcher
from kproc.clock import NS_PER_S, Clock
from kproc.cluster.image import ClusterImage, MovedPartition, TopicImage
from kproc.cluster.values_in_force import current_value
from kproc.config import Config
from kproc.errors import ProtocolError
from kproc.handler.client_rates import CLIENT_BYTES, ClientBytes, ClientRates
from kproc.handler.compaction_calls import CompactionDesk
from kproc.handler.coordinator_runtime import CoordinatorRuntime
from kproc.handler.coordinators import all_kinds
from kproc.handler.hand_over import HandOver, moved_between
from kproc.handler.handler_peers import HandlerPeers, UnlinkedCalls, send
from kproc.handler.handler_telemetry import HandlerTelemetry
from kproc.handler.known_fetch import FetchShape, KnownFetches
from kproc.handler.known_produce import (
    AFTER_CORRELATION_ID,
    ONE,
    ONE_BYTES,
    KnownAnswers,
    KnownProduces,
    ProduceShape,
    TimedRequest,
)
from kproc.handler.moving import MovingConnections
from kproc.handler.owner_calls import OwnerCalls
from kproc.handler.partitions import Partitions
from kproc.handler.request_log import LoggedRequest, RequestLog, open_request_log
from kproc.handler.syncer import Syncer
from kproc.metrics.requests import HANDLERS_PART, REQUESTS
from kproc.metrics.slab import MetricsRow
from kproc.metrics.spec import SLOT
from kproc.observe.offline_partitions import OfflineNews
from kproc.purgatory.purgatory import Purgatory
from kproc.role.calls import serve_raw_call
from kproc.role.dispatch import after_header_tags, dispatch
from kproc.role.linked_agent import LinkedAgent, LinkedPeer
from kproc.role.request import ClientPeer, HandlerRequest
from kproc.role.roles import CLEANER, CONTROLLER, HANDLER, PROCESSOR, handler_id
from kproc.role.routing import OWNER, body_key
from kproc.transport.agent import STORE_MS, AgentId, Doze, Link
from kproc.transport.envelope import (
    ADDRESS,
    BLOCK,
    CALL,
    DELTA,
    DELTA_ACK,
    DISCONNECTED,
    FLAG_MOVED,
    FLAG_PROBE,
    FLAG_TIMED,
    HEAD,
    HEAD_BYTES,
    HINT,
    MOVE_OUT,
    REPLY,
    REQUEST,
    REQUEST_BLOCK,
    SEQUENCE_MASK,
    SNAPSHOT,
    TOKEN,
    unpack_sequences,
)
from kproc.wire.header import ApiKey, first_flexible

logger = logging.getLogger(__name__)

_FIXED: Final = struct.Struct(">ihhih")  # frame length, API key, version, correlation id, client id length
_FIXED_BLOCK: Final = struct.Struct(">hhih")  # the same in an arena block, which has no frame length
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)
_PRODUCE_FLEXIBLE: Final = first_flexible(ApiKey.PRODUCE)
_PRODUCE_SERVED: Final = range(3, 14)
_CALLS_PER_PASS: Final = 64
# Requests taken from a Processor before they are answered, at first. One quiet run each: with 16 connections 65 k/s
# when all that is there is taken at once, 79 k/s by fours; with 64 connections 98 and 85-89 k/s, hence the doubling.
_BATCH_MIN: Final = 4
_COUNTED_MAX: Final = 1000


class _Client(LinkedPeer):
    """A Processor's link, with the requests of its clients that wait here."""

    __slots__ = ("fetches", "requests", "shapes")

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.requests = ClientPeer(self.outbox)
        self.shapes: dict[bytes, ProduceShape] = {}  # By connection, as its id stands in a head.
        self.fetches: dict[bytes, FetchShape] = {}


class Handler(LinkedAgent):
    """One of M; owns the partitions that the routing table gives to its index."""

    __slots__ = (
        "_answers",
        "_batch_max",
        "_clients",
        "_compaction",
        "_coordinators",
        "_errors",
        "_fetches",
        "_hand_over",
        "_has_image",
        "_is_leaving",
        "_is_linked",
        "_known",
        "_make_request",
        "_moving",
        "_next_second_ns",
        "_offline",
        "_owner_calls",
        "_partitions",
        "_produce",
        "_purgatory",
        "_rates",
        "_request_log",
        "_requests",
        "_services",
        "_syncer",
        "_telemetry",
        "_timed",
        "_unlinked",
    )

    def __init__(
        self,
        agent_id: AgentId,
        *,
        doze: Doze,
        metrics: MetricsRow,
        clock: Clock,
        config: Config,
        endpoints: Sequence[Endpoint],
        make_partitions: Callable[[Callable[[], ClusterImage], Purgatory], Partitions],
        syncer: Syncer,
        is_linked: bool = True,
    ) -> None:
        super().__init__(agent_id, doze=doze, metrics=metrics, clock=clock)
        self._clients: dict[AgentId, _Client] = {}
        self._moving = MovingConnections()
        self._batch_max = config.kproc_handler_batch_max
        self._purgatory = Purgatory(clock.now_ns, self.containment)
        self._syncer = syncer
        self._partitions = make_partitions(lambda: self._services.image, self._purgatory)
        self._services = Services(
            config=config,
            clock=clock,
            image=ClusterImage(),
            endpoints=endpoints,
            handler_index=agent_id.index,
            partitions=self._partitions,
            peers=HandlerPeers(self._ask),
            purgatory=self._purgatory,
            counts=metrics.slab.counts(HANDLERS_PART + agent_id.index),
            containment=self.containment,
        )
        self._timed: list[TimedRequest] = []  # Of this pass, while they are in work.
        self._services.session_cache = SessionCache(config.max_incremental_fetch_session_cache_slots)
        self._services.producer_ids = ProducerIdAllocator(
            self._services.peers.call_controller, self.containment
        )
        self._answers = KnownAnswers()
        self._produce = ProduceBatcher(self._services, self._answers)
        self._known = KnownProduces(self._services, self._produce, self._timed, _PRODUCE_SERVED)
        self._fetches = KnownFetches(self._services, self._partitions, self._produce)
        self._compaction = CompactionDesk(self._partitions, lambda: self._services.image, clock.now_ns)
        self._services.hand_over = self._hand_over = HandOver(
            handler_index=agent_id.index,
            image=lambda: self._services.image,
            partitions=self._partitions,
            ask=self._services.peers.ask,
            is_linked=lambda index: handler_id(index) in self._peers,
            now_ns=clock.now_ns,
        )
        self._services.client_rates = self._rates = self._make_rates(config)
        # While the log is on, each request goes the general way and notes its answer.
        self._request_log: RequestLog | None = None
        self._make_request = HandlerRequest
        self._coordinators = self._make_coordinators(config)
        self._services.coordinators = self._coordinators.by_topic
        self._offline = OfflineNews(agent_id.index, self._services.peers.call_controller)
        self._telemetry = HandlerTelemetry(agent_id, self._services, self._partitions, self._hand_over)
        self._owner_calls = self._make_owner_calls()
        self._has_image = self._is_leaving = False
        self._unlinked = UnlinkedCalls(self._calls, self.containment, clock.now_ns)
        # A successor may own partitions that somebody else still has open: it must know whom to ask.
        self._is_linked = is_linked
        self._requests = self._errors = self._next_second_ns = 0

    def _make_owner_calls(self) -> OwnerCalls:
        return OwnerCalls(
            self._services,
            partitions=self._partitions,
            produce=self._produce,
            hand_over=self._hand_over,
            rates=self._rates,
            compaction=self._compaction,
            telemetry=self._telemetry,
        )

    def _make_coordinators(self, config: Config) -> CoordinatorRuntime:
        return CoordinatorRuntime(
            all_kinds(config, self._clock),
            config=config,
            clock=self._clock,
            image=lambda: self._services.image,
            partitions=self._partitions,
            handler_index=self.id.index,
            containment=self.containment,
        )

    def _make_rates(self, config: Config) -> ClientRates:
        return ClientRates(
            quotas=lambda: self._services.image.client_quotas,
            now_ns=self._clock.now_ns,
            sample_count=config.quota_window_num,
            sample_s=config.quota_window_size_seconds,
        )

    # -- wiring ------------------------------------------------------------------------------------------------

    def attach(self, link: Link) -> None:
        if link.peer.role != PROCESSOR:
            super().attach(link)
            self._unlinked.attached(link.peer)
            if link.peer == CONTROLLER:
                self._offline.controller_is_new()
            return
        if link.peer in self._clients:
            self.detach(link.peer)
        self._clients[link.peer] = _Client(link)
        self._list_outboxes()

    def detach(self, peer: AgentId) -> None:
        client = self._clients.pop(peer, None)
        if client is None:
            super().detach(peer)
            if peer == CLEANER:
                self._compaction.forget()
            return
        for connection_id in list(client.requests.waiting):
            client.requests.forget(connection_id)
        self._moving.lose(client.requests, self._clock.now_ns())
        self._list_outboxes()

    def has_image(self) -> bool:
        """True once the controller has sent its metadata: before that no request can be answered."""
        return self._has_image

    def apply_endpoints(self, endpoints: Sequence[Endpoint]) -> None:
        """Listeners came or went: what their clients are told to connect to."""
        self._services.endpoints = endpoints

    def set_linked(self) -> None:
        """Every peer of the start is attached: from now on a peer that is not there is dead or has left."""
        self._is_linked = True

    def begin_leave(self) -> None:
        """The routing table names this Handler no more (`set_handler_count` has been answered): answer what waits
        and park nothing more, so that Processors can move their connections' home. Requests are still served.

        When `is_drained`, and no Processor uses it any more, it may be stopped, closed and detached.
        """
        self._is_leaving = True
        self._purgatory.expire_all()

    def begin_stop(self) -> None:
        """Answer what waits: nothing more will be appended."""
        super().begin_stop()
        self._compaction.begin_stop()
        self._coordinators.begin_stop()
        self._purgatory.expire_all()

    def is_drained(self) -> bool:
        """Stopping: everything is answered. Leaving: and every partition is with its next owner."""
        if self._is_leaving and not self._is_stopping:
            return not (
                len(self._partitions)
                or not self._hand_over.is_idle
                or self._partitions.syncing
                or len(self._purgatory)
                or len(self._calls)
                or self._unlinked
                or self._moving
                or any(each.has_overflow for each in self._outboxes)
                or self._has_input()
            )
        is_synced = not self._partitions.unsynced and not self._partitions.syncing and self._hand_over.is_idle
        return super().is_drained() and is_synced and not self._moving.has_holders()

    def close(self) -> str | None:
        """Close every log cleanly, raises OSError if one could not be flushed; returns `Partitions.unknown_log`."""
        unknown = self._partitions.unknown_log()
        self._syncer.close()
        self._partitions.finish_sync()
        try:
            self._hand_over.close()
        finally:
            self._partitions.close(is_clean=True)
        if self._request_log is not None:
            self._request_log.close()
        super().close()
        return unknown

    # -- the duty cycle ----------------------------------------------------------------------------------------

    def _due_ms(self, now_ns: int) -> int:
        if self._hand_over.is_opening:
            return 0
        due_ms = self._coordinators.due_ms
        if due_ms > self._sleep_ms_max:
            due_ms = self._sleep_ms_max
        deadline_ns = self._purgatory.next_deadline_ns()
        if deadline_ns is None:
            return due_ms
        left_ms = (deadline_ns - now_ns + 999_999) // 1_000_000
        return max(0, min(due_ms, left_ms))

    def _work(self) -> int:
        """Asks before it calls: a lone client pays for all of this at each request."""
        work = len(self._unlinked)
        if work:
            self._unlinked.ask_again(self._outbox)
        # Peers first: a change of the owners that is there must be known before anything new is appended.
        for peer in list(self._peers.values()):
            if not peer.inbox.is_empty():
                work += self._take_from_peer(peer)
        if self._hand_over.is_opening:
            work += self._hand_over.go_on_opening()
        if self._produce.gathered:  # What waited for a partition goes on between two passes, too.
            self._produce.flush()
        if self._has_image and self._is_linked:
            for client in self._clients.values():
                work += self._drain(client)
        if self._is_stopping or self._is_leaving:
            self._purgatory.expire_all()  # Requests that were still in the rings must not wait, either.
        if self._request_log is not None:
            self._request_log.flush()
        if self._partitions.syncing:
            work += self._partitions.finish_sync()
            self._hand_over.retire()
        if self._compaction.swaps and not self._partitions.syncing:
            work += self._compaction.work()
        if self._partitions.unsynced:
            self._partitions.start_sync()
        # The coordinators last: they say how long there is nothing to do for them.
        return work + self._purgatory.expire() + self._coordinators.work(self._clock.now_ns())

    def _drain(self, client: _Client) -> int:
        """Take a Processor's requests; nothing while it has answers of ours to take.

        A few at a time, so that it sends the first answers while the next requests are being handled; twice as
        many each time there is more, because under saturation the fixed cost of a round counts.
        """
        taken = 0
        limit = _BATCH_MIN
        self._answers.peer = client.requests
        while True:
            if client.outbox.has_overflow:
                client.outbox.flush()
                if client.outbox.has_overflow:
                    return taken
            batch = client.inbox.poll(limit)
            if not batch:
                return taken
            for kind, view in batch:
                if kind == REQUEST:
                    self._take_frames(client, view)
                elif kind == REQUEST_BLOCK:
                    self._take_block(client, view)
                else:
                    self._take_news(client, kind, view)
            self._produce.flush()
            if self._coordinators.dirty:
                self._coordinators.flush()
            if self._timed:
                self._mark_done()
            client.inbox.release()
            client.outbox.flush()
            taken += len(batch)
            if len(batch) < limit or taken >= self._batch_max:  # The other Processors want their turn.
                return taken
            limit *= 2

    def _take_frames(self, client: _Client, view: memoryview) -> None:
        """One record: the frames of one read of one connection. One as the last ones is compared, and not decoded."""
        if len(view) >= ONE_BYTES:
            connection, number, flags, start, correlation = ONE.unpack_from(view)
            shape = client.shapes.get(connection)
            if (
                shape is not None
                and start == shape.start
                and len(view) == shape.record_bytes
                and not flags & FLAG_TIMED
                and view[ONE_BYTES : shape.records_from].tobytes() == shape.same
                and (not shape.tail or view[shape.records_to :].tobytes() == shape.tail)
                and shape.owned.log.offline_reason is None
            ):
                records = view[shape.records_from : shape.records_to]
                if self._produce.take_known(shape.owned, records, (shape, connection, number, correlation)):
                    self._known.counts[shape.version] += 1
                    return
            fetch = client.fetches.get(connection)
            if fetch is not None and not flags & FLAG_TIMED and fetch.is_of(view):
                ids = connection, number, correlation
                if self._fetches.take(fetch, client.requests, view, ids):
                    return
        self._take_each(client, view)

    def _take_each(self, client: _Client, view: memoryview) -> None:
        """Frame by frame. A Produce of known shape, of whatever length, is not decoded, either."""
        connection_id, sequence, listener, flags = HEAD.unpack_from(view)
        services = self._services.uncounted() if flags & FLAG_PROBE else self._services
        requests = client.requests
        is_timed = flags & FLAG_TIMED
        key = view[:8].tobytes()
        shape = client.shapes.get(key)
        position, end = HEAD_BYTES, len(view)
        while position < end:
            fixed = int.from_bytes(view[position : position + 4], "big"), 0, 0, 0, 0  # Of one cut short.
            if end - position >= _FIXED.size:
                fixed = _FIXED.unpack_from(view, position)
            length, api_key, version, correlation_id, client_id_length = fixed
            frame_end = position + 4 + length
            if shape is not None and api_key == _PRODUCE and version == shape.version:
                at = position + shape.records_at
                if (
                    view[position + AFTER_CORRELATION_ID : at].tobytes() == shape.prefix
                    and shape.owned.log.offline_reason is None
                ):
                    records = shape.records(view, at, frame_end)
                    if records is not None:
                        ids = connection_id, sequence, correlation_id
                        self._known.take(shape, requests, ids, records, is_timed=bool(is_timed))
                        flags ^= is_timed  # The first of them, that is.
                        is_timed = 0
                        if length != shape.length:
                            shape.notice(view[position:frame_end], len(records))
                        sequence = (sequence + 1) & SEQUENCE_MASK
                        position = frame_end
                        continue
            body = position + _FIXED.size
            client_id = None
            if client_id_length >= 0:
                client_id = bytes(view[body : body + client_id_length])
                body += client_id_length
            request = self._make_request(
                services, requests, connection_id, sequence, listener, flags,
                api_key, version, correlation_id, client_id,
            )  # fmt: skip
            if body > frame_end:
                self._begin_log(request, None)
                self._refuse(request, "a frame shorter than its header")
                return
            placed = self._serve(request, view[body:frame_end])
            if request.is_closed:
                return
            flags ^= is_timed
            is_timed = 0
            # The short ways neither count bytes nor note answers.
            if self._rates.is_on or self._request_log:
                pass
            elif api_key == _FETCH and position == HEAD_BYTES and frame_end == end:
                self._fetches.notice(client.fetches, version, view, end - body)
            elif learned := self._known.learn(version, view[position:frame_end], placed):
                shape = client.shapes[key] = learned
            sequence = (sequence + 1) & SEQUENCE_MASK
            position = frame_end

    def _mark_done(self) -> None:
        """What is timed and not answered by now waits for somebody else."""
        now_ns = self._clock.now_ns()
        for request in self._timed:
            request.done_ns = now_ns
        self._timed.clear()

    def _take_block(self, client: _Client, view: memoryview) -> None:
        """One large frame, in the Processor's arena."""
        connection_id, sequence, listener, flags = HEAD.unpack_from(view)
        offset, length = BLOCK.unpack_from(view, HEAD_BYTES)
        arena = client.link.arena
        assert arena is not None, "a Processor's link comes with its arena"
        frame = arena.view(offset, length)
        api_key, version, correlation_id, client_id_length = _FIXED_BLOCK.unpack_from(frame)
        key = view[:8].tobytes()
        shape = client.shapes.get(key)
        if (
            shape is not None
            and api_key == _PRODUCE
            and version == shape.version
            and shape.owned.log.offline_reason is None
        ):
            records = shape.records_of_block(frame)
            if records is not None:
                ids = connection_id, sequence, correlation_id
                self._known.take(shape, client.requests, ids, records, is_timed=bool(flags & FLAG_TIMED))
                return
        body = _FIXED_BLOCK.size
        client_id = None
        if client_id_length >= 0:
            client_id = bytes(frame[body : body + client_id_length])
            body += client_id_length
        request = self._make_request(
            self._services, client.requests, connection_id, sequence, listener, flags,
            api_key, version, correlation_id, client_id,
        )  # fmt: skip
        if body > length:
            self._begin_log(request, None)
            self._refuse(request, "a frame shorter than its header")
            return
        placed = self._serve(request, frame[body:])
        if self._rates.is_on or self._request_log or key in client.shapes:
            return  # As above; and one that was learned from a frame in a ring says more.
        if learned := self._known.learn(version, frame, placed, has_length=False):
            client.shapes[key] = learned

    def _take_news(self, client: _Client, kind: int, view: memoryview) -> None:
        """A connection of that Processor is new, has ended, leaves it, or has come to it: see moving.py."""
        connection_id, attempt, _, flags = HEAD.unpack_from(view)
        if kind == ADDRESS:
            client.requests.introduce(connection_id, view[HEAD_BYTES:])
        elif kind == MOVE_OUT:
            self._produce.flush()  # What was gathered is answered in the old way.
            self._moving.move_out(client.requests, connection_id, attempt)
        elif kind == DISCONNECTED:
            client.requests.forget(connection_id)
            client.shapes.pop(view[:8].tobytes(), None)
            client.fetches.pop(view[:8].tobytes(), None)
            if flags & FLAG_MOVED:
                self._moving.gave_away(client.requests, connection_id, self._clock.now_ns())
            else:
                self._moving.gone(client.requests, connection_id)
        else:
            self._moving.move_in(client.requests, connection_id, unpack_sequences(view[HEAD_BYTES:]))

    def _serve(self, request: HandlerRequest, body: memoryview) -> Placed | None:
        """Gather a Produce and say where it went, dispatch anything else."""
        self._requests += request.services is self._services
        if request.is_timed:
            self._timed.append(request)
            if self._services.samples is not None:
                self._services.samples.begin(request, body)
        self.containment.owner = request
        try:
            if self._request_log is not None:
                self._begin_log(request, body)
            if request.api_key == _PRODUCE and request.api_version in _PRODUCE_SERVED:
                request.services.counts.add(REQUESTS, _PRODUCE, request.api_version)
                if request.api_version >= _PRODUCE_FLEXIBLE:
                    body = after_header_tags(body)
                if self._rates.is_on:
                    self._throttle(request, len(body))
                placed = self._produce.add(request, body)
                if placed is not None and placed.owned is None:
                    self._hint(request, body, placed.owner)
                return placed
            # A request sees what the Produce requests before it appended.
            self._produce.flush()
            dispatch(request, body)
            if self._timed:
                self._mark_done()
        except ProtocolError as error:
            self._refuse(request, str(error))
        except Exception as error:  # noqa: BLE001 - contained
            what = f"API key {request.api_key} version {request.api_version}"
            self.containment.caught(what, error, request)
        finally:
            self.containment.owner = None
        return None

    def _throttle(self, request: HandlerRequest, body_bytes: int) -> None:
        """Count a Produce; a client that is above its quota is not read for a while, beginning now."""
        client_id = request.client_id_bytes
        size = _FIXED_BLOCK.size + len(client_id or b"") + body_bytes
        request.throttle_ms = self._rates.on_produce(client_id, size)
        if request.throttle_ms:
            request.throttle(request.throttle_ms)

    def _hint(self, request: HandlerRequest, body: memoryview, owner: int) -> None:
        """Tell the Processor where the next Produce of this partition belongs."""
        key = body_key(request.api_version, body)
        if key is not None:
            request.peer.outbox.push(HINT, OWNER.pack(owner), key)

    def _refuse(self, request: HandlerRequest, reason: str) -> None:
        logger.warning(
            "closing connection %d: %s (API key %d, version %d)",
            request.connection_id,
            reason,
            request.api_key,
            request.api_version,
        )
        self._errors += 1
        request.leave_untimed()
        request.close()

    # -- other roles -------------------------------------------------------------------------------------------

    def _take_from_peer(self, peer: LinkedPeer) -> int:
        batch = peer.inbox.poll(_CALLS_PER_PASS)
        if not batch:
            return 0
        for kind, view in batch:
            if kind == CALL:
                serve_raw_call(view, peer.outbox, self._owner_calls.serve_raw)
            elif kind == REPLY:
                self._calls.take_reply(view)
            elif kind == DELTA:
                self._produce.flush()  # What we were sent as the owner.
                self._apply(view)
                peer.outbox.push(DELTA_ACK, TOKEN.pack(self._services.image.version, 0))
            elif kind == SNAPSHOT:
                self._adopt(ClusterImage.from_snapshot(view))
                peer.outbox.push(DELTA_ACK, TOKEN.pack(self._services.image.version, 0))
        self._produce.flush()
        self._coordinators.flush()
        peer.inbox.release()
        return len(batch)

    def _ask(
        self,
        peer: AgentId,
        call: Call[Any, Any] | str,
        body: Any,
        on_reply: Callable[[Any], None],
        payload: bytes | memoryview = b"",
    ) -> None:
        outbox = self._outbox(peer)
        if outbox is None and peer.role == HANDLER:
            # The metadata may name it before we have heard of its link: that comes by the control socket, which a
            # busy Handler reads now and then, the metadata by a ring. Now it reads it, and only then is this lost.
            self._unlinked.add(peer, call, body, on_reply, payload)
            self.is_called = True
            return
        send(self._calls, outbox, peer, call, body, on_reply, payload)

    def _adopt(self, image: ClusterImage) -> None:
        """A whole image, at our start or after the controller's: what changed in between was no delta."""
        before = self._services.image
        gone = [
            topic for topic_id, topic in before.topics_by_id.items() if topic_id not in image.topics_by_id
        ]
        self._change_image(image, gone, moved_between(before, image), is_whole=True)
        self._has_image = True
        for topic in image.topics_by_name.values():
            self._partitions.reconfigure(topic)

    def _apply(self, view: memoryview) -> None:
        """Take in a metadata change and do what the owner must do about it."""
        change = self._services.image.apply(view)
        self._change_image(self._services.image, change.deleted, change.moved)
        image = self._services.image
        if change.broker_configs_changed:
            self._switch_logs()
        for topic in image.topics_by_name.values() if change.broker_configs_changed else change.configured:
            self._partitions.reconfigure(topic)

    def _change_image(
        self,
        image: ClusterImage,
        deleted: list[TopicImage],
        moved: list[MovedPartition],
        *,
        is_whole: bool = False,
    ) -> None:
        self._services.image = image
        if is_whole:
            self._produce.on_unknown()
            self._switch_logs()
        self._forget_shapes()
        for topic in deleted:
            self._hand_over.forget(topic)
            self._partitions.delete(topic)
        if deleted:
            self._coordinators.topics_deleted(deleted)
        if moved:
            self._coordinators.on_moved(moved)
            send_back(self._services)
            self._produce.on_moved((each.topic.name, each.partition.index) for each in moved)
            self._hand_over.on_moved(moved)
        self._rates.on_image()
        self._hand_over.on_image()

    def _begin_log(self, request: HandlerRequest, body: memoryview | None) -> None:
        if isinstance(request, LoggedRequest):
            assert self._request_log is not None
            request.begin(self._request_log, body)

    def _switch_logs(self) -> None:
        """As the dynamic configs in force say."""
        if self._request_log is not None:
            self._request_log.close()
        self._request_log = open_request_log(
            self._services.config,
            lambda name: current_value(self._services.image, self._services.config, name),
            self.id.index,
            now_ns=self._clock.now_ns,
            wall_ms=self._clock.wall_ms,
        )
        self._make_request = HandlerRequest if self._request_log is None else LoggedRequest
        self._telemetry.switch()

    def _forget_shapes(self) -> None:
        """They lead to topics and owners as they were."""
        for client in self._clients.values():
            client.shapes.clear()
            client.fetches.clear()

    # -- now and then ------------------------------------------------------------------------------------------

    def _list_outboxes(self) -> None:
        super()._list_outboxes()
        self._outboxes += [client.outbox for client in self._clients.values()]

    def _has_input(self) -> bool:
        if self._unlinked:
            return True
        # While they have answers of ours to take (see next_deadline_ms), or we no metadata, requests are no work.
        for client in self._clients.values() if self._has_image and self._is_linked else ():
            if not client.outbox.has_overflow and not client.inbox.is_empty():
                return True
        for peer in self._peers.values():  # noqa: SIM110
            if not peer.inbox.is_empty():
                return True
        return False

    def _rest_ms(self) -> int:
        return STORE_MS if self._telemetry.is_on else super()._rest_ms()

    def _on_tick(self, now_ns: int) -> None:
        if self._moving:
            self._moving.expire(now_ns)
        self.containment.run("telemetry", None, self._telemetry.tick, now_ns)
        if now_ns >= self._next_second_ns and self._has_image:
            self._next_second_ns = now_ns + NS_PER_S
            self.containment.run("what partitions do now and then", None, self._partitions.tick)
            self._offline.tell(self._partitions.offline)
            self.containment.run("what hand-overs do now and then", None, self._hand_over.tick)
        if self._rates.is_on and (told := self._rates.take_untold()):
            for peer in self._peers:
                if peer.role == HANDLER:
                    self._ask(peer, CLIENT_BYTES, ClientBytes(told), lambda _reply: None)
        values = self._metrics.values
        produce = self._produce
        self._requests += self._known.count()
        self._services.counts.store()
        values[SLOT["requests"]] += self._requests + self._fetches.answered
        values[SLOT["malformed"]] += self._errors
        values[SLOT["batches_appended"]] += produce.batches
        values[SLOT["bytes_appended"]] += produce.bytes
        values[SLOT["append_calls"]] += produce.append_calls
        values[SLOT["forwarded"]] += produce.forwarded
        values[SLOT["syncs"]] += self._partitions.syncs
        self._requests = self._errors = self._fetches.answered = 0
        produce.batches = produce.bytes = produce.append_calls = produce.forwarded = (
            self._partitions.syncs
        ) = 0
        values[SLOT["ring_records"]] = sum(
            client.outbox.waiting(_COUNTED_MAX) for client in self._clients.values()
        )
        values[SLOT["parked"]] = len(self._purgatory)
        values[SLOT["logs_open"]] = len(self._partitions)
