"""ClientRequests: reads requests from the Processors' rings, and handles them or queues them.

Produce requests are queued in the AppendQueue until the end of a batch; all others are handled at once. Large
requests are handled in steps, one per duty cycle. Their connection is parked meanwhile (held_connections.py).
fast_path_learner.py learns from the handled requests. connection_news.py handles the other records of a Processor.

Views of rings and arenas are valid only until the end of the `drain` that polled them.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from kproc.broker.cluster.client_quotas import PRODUCER_BYTE_RATE
from kproc.broker.cluster.dynamic_settings import current_value
from kproc.broker.coordinator.coordinator_runtime import CoordinatorRuntime
from kproc.broker.handler.connection_news import ConnectionNews, meter_socket
from kproc.broker.handler.fast_path_learner import FastPathLearner
from kproc.broker.handler.fault_switch import FaultSwitch
from kproc.broker.handler.held_connections import HeldConnections
from kproc.broker.handler.logins import Logins
from kproc.broker.handler.migrating_connections import MigratingConnections
from kproc.broker.handler.processor_peer import BATCH_MIN, ProcessorPeer
from kproc.broker.handler.request_log import LoggedRequest, RequestLog, open_request_log
from kproc.broker.handler.request_monitor import RequestMonitor
from kproc.broker.metrics.requests import REQUESTS
from kproc.broker.produce.append_queue import AppendQueue
from kproc.broker.produce.produce import Destination, RecordRouter
from kproc.broker.request.context import Services
from kproc.broker.request.dispatch import after_header_tags, dispatch
from kproc.broker.request.fast_path import CONNECTION_BYTES, NoFastPath
from kproc.broker.request.registry import PRODUCE_VERSIONS
from kproc.broker.request.request import HandlerRequest
from kproc.broker.request.routing import OWNER, body_key
from kproc.broker.role.due_time import DueTime
from kproc.broker.share.partition.delivery_counts import count_share_records
from kproc.broker.share.session.owner_call import close_sessions
from kproc.broker.transport.envelope import (
    BLOCK,
    FLAG_LOGIN,
    FLAG_PROBE,
    FLAG_TIMED,
    HEAD,
    HEAD_BYTES,
    HINT,
    REQUEST,
    REQUEST_BLOCK,
    SEQUENCE_MASK,
)
from kproc.common.errors import ProtocolError
from kproc.wire.header import REQUEST_HEADER, ApiKey, first_flexible

if TYPE_CHECKING:
    from kproc.broker.faults.injector import FaultInjector

logger = logging.getLogger(__name__)

_LENGTH_BYTES: Final = 4  # Length field in front of a frame in a ring. A frame in a block has none.
_connection_of: Final = struct.Struct(f"{CONNECTION_BYTES}s").unpack_from
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)
# Requests that can have thousands of partitions in a few kB.
_FETCHES: Final = frozenset(map(int, (ApiKey.FETCH, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE)))
_PRODUCE_FLEXIBLE: Final = first_flexible(ApiKey.PRODUCE)
# A connection that sends a second request in a duty cycle rests: that request waits for a later cycle
# (held_connections.py). Requests of resting connections are handled for up to this time in ns per duty cycle, but at
# least one request is.
_TURNS_NS: Final = 1_000_000
# Size of a Fetch of about 500 partitions, or a ShareFetch of 1,300.
_SLOW_FETCH_BYTES: Final = 16_384
# Requests above this size are slow, except Produce. Many clients can send one at the same time, for example a JoinGroup
# with 1 MB of metadata, which takes 1.2 ms.
_SLOW_BYTES: Final = 65_536
# Records of one Processor that a Handler handles in one duty cycle.
_BATCH_MAX: Final = 256
# After a drain of up to this many records, the next one begins with the smallest batch.
_SMALL_DRAIN: Final = 2 * BATCH_MIN


class ClientRequests:
    """The requests of all clients of one Handler. One per Handler."""

    __slots__ = (
        "_coordinators",
        "_divided",
        "_due",
        "_file_log",
        "_handle_request",
        "_learner",
        "_make_request",
        "_may_run_slow",
        "_monitor",
        "_news",
        "_on_watched",
        "_produce",
        "_queue",
        "_services",
        "_timed",
        "faults",
        "held",
        "large",
        "log",
        "logins",
        "moving",
        "rates",
        "refused",
        "resting",
        "served",
        "without_room",
    )

    def __init__(
        self,
        services: Services,
        due: DueTime,
        *,
        produce: RecordRouter,
        queue: AppendQueue,
        coordinators: CoordinatorRuntime,
        on_watched: Callable[[], None],
    ) -> None:
        self._services = services
        self._due = due
        self._produce = produce
        self._queue = queue
        self._coordinators = coordinators
        self._learner = FastPathLearner(services, queue, range(max(PRODUCE_VERSIONS) + 1))
        # Timed requests of this duty cycle that are still being handled.
        self._timed: list[HandlerRequest] = []
        self._monitor = services.clients.monitor = RequestMonitor(services, on_watched)
        self._on_watched = on_watched
        services.clients.count_share_records = partial(count_share_records, services)
        self.faults = services.clients.faults = FaultSwitch(services, self._make_injector)
        # `_handle`, or the fault injector's function while there are fault rules.
        self._handle_request: Callable[[HandlerRequest, memoryview], Destination | None] = self._handle
        self._file_log: RequestLog | None = None
        # The monitor while a `kproc monitor` watches or there are fault rules, else the request log if it is on. While
        # this is set, every request uses the general path and logs its response.
        self.log: RequestLog | RequestMonitor | None = None
        self._make_request = HandlerRequest
        self.rates = services.client_rates
        self.moving = MigratingConnections()
        self.logins = services.clients.logins = Logins(services)
        self.held = HeldConnections(services, self._refuse)
        self._divided = services.clients.divided = self.held.divided
        self._may_run_slow = False  # True while `resume_resting` may handle a slow request.
        self.large = self._divided.jobs  # Requests and answers that are handled in steps.
        self.without_room, self.resting = self.held.without_room, self.held.resting
        self._news = ConnectionNews(
            services, queue, held=self.held, logins=self.logins, moving=self.moving, faults=self.faults
        )
        self.served = self.refused = 0  # Handled requests and malformed frames since the last `count`.

    # -- wiring ------------------------------------------------------------------------------------------------

    def detach(self, client: ProcessorPeer) -> None:
        """Remove a Processor that has ended, and abandon the requests of its connections."""
        for key in list(client.held):
            self.held.abandon(client, key)
        connection_ids = list(client.requests.identities)
        for connection_id in list(client.requests.waiting):
            client.requests.cancel(connection_id)
        for connection_id in connection_ids:
            self.logins.discard_login(connection_id)
            close_sessions(self._services, connection_id)
        self.faults.on_processor_death(connection_ids)
        self.moving.on_processor_death(client.requests, self._services.clock.host_ns())

    def switch_log(self) -> None:
        """Switch the request log by the dynamic configs in force, and load the fault rules, if there are any.

        The caller must also discard the fast paths.
        """
        services = self._services
        self.close()
        self._file_log = open_request_log(
            services.config,
            lambda name: current_value(services.image, services.config, name),
            services.handler_index,
            now_ns=services.clock.host_ns,
            wall_ms=services.clock.wall_ms,
        )
        self.faults.load()
        self.choose_log()

    def choose_log(self) -> None:
        """Use the monitor while a `kproc monitor` watches, or else the request log. The caller discards the fast paths.

        While there are fault rules, the monitor is used, too, because every request must take the general path.
        """
        injector = self.faults.injector
        is_faulted = injector is not None and injector.is_on
        self._monitor.log = self._file_log
        self.log = self._monitor if self._monitor.is_on or is_faulted else self._file_log
        self._make_request = HandlerRequest if self.log is None else LoggedRequest
        self._handle_request = injector.handle if injector is not None and is_faulted else self._handle

    def _make_injector(self) -> FaultInjector:
        from kproc.broker.faults.injector import FaultInjector
        from kproc.broker.faults.rule_files import RuleFiles

        return FaultInjector(
            self._services,
            RuleFiles(self._services.config.log_dirs),
            handle_request=self._handle,
            start_entry=self._start_log_entry,
            on_switched=self._on_watched,
        )

    def close(self) -> None:
        """Write the request log's pending lines and close it."""
        if self._file_log is not None:
            self._file_log.close()
        self._file_log = self._monitor.log = self.log = None

    def count(self) -> tuple[int, int]:
        """Return the numbers of handled requests and of malformed frames since the last call."""
        served = self.served + self._learner.count()
        refused = self.refused
        self.served = self.refused = 0
        return served, refused

    # -- draining -----------------------------------------------------------------------------------------------

    def drain(self, client: ProcessorPeer) -> int:
        """Handle a Processor's requests. Return the number of records that were handled.

        Handle none while the Processor has not read earlier responses. The first batch is small, so that the
        Processor sends its responses while the next batch is handled. Each further batch is twice as large, because
        under saturation the fixed cost of a batch counts.
        """
        taken = 0
        if client.had_turn:
            client.had_turn.clear()
        limit = client.first_batch
        inbox, outbox, path_of = client.inbox, client.outbox, client.paths.get
        while True:
            if outbox.has_overflow:
                outbox.flush()
                if outbox.has_overflow:
                    return taken
            batch = inbox.poll(limit)
            if not batch:
                return taken
            for kind, view in batch:
                if kind == REQUEST:
                    path = path_of(*_connection_of(view))
                    if path is None or not path.handle(view):
                        self._handle_frames(client, view)
                elif kind == REQUEST_BLOCK:
                    self._handle_block(client, view)
                else:
                    self._due.press()
                    try:
                        self._news.handle(client, kind, view)
                    except Exception as error:  # noqa: BLE001 - contained
                        self._services.containment.caught("the record of a Processor", error)
            # Append the queued batches before `release`, because their records lie in the ring.
            self._queue.flush()
            if not self._due.ns:
                self._finish_batch()
            inbox.release()
            outbox.flush()
            count = len(batch)
            taken += count
            # Stop after this many records, so that the other Processors get their turn.
            if count < limit or taken >= _BATCH_MAX:
                client.first_batch = taken >> 1 if taken > _SMALL_DRAIN else BATCH_MIN
                return taken
            limit *= 2

    def _handle_frames(self, client: ProcessorPeer, view: memoryview) -> None:
        """Handle the frames in one REQUEST record of the ring: all that one read of a connection returned."""
        self._due.press()
        connection_id, sequence, listener, flags = HEAD.unpack_from(view)
        position, end = HEAD_BYTES, len(view)
        while position < end:
            begin = position + _LENGTH_BYTES
            position = begin + int.from_bytes(view[position:begin], "big")
            if not self._handle_frame(
                client, view, (begin, position), (connection_id, sequence, listener, flags)
            ):
                return  # The connection is being closed.
            flags &= ~FLAG_TIMED  # Only the first frame of a record is timed.
            sequence = (sequence + 1) & SEQUENCE_MASK

    def _handle_block(self, client: ProcessorPeer, view: memoryview) -> None:
        """Handle one large frame in the Processor's arena, or park it until it may run.

        `view` is the REQUEST_BLOCK record with the frame's offset and length in the arena.
        """
        self._due.press()
        arena = client.link.arena
        assert arena is not None, "a Processor's link comes with its arena"
        offset, length = BLOCK.unpack_from(view, HEAD_BYTES)
        frame = arena.view(offset, length)
        if (self.large or client.held) and self.held.must_wait(client, view, frame):
            return
        if (
            length > _SLOW_FETCH_BYTES
            and (api_key := int.from_bytes(frame[:2], "big")) != _PRODUCE
            and (length > _SLOW_BYTES or api_key in _FETCHES)
            and self._rests_slow()
        ):
            key = view[:CONNECTION_BYTES].tobytes()
            self.held.rest(client, key, client.paths.get(key)).keep_block(view)
            return
        self._handle_frame(client, frame, (0, length), HEAD.unpack_from(view), record=view)

    def _handle_frame(
        self,
        client: ProcessorPeer,
        view: memoryview,
        place: tuple[int, int],
        head: tuple[int, int, int, int],
        *,
        record: memoryview | None = None,
    ) -> bool:
        """Handle one frame at `place` (begin and end, without its length) of a view.

        view: a REQUEST record, or the frame in a block that `record` names.

        Returns False if the connection is being closed, so that its further frames must be discarded.
        """
        # This function is not divided, because every request of the general path would pay for the calls.
        begin, end = place
        frame = view[begin:end]
        if head[3] & FLAG_LOGIN:
            return self.logins.handle_frame(client.requests, frame, head)
        key = (view if record is None else record)[:CONNECTION_BYTES].tobytes()
        path = client.paths.get(key)
        connection_id, sequence, listener, flags = head
        if path is not None and path.handle_frame(frame, connection_id, sequence, listener, flags):
            return True
        services = self._services.uncounted() if flags & FLAG_PROBE else self._services
        header = 0, 0, 0, 0  # For a frame that is shorter than a header. It is rejected below.
        if len(frame) >= REQUEST_HEADER.size:
            header = REQUEST_HEADER.unpack_from(frame)
        api_key, version, correlation_id, client_id_length = header
        body_at = REQUEST_HEADER.size
        client_id = None
        if client_id_length >= 0:
            client_id = bytes(frame[body_at : body_at + client_id_length])
            body_at += client_id_length
        if record is None and api_key != _PRODUCE:
            is_slow = api_key in _FETCHES and len(frame) > _SLOW_FETCH_BYTES
            if key in client.had_turn or (is_slow and self._rests_slow()):
                self.held.rest(client, key, path).handle_frame(
                    frame, connection_id, sequence, listener, flags
                )
                return True
            client.had_turn.add(key)
        request = self._make_request(
            services, client.requests, connection_id, sequence, listener, flags,
            api_key, version, correlation_id, client_id,
        )  # fmt: skip
        if body_at > len(frame):
            self._start_log_entry(request, None)
            self._refuse(request, "the frame is shorter than its request header")
            return False
        body = frame[body_at:]
        if self.rates.is_on and services is self._services:
            destination = self._handle_metered(client, request, body)
            is_limited = self.rates.limits(request.principal.name, client_id)
        else:
            destination = self._handle_request(request, body)
            is_limited = False
        if self._divided.newest is not None:
            self.held.hold(client, key, request)
        if request.is_closed:
            return False
        # Do not learn from this request: fast paths do not count bytes for quotas and do not log or time responses. The
        # broker's own requests (FLAG_PROBE) are not counted at all.
        if is_limited or self.log is not None or services is not self._services or flags & FLAG_TIMED:
            return True
        if destination is not None:
            if record is None or path is None or isinstance(path, NoFastPath):
                self._learner.learn_produce(client, key, path, request, frame, destination)
        elif (
            api_key == _FETCH and record is None and begin == HEAD_BYTES + _LENGTH_BYTES and end == len(view)
        ):
            self._learner.learn_fetch(client, key, path, request, view, len(body))
        return True

    def _mark_done(self) -> None:
        """Record the end of local work for the timed requests of this duty cycle that have no response yet."""
        now_ns = self._services.clock.host_ns()
        for request in self._timed:
            request.done_ns = now_ns
        self._timed.clear()

    # -- large requests ------------------------------------------------------------------------------------------

    def work_large(self) -> int:
        """Run one step of one large request. Then handle the parked requests of connections that are released.

        Before, close connections whose parked requests take too much memory. Called in every duty cycle while there are
        large requests. Returns the amount of work.
        """
        self.held.limit_parked_bytes()
        work = self._divided.work()
        for client, key in self.held.answered():
            self._release(client, key)
        for client, key in self.held.admitted():
            self._release(client, key)
            work += 1
        self._queue.flush()
        self._finish_batch()
        return work

    def _rests_slow(self) -> bool:
        """Return True if a slow request must wait for a later duty cycle: a long one, or a Fetch of many partitions.

        Decoding such a Fetch takes up to 25 ms. Therefore one slow request runs in a duty cycle: only the first call
        during `resume_resting` returns False.
        """
        may_run, self._may_run_slow = self._may_run_slow, False
        return not may_run

    def resume_resting(self) -> int:
        """Let each resting connection handle its next parked request, for up to 1 ms in all. Return their number."""
        until_ns = self._services.clock.host_ns() + _TURNS_NS
        work = 0
        self._may_run_slow = True
        for client, key in self.held.resumed():
            self._release(client, key)
            work += 1
            if self._services.clock.host_ns() >= until_ns:
                break
        self._may_run_slow = False
        self._queue.flush()
        self._finish_batch()
        return work

    def _finish_batch(self) -> None:
        """Append the records that general-path requests made in coordinators. Mark the end of timed requests."""
        if self._coordinators.dirty:
            self._coordinators.flush()
        if self._timed:
            self._mark_done()

    def _release(self, client: ProcessorPeer, key: bytes) -> None:
        """Handle the parked requests of a connection in order, until one of them is parked again."""
        records = self.held.release(client, key)
        for at, (kind, record) in enumerate(records):
            view = memoryview(record)
            if kind == REQUEST_BLOCK:
                self._handle_block(client, view)
            else:
                self._handle_frames(client, view)
            again = client.held.get(key)
            if again is not None:
                self.held.park_again(again, records[at + 1 :])
                return

    # -- handling ----------------------------------------------------------------------------------------------

    def _handle(self, request: HandlerRequest, body: memoryview) -> Destination | None:
        """Queue a Produce and return its destination. Dispatch any other request and return None.

        An exception fails this request only.
        """
        services = self._services
        self.served += request.services is services
        if request.is_timed:
            self._timed.append(request)
        containment = services.containment
        containment.owner = request
        try:
            if self.log is not None:
                self._start_log_entry(request, body)
            if request.api_key == _PRODUCE and request.api_version in PRODUCE_VERSIONS:
                request.services.counts.add(REQUESTS, _PRODUCE, request.api_version)
                if request.api_version >= _PRODUCE_FLEXIBLE:
                    body = after_header_tags(body)
                if self.rates.is_on and services is request.services:
                    self._throttle(request, len(body))
                destination = self._produce.handle(request, body)
                if destination is not None and destination.owned is None:
                    self._hint(request, body, destination.owner)
                return destination
            # A request must see the records of the Produce requests before it.
            self._queue.flush()
            dispatch(request, body)
            if self._timed:
                self._mark_done()
        except ProtocolError as error:
            self._refuse(request, str(error))
        except Exception as error:  # noqa: BLE001 - contained
            what = f"API key {request.api_key} version {request.api_version}"
            containment.caught(what, error, request)
        finally:
            containment.owner = None
        return None

    def _handle_metered(
        self, client: ProcessorPeer, request: HandlerRequest, body: memoryview
    ) -> Destination | None:
        """Handle a request and return its destination, as `_handle` does.

        Measure its time for a request_percentage quota. The append queue is flushed before and after a measured
        request, so that only its own append is measured.
        """
        if not self.rates.is_metered(request):
            return self._handle_request(request, body)
        if request.connection_id not in client.metered:
            meter_socket(client, request.connection_id, request.client_id_bytes or b"", is_on=True)
        self._queue.flush()
        meter = self.rates.meter(request)
        destination = self._handle_request(request, body)
        self._queue.flush()
        meter.stop()
        return destination

    def _throttle(self, request: HandlerRequest, body_bytes: int) -> None:
        """Count a Produce's bytes. If the client is above its quota, throttle its connection from now on."""
        client_id = request.client_id_bytes
        size = REQUEST_HEADER.size + len(client_id or b"") + body_bytes
        throttle_ms = self.rates.on_produce(request.principal.name, client_id, size)
        request.start_throttle(throttle_ms, PRODUCER_BYTE_RATE)

    def _hint(self, request: HandlerRequest, body: memoryview, owner: int) -> None:
        """Send the Processor the owner of this partition, so that it sends the next Produce there directly."""
        key = body_key(request.api_version, body)
        if key is not None:
            request.peer.outbox.push(HINT, OWNER.pack(owner), key)

    def _refuse(self, request: HandlerRequest, reason: str) -> None:
        self.refused += 1
        request.reject(reason)

    def report_suppressed(self, now_ns: int) -> None:
        """Log how many log lines about clients were suppressed. Called by the Handler's tick."""
        self._services.clients.refusals.report_suppressed(now_ns)
        if self._services.authorizer is not None:
            self._services.authorizer.report_suppressed(now_ns)
        self.logins.report_suppressed(now_ns)

    def _start_log_entry(self, request: HandlerRequest, body: memoryview | None) -> None:
        if isinstance(request, LoggedRequest):
            assert self.log is not None
            request.start_entry(self.log, body)
            # Log no line for the broker's own readiness probe. It has no listener and no login, so the line would show
            # an anonymous client.
            if request.services is not self._services:
                request.discard_entry()
