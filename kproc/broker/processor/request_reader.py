"""RequestReader: receives from the clients' sockets that are readable.

    socket --recv_into--> free space of a request ring       small frames, no copy
    socket --recv_into--> arena block                        frames above LARGE_FRAME_BYTES
    socket --recv_into--> private memory                     large frames of a client that has not logged in

It receives once from each connection in a duty cycle (several times only into a block), so that no client delays the
others. Level-triggered epoll reports what is left. request_forwarder.py puts the received frames into the rings.

Nearly every read brings one whole frame, and most Processors have one Handler. Then the frames of many connections
become a run of records: they are received side by side into one reservation of the ring, which is committed once, and
no function is called for a frame (`_read_runs`). Everything else is read connection by connection (`read`). That
writes into the same ring, so the run is ended before it. With several Handlers each frame has a ring of its own, and
there are no runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kproc.broker.metrics.spec import SLOT
from kproc.broker.processor.connection import INFLIGHT_MAX, Block, Connection
from kproc.broker.processor.connection_state import ACTIVE, Pause
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.framing import unpack_length
from kproc.broker.processor.handler_set import HandlerSet
from kproc.broker.processor.memory_budget import MemoryBudget
from kproc.broker.processor.processor_state import ProcessorState
from kproc.broker.processor.request_forwarder import RequestForwarder
from kproc.broker.processor.slow_frames import LARGE_FRAME_BYTES
from kproc.broker.transport.envelope import BEHIND_HEAD_ROUND, HEAD_BYTES, RECORD, REQUEST, SEQUENCE_MASK

Event = tuple[int, int]  # As epoll reports it: descriptor, mask.

# Room reserved per read. It takes several small frames at once; large frames bypass the ring. Neither this bound nor
# LARGE_FRAME_BYTES was tuned.
READ_BYTES: Final = 32 * 1024
_ROOM_BYTES: Final = 2 * (READ_BYTES + LARGE_FRAME_BYTES)  # For one read, `Connection.held` and padding.
_RESERVED_BYTES: Final = HEAD_BYTES + READ_BYTES
_BEHIND_HEAD: Final = slice(HEAD_BYTES, None)
_CLOSED: Final = "the client closed it"
_pack_record: Final = RECORD.pack_into
# Offsets from the start of a record: its frame, and the end of a read.
_FRAME_AT: Final = RECORD.size
_READ_END: Final = RECORD.size + READ_BYTES
_NO_RUN: Final = (memoryview(b""), 0, -1)
_UNREAD: Final = -1
_BYTES_IN: Final = SLOT["bytes_in"]
_REQUESTS: Final = SLOT["requests"]


class RequestReader:
    """Receives from the clients' sockets that are readable, mostly straight into request rings. One per Processor.

    `read_ready` is for all events of a poll, `read` for one connection.
    """

    __slots__ = (
        "_budget", "_counts", "_failed", "_find", "_forwarder", "_handlers", "_state", "_table", "read", "read_ready",
    )  # fmt: skip

    def __init__(
        self,
        table: ConnectionTable,
        handlers: HandlerSet,
        state: ProcessorState,
        *,
        forwarder: RequestForwarder,
        budget: MemoryBudget,
        request_bytes_max: int,
    ) -> None:
        self._table = table
        self._find = table.by_fd.get
        self._handlers = handlers
        self._state = state
        self._counts = state.counts
        self._forwarder = forwarder
        self._budget = budget
        self._failed: list[tuple[Connection, Exception]] = []
        self.read = self._read_within_budget if budget.is_limited else self._read
        # A run checks neither the memory budget nor socket.request.max.bytes. A whole frame of one read is below any
        # usual value of the latter.
        may_run = not budget.is_limited and request_bytes_max >= READ_BYTES
        self.read_ready = self._read_runs if may_run else self._read_each

    # -- all readable connections ------------------------------------------------------------------------------

    def _read_runs(self, events: Sequence[Event]) -> list[Event]:
        """Read once from each connection that is readable; return all other events.

        A run has the state (`data`, `at`, `last`), see RingProducer.reserve_run: the ring's bytes, the position of the
        next record, and the last position at which a record with a whole read fits. `last` < 0: there is no run.
        """
        handler = self._handlers.only
        if handler is None:
            return self._read_each(events)
        others: list[Event] = []
        find = self._find
        now_ns = self._state.now_ns
        # A request that may be timed is forwarded by itself, because a run's records carry no FLAG_TIMED.
        may_run = now_ns < self._forwarder.next_look_ns
        data, at, last = _NO_RUN
        requests = bytes_in = 0
        for fd, mask in events:
            connection = find(fd)
            if connection is None or mask != ACTIVE:
                others.append((fd, mask))
                continue
            came = _UNREAD
            if connection.is_introduced and not connection.held and connection.block is None:
                if at > last and may_run:
                    if last >= 0:
                        handler.commit_run(at)
                    data, at, last = handler.reserve_run(_RESERVED_BYTES) or _NO_RUN
                if at <= last:
                    try:
                        came = connection.recv_into(data[at + _FRAME_AT : at + _READ_END])
                    except BlockingIOError:
                        continue
                    except Exception as error:  # noqa: BLE001 - contained by `_close_failed`
                        # Closing pushes a record into the ring, so it must wait until the run is committed.
                        self._failed.append((connection, error))
                        continue
                    (length,) = unpack_length(data, at + _FRAME_AT)
                    inflight = connection.inflight + 1
                    # One whole frame came and nothing else, as nearly always. Everything else takes the slower path,
                    # which also stops reading at INFLIGHT_MAX. If fewer than 4 bytes came, `length` is an old value of
                    # the ring, but then `came - 4` is not positive.
                    if 0 < length == came - 4 and inflight < INFLIGHT_MAX:
                        sequence = connection.next_sequence
                        _pack_record(
                            data, at, HEAD_BYTES + came, REQUEST,
                            connection.id, sequence, connection.listener, connection.flags,
                        )  # fmt: skip
                        at += (came + BEHIND_HEAD_ROUND) & -8
                        connection.next_sequence = (sequence + 1) & SEQUENCE_MASK
                        connection.inflight = inflight
                        connection.last_active_ns = now_ns
                        requests += 1
                        bytes_in += came
                        continue
            # Commit the run first, because the code below writes another record into the same ring.
            if last >= 0:
                handler.commit_run(at)
                data, at, last = _NO_RUN
            self._read_alone(connection, came)
            may_run = now_ns < self._forwarder.next_look_ns
        if last >= 0:
            handler.commit_run(at)
        if requests:
            counts = self._counts
            counts[_REQUESTS] += requests
            counts[_BYTES_IN] += bytes_in
            self._handlers.unpublished[handler] = None
        if self._failed:
            self._close_failed()
        return others

    def _read_each(self, events: Sequence[Event]) -> list[Event]:
        """Read once from each readable connection, without runs; return all other events."""
        others: list[Event] = []
        for fd, mask in events:
            connection = self._find(fd)
            if connection is None or mask != ACTIVE:
                others.append((fd, mask))
                continue
            try:
                self.read(connection)
            except Exception as error:  # noqa: BLE001 - contained: only this connection is closed
                self._table.close_failed(connection, error)
        return others

    def _read_alone(self, connection: Connection, came: int) -> None:
        """Read a connection, or forward the `came` bytes that were received for a run and are not one whole frame."""
        try:
            if came == _UNREAD:
                self.read(connection)
                return
            link = connection.home.link
            assert connection.home is self._handlers.only, "it is the home of all"
            assert link is not None, "no run without one"
            # Reserve the same bytes of the ring again. Nothing was reserved since, so they still hold the received
            # frames (RingProducer.reserve).
            view = link.sender.reserve(_RESERVED_BYTES)
            assert view is not None, "there was room for a run"
            if self._count_received(connection, came):
                self._forwarder.forward(connection, view, came)
        except Exception as error:  # noqa: BLE001 - contained: only this connection is closed
            self._table.close_failed(connection, error)

    def _close_failed(self) -> None:
        """Close the connections whose socket could not be read in this pass."""
        for connection, error in self._failed:
            if isinstance(error, OSError):
                self._table.close(connection, str(error))
            else:
                self._table.close_failed(connection, error)
        self._failed.clear()

    # -- one connection ----------------------------------------------------------------------------------------

    def _read_within_budget(self, connection: Connection) -> None:
        """Read if the memory budget has room. Always read an unfinished frame: only its end frees its memory."""
        if connection.block is not None or connection.held or self._budget.has_room():
            before = self._counts[_REQUESTS]
            self._read(connection)
            self._budget.count(connection, self._counts[_REQUESTS] - before)
            return
        self._table.wait_for_memory(connection)

    def _read(self, connection: Connection) -> None:
        """Receive once, straight into the home's ring, and forward every whole frame."""
        link = connection.home.link
        if connection.held or connection.block is not None or link is None:
            self._read_on(connection)
            return
        view = link.sender.reserve(_RESERVED_BYTES)
        if view is None:
            self._table.stall(connection)
            return
        if count := self._receive(connection, view[_BEHIND_HEAD]):
            self._forwarder.forward(connection, view, count)

    def _read_on(self, connection: Connection) -> None:
        """Receive once from a connection that has part of a frame, or whose home has no link."""
        if connection.block is not None:
            self._read_block(connection, connection.block)
            return
        link = connection.home.link
        start = HEAD_BYTES + len(connection.held)
        view = link.sender.reserve(start + READ_BYTES) if link is not None else None
        if view is None:
            self._table.stall(connection)
            return
        if count := self._receive(connection, view[start:]):
            self._forwarder.forward_behind_held(connection, view, count)

    def _read_block(self, connection: Connection, block: Block) -> None:
        """Receive into the connection's block as long as the socket fills it. Forward the frame when it is complete."""
        while not block.is_whole:
            count = self._receive(connection, block.room, "the client closed it in the middle of a frame")
            block.advance(count)
            if not count:
                return
            if block.must_grow:
                if not block.memory.grow(connection, block):
                    self._table.wait_for_block(connection)
                    return
            elif not block.is_whole:
                return
        self._forwarder.forward_block(connection, block)

    def _receive(self, connection: Connection, into: memoryview, if_ended: str = _CLOSED) -> int:
        """Receive once; return how many bytes came. 0 if there are none, or if the connection was closed."""
        try:
            count = connection.recv_into(into)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._table.close(connection, str(error))
            return 0
        return self._count_received(connection, count, if_ended)

    def _count_received(self, connection: Connection, count: int, if_ended: str = _CLOSED) -> int:
        """Record that one call received `count` bytes, and return `count`.

        0 bytes mean that the client has ended: close the connection, with `if_ended` as the reason.
        """
        if count:
            connection.last_active_ns = self._state.now_ns
            self._counts[_BYTES_IN] += count
        else:
            self._table.close(connection, if_ended)
        return count

    # -- connections that had no room --------------------------------------------------------------------------

    def retry_stalled(self) -> None:
        """Continue the stalled connections. Those whose frames still find no room in a ring stall again."""
        for connection in list(self._table.stalled):
            is_throttled = Pause.THROTTLED in connection.pauses and not self._state.is_stopping
            if connection.migration is not None or is_throttled:
                continue
            if connection.out or connection.is_full:
                # The connection must first send answers, or get some. Then ConnectionTable.update_interest adds it to
                # `stalled` again.
                del self._table.stalled[connection]
                continue
            link = connection.home.link
            # Continue only with room for a read. Otherwise it would stall again at once, and the Processor would spin
            # instead of sleeping.
            if link is None or link.sender.free_bytes() < _ROOM_BYTES:
                continue
            del self._table.stalled[connection]
            connection.pauses &= ~Pause.STALLED
            before = self._counts[_REQUESTS]
            if connection.block is not None:
                self._read_block(connection, connection.block)
            elif connection.held:
                self._forwarder.forward_held(connection)
            self._budget.count(connection, self._counts[_REQUESTS] - before)
            if connection.fd in self._table.by_fd:
                self._table.update_interest(connection)
