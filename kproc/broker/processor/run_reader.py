"""RunReader: reads from all readable connections, without a call for each frame in the most frequent case.

Nearly every read brings one whole frame, and most Processors have one Handler. Such frames become a run of records:
they are received side by side into one reservation of the Handler's ring, which is committed once. Everything else goes
through RequestReader, connection by connection. That writes into the same ring, so the run is ended before it. With
several Handlers each frame has a ring of its own, and there are no runs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from kproc.broker.metrics.spec import SLOT
from kproc.broker.processor.connection import INFLIGHT_MAX, Connection
from kproc.broker.processor.connection_state import ACTIVE
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.handler_set import HandlerSet
from kproc.broker.processor.processor_state import ProcessorState
from kproc.broker.processor.request_reader import READ_BYTES, RESERVED_BYTES, RequestReader
from kproc.broker.transport.envelope import BEHIND_HEAD_ROUND, HEAD_BYTES, RECORD, REQUEST, SEQUENCE_MASK

Event = tuple[int, int]  # As epoll reports it: descriptor, mask.

_unpack_length: Final = struct.Struct(">i").unpack_from
_pack_record: Final = RECORD.pack_into
# Offsets from the start of a record: its frame, and the end of a read.
_FRAME_AT: Final = RECORD.size
_READ_END: Final = RECORD.size + READ_BYTES
_NO_RUN: Final = (memoryview(b""), 0, -1)
_UNREAD: Final = -1
_BYTES_IN: Final = SLOT["bytes_in"]
_REQUESTS: Final = SLOT["requests"]


class RunReader:
    """One per Processor, which calls `read_ready` once for what its poll reported."""

    __slots__ = ("_counts", "_failed", "_find", "_handlers", "_reader", "_state", "_table", "read_ready")

    def __init__(
        self,
        reader: RequestReader,
        table: ConnectionTable,
        handlers: HandlerSet,
        state: ProcessorState,
    ) -> None:
        self._reader = reader
        self._table = table
        self._find = table.by_fd.get
        self._handlers = handlers
        self._state = state
        self._counts = state.counts
        self._failed: list[tuple[Connection, Exception]] = []
        self.read_ready = self._read_each if reader.judges_each else self._read_runs

    def _read_runs(self, events: Sequence[Event]) -> list[Event]:
        """Read once from each connection that is readable; return all other events.

        A run has the state (`data`, `at`, `last`), see RingProducer.reserve_run: the ring's bytes, the position of the
        next record, and the last position at which a record with a whole read fits. `last` < 0: there is no run.
        """
        handler = self._handlers.only
        if handler is None:
            return self._read_each(events)
        others: list[Event] = []
        find, reader = self._find, self._reader
        now_ns = self._state.now_ns
        # A request that may be timed goes through RequestReader, because a run's records carry no FLAG_TIMED.
        may_run = now_ns < reader.next_look_ns
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
                    data, at, last = handler.reserve_run(RESERVED_BYTES) or _NO_RUN
                if at <= last:
                    try:
                        came = connection.recv_into(data[at + _FRAME_AT : at + _READ_END])
                    except BlockingIOError:
                        continue
                    except Exception as error:  # noqa: BLE001 - contained by `_close_failed`
                        self._failed.append((connection, error))
                        continue
                    (length,) = _unpack_length(data, at + _FRAME_AT)
                    inflight = connection.inflight + 1
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
            # RequestReader writes into the same ring, so the run must be committed first.
            if last >= 0:
                handler.commit_run(at)
                data, at, last = _NO_RUN
            self._go_on(connection, came)
            may_run = now_ns < reader.next_look_ns
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
        """Read once from each readable connection by RequestReader, without runs; return all other events."""
        others: list[Event] = []
        for fd, mask in events:
            connection = self._find(fd)
            if connection is None or mask != ACTIVE:
                others.append((fd, mask))
                continue
            try:
                self._reader.read(connection)
            except Exception as error:  # noqa: BLE001 - contained: only this connection is closed
                self._table.close_failed(connection, error)
        return others

    def _go_on(self, connection: Connection, came: int) -> None:
        """Read a connection by RequestReader, or handle received bytes that are not one whole frame."""
        try:
            if came == _UNREAD:
                self._reader.read(connection)
                return
            link = connection.home.link
            assert connection.home is self._handlers.only, "it is the home of all"
            assert link is not None, "no run without one"
            # This reserves the same room again, which still holds the received bytes (RingProducer.reserve).
            view = link.sender.reserve(RESERVED_BYTES)
            assert view is not None, "there was room for a run"
            if self._reader.received(connection, came):
                self._reader.split(connection, view, came)
        except Exception as error:  # noqa: BLE001 - contained: only this connection is closed
            self._table.close_failed(connection, error)

    def _close_failed(self) -> None:
        """Close the connections that could not be read. This pushes into the ring, so no run may be open."""
        for connection, error in self._failed:
            if isinstance(error, OSError):
                self._table.close(connection, str(error))
            else:
                self._table.close_failed(connection, error)
        self._failed.clear()
