"""ResponseWriter: sends the Handlers' answers in the order of the requests, by one `send` per connection and pass.

an answer comes (SEND, SENDS, SEND_PARTS, NO_OP, CLOSE)
    it is the only one in work           it is sent at once                      _send_answers, _send_at_once
    it is the next one                   into `ready`, with stashed ones         _enqueue
    it came before its turn              into `stash`, copied                    _enqueue
the batch of a ring ends                 `ready` is sent                         _send
the socket has room again                `out` is sent on                        send_rest

One function sends `ready`, bytes and file ranges, and keeps in `out` what the socket does not accept
(Connection.send_ready). Nearly every answer is one frame for a connection that expects no other. `_send_answers` sends
these in one loop, with no call but `send` for each.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from kproc.broker.metrics.spec import SLOT
from kproc.broker.processor.answer_parts import unsent
from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_state import ACTIVE, CLOSING
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.files import FileCache, StaleFile
from kproc.broker.processor.handler_set import HandlerSet
from kproc.broker.processor.lent_blocks import LentBlocks
from kproc.broker.processor.metered import MeteredConnections
from kproc.broker.processor.migration import ConnectionMigration
from kproc.broker.processor.processor_state import ProcessorState
from kproc.broker.processor.timed_requests import TimedRequests
from kproc.broker.security.session import Session
from kproc.broker.transport.envelope import (
    AUTHENTICATED,
    BLOCK_FREE,
    CLOSE,
    HEAD,
    HEAD_BYTES,
    HINT,
    METERED,
    MOVED,
    NO_OP,
    NOTE,
    SEND,
    SEND_PARTS,
    SENDS,
    SEQUENCE_MASK,
    THROTTLE,
    THROTTLE_MS,
    TIMES,
    answers_of,
    decode_parts,
    unpack_sequences,
)
from kproc.common.clock import NS_PER_MS

logger = logging.getLogger(__name__)

_RESPONSES_PER_PASS: Final = 512
_BYTES_OUT: Final = SLOT["bytes_out"]
_RESPONSES: Final = SLOT["responses"]
_unpack_head: Final = HEAD.unpack_from
_decode_note: Final = msgspec.msgpack.Decoder(tuple[str, str, str]).decode
_BEHIND_HEAD: Final = slice(HEAD_BYTES, None)


class ResponseWriter:
    """Sends the Handlers' answers to the clients, in the order of each connection's requests. One per Processor."""

    metered: MeteredConnections  # Set by the Processor.
    __slots__ = (
        "_blocks",
        "_by_id",
        "_counts",
        "_handlers",
        "_lent",
        "_migration",
        "_state",
        "_table",
        "_timed",
        "files",
        "metered",
    )  # fmt: skip

    def __init__(
        self,
        table: ConnectionTable,
        handlers: HandlerSet,
        state: ProcessorState,
        *,
        blocks: LentBlocks,
        timed: TimedRequests,
        migration: ConnectionMigration,
    ) -> None:
        self._table = table
        self._handlers = handlers
        self._state = state
        self._counts = state.counts
        self._blocks = blocks
        self._by_id = table.by_id
        self._lent = blocks.by_request
        self._timed = timed
        self._migration = migration
        self.files = FileCache()

    def send_answers(self) -> int:
        """Send the Handlers' answers, and release the rings' records. Return the number of records."""
        # This function is not divided, because every answer would pay for the calls.
        work = 0
        lent = self._lent
        for inbox in self._handlers.inboxes:
            batch = inbox.poll(_RESPONSES_PER_PASS)
            if not batch:
                continue
            work += len(batch)
            touched: dict[Connection, None] = {}
            answers: list[tuple[int, int, bytes | memoryview]] = []  # Whole answers that were not sent yet.
            for kind, view in batch:
                try:
                    if kind == SEND:
                        connection_id, sequence, _, _ = _unpack_head(view)
                        if lent:
                            self._blocks.release(connection_id, sequence)
                        answers.append((connection_id, sequence, view[_BEHIND_HEAD]))
                        continue
                    # SENDS answers requests of the Produce fast path. None of them came in a block, so none is freed.
                    if kind == SENDS:
                        answers += answers_of(view)
                        continue
                except Exception as error:  # noqa: BLE001 - contained: only the record's connection is closed
                    self._close_misread(kind, view, error)
                    continue
                if answers:
                    self._send_answers(answers, touched)
                    answers = []
                try:
                    if kind <= CLOSE:
                        connection_id, sequence, _, _ = _unpack_head(view)
                        if lent:
                            self._blocks.release(connection_id, sequence)
                        connection = self._by_id.get(connection_id)
                        if connection is None:
                            continue  # Closed meanwhile.
                        body = view[_BEHIND_HEAD]
                        if kind == SEND_PARTS and self._send_at_once(connection, sequence, body, touched):
                            continue
                        self._counts[_RESPONSES] += self._enqueue(connection, sequence, kind, body, touched)
                    elif kind != HINT:
                        self._handle_notice(kind, view)
                    elif self._handlers.router is not None:
                        self._handlers.router.learn(view)
                except Exception as error:  # noqa: BLE001 - contained: only the record's connection is closed
                    self._close_misread(kind, view, error)
            if answers:
                self._send_answers(answers, touched)
            for connection in touched:
                try:
                    self._send(connection)
                except OSError as error:
                    self._table.close_failed(connection, error)
            inbox.release()
            if self._timed.leaving:
                self._finish_timed()
        return work

    def _close_misread(self, kind: int, view: memoryview, error: Exception) -> None:
        """Close the connection that an unreadable record of a Handler names. A HINT has no head, so it names none."""
        has_head = kind != HINT and len(view) >= HEAD_BYTES
        connection = self._table.by_id.get(_unpack_head(view)[0]) if has_head else None
        if connection is not None:
            self._table.close_failed(connection, error)
        else:
            self._table.contain("the record of a Handler", error)

    def _finish_timed(self) -> None:
        self._timed.finish(self._table.by_id)
        if self._timed.leaving:
            self._state.make_due()  # Some of the timed answers are not sent completely yet.

    def _send_answers(
        self, answers: Sequence[tuple[int, int, bytes | memoryview]], touched: dict[Connection, None]
    ) -> None:
        """Send whole answers: at once if the connection expects no other one, otherwise at the end of this pass.

        touched: the connections with queued bytes, which the caller sends at the end of the pass. This method adds to
        it.
        """
        by_id, counts = self._by_id, self._counts
        now_ns = self._state.now_ns
        size = 0
        count = len(answers)
        for connection_id, sequence, frame in answers:
            connection = by_id.get(connection_id)
            if connection is None:
                count -= 1  # Closed meanwhile.
                continue
            if (
                sequence != connection.next_send
                or connection.inflight != 1
                or connection.interest != ACTIVE
                or (touched and connection in touched)
            ):
                count += self._enqueue(connection, sequence, SEND, frame, touched) - 1
                continue
            # The connection is ACTIVE, so its `out` is empty and nothing has to be sent before this answer.
            connection.next_send = (sequence + 1) & SEQUENCE_MASK
            connection.inflight = 0
            try:
                sent = connection.send(frame)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._table.close(connection, str(error))
                continue
            size += sent
            connection.last_active_ns = now_ns
            if sent != len(frame):
                connection.out = [unsent(frame, sent)]
                touched[connection] = None  # `_send` lets it wait for room in the socket.
        counts[_RESPONSES] += count
        counts[_BYTES_OUT] += size

    def _send_at_once(
        self,
        connection: Connection,
        sequence: int,
        body: memoryview,
        touched: dict[Connection, None],
    ) -> bool:
        """Send an answer with file ranges if the connection expects no other one. Return False if it was not sent.

        touched: the connections that already have queued bytes in this pass.
        """
        if (
            sequence != connection.next_send
            or connection.inflight != 1
            or connection.interest != ACTIVE
            or (touched and connection in touched)
        ):
            return False
        try:
            connection.ready = decode_parts(body, self.files.open_or_read_range)
        except (StaleFile, OSError, EOFError):
            return False  # `_enqueue` gets the same error again and handles it.
        connection.next_send = (sequence + 1) & SEQUENCE_MASK
        connection.inflight = 0
        try:
            sent = connection.send_ready()
        except (OSError, EOFError) as error:
            self._table.close(connection, str(error))
            return True
        connection.last_active_ns = self._state.now_ns
        counts = self._counts
        counts[_RESPONSES] += 1
        counts[_BYTES_OUT] += sent
        if connection.out is not None:
            touched[connection] = None  # `_send` lets it wait for room in the socket.
        return True

    def _enqueue(
        self,
        connection: Connection,
        sequence: int,
        kind: int,
        body: bytes | memoryview,
        touched: dict[Connection, None],
    ) -> int:
        """Queue an answer for the end of this batch, with the stashed ones behind it. Stash it if it came too early.

        Return the number of queued answers, which the caller counts. A connection that is to be closed gets none.
        """
        touched[connection] = None
        if sequence != connection.next_send:
            # Copy the body, because a view of the ring is valid only during this batch.
            connection.stash[sequence] = (kind, bytes(body))
            return 0
        connection.next_send = (sequence + 1) & SEQUENCE_MASK
        connection.inflight -= 1
        queued = 1
        if connection.state is CLOSING:
            queued = 0
        elif kind == SEND:
            connection.ready.append(body)
        else:
            self._enqueue_other(connection, kind, body)
        if connection.stash:
            sequence = connection.next_send
            stashed = connection.stash.pop(sequence, None)
            if stashed is not None:
                # The recursion is at most INFLIGHT_MAX deep, because only requests in work have stashed answers.
                return queued + self._enqueue(connection, sequence, *stashed, touched)
        return queued

    def _enqueue_other(self, connection: Connection, kind: int, body: bytes | memoryview) -> None:
        """Queue an answer that is not one plain frame (SEND_PARTS, CLOSE, NO_OP).

        A CLOSE can have an answer. It is sent before the connection is closed.
        """
        if kind == SEND_PARTS:
            files = self.files
            # If earlier answers are unsent, do not read even a short range: a file range takes no memory while the
            # client does not read.
            open_range = files.open_or_read_range if connection.out is None else files.open_range
            try:
                connection.ready += decode_parts(memoryview(body), open_range)
            except (StaleFile, OSError, EOFError) as error:
                # The segment is gone or shorter than the answer says. Close, because half an answer must not be sent.
                logger.warning("closing connection %d: cannot send fetched records: %s", connection.id, error)
                connection.state = CLOSING
        elif kind == CLOSE:
            if body:
                connection.ready.append(body)
            connection.state = CLOSING
        else:
            assert kind == NO_OP, kind

    def _send(self, connection: Connection) -> None:
        """Send the answers that a connection has queued in this pass."""
        if connection.fd not in self._table.by_fd:
            return
        try:
            if connection.ready:
                self._counts[_BYTES_OUT] += connection.send_ready()
                connection.last_active_ns = self._state.now_ns
        except (OSError, EOFError) as error:
            self._table.close(connection, str(error))
            return
        if connection.interest != ACTIVE or connection.out or connection.state is CLOSING:
            self.after_send(connection)

    def send_rest(self, connection: Connection) -> None:
        """Send on from `out`, because the socket has room again."""
        try:
            self._counts[_BYTES_OUT] += connection.flush()
        except (OSError, EOFError) as error:
            self._table.close(connection, str(error))
            return
        connection.last_active_ns = self._state.now_ns
        self.after_send(connection)

    def after_send(self, connection: Connection) -> None:
        """Close a connection that is to be closed, once its answers are sent. Otherwise decide what it waits for."""
        if connection.state is CLOSING and not connection.out:
            self._table.close(connection, "a Handler asked for it")
        elif connection.out or connection.interest != ACTIVE:
            self._table.update_interest(connection)

    def _handle_notice(self, kind: int, view: memoryview) -> None:
        """Act on a Handler's record that is not an answer, such as MOVED, BLOCK_FREE or THROTTLE."""
        connection_id, sequence, _, _ = HEAD.unpack_from(view)
        connection = self._table.by_id.get(connection_id)
        if kind == MOVED:
            # The Handler no longer uses the frames of parked requests, so their blocks are freed before the answers
            # come.
            sequences = unpack_sequences(view[HEAD_BYTES:])
            for each in sequences:
                self._blocks.release(connection_id, each)
            if connection is not None:
                self._migration.on_moved(connection, sequence, sequences)
        elif kind == BLOCK_FREE:
            self._blocks.free_recalled(connection_id, sequence)
        elif kind == TIMES:
            self._timed.answered(connection_id, sequence, view[HEAD_BYTES:])
        elif connection is None:
            return  # Closed meanwhile.
        elif kind == THROTTLE:
            (throttle_ms,) = THROTTLE_MS.unpack_from(view, HEAD_BYTES)
            quota = str(view[HEAD_BYTES + THROTTLE_MS.size :], "ascii")
            self._table.throttle(connection, self._state.moved_ns() + throttle_ms * NS_PER_MS, quota)
            self._table.update_interest(connection)
        elif kind == METERED:
            self.metered.switch(connection, bytes(view[HEAD_BYTES:]), is_on=sequence > 0)
        elif kind == AUTHENTICATED:
            self._table.authenticated(connection, Session.unpack(bytes(view[HEAD_BYTES:])))
        else:
            assert kind == NOTE, kind
            connection.client = _decode_note(view[HEAD_BYTES:])
