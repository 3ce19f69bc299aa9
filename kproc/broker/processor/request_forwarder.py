"""RequestForwarder: puts the frames that were read into the rings of Handlers.

    one whole frame, or several      committed where they lie, in the ring of the connection's home      _commit
    several Handlers                 each frame is pushed into the ring that the router names            _route
    a whole block                    the ring gets a reference to it                                     forward_block
    part of a frame                  waits in `Connection.held`, or in a block if the frame is large     _hold
    a frame without room             waits in `held`, and the connection is stalled                      _park

It does not interpret a frame: framing.py tells where frames end, and the router (request/routing.py) which Handler gets
each of them.
"""

from __future__ import annotations

import logging
from typing import Final

from kproc.broker.metrics.spec import SLOT
from kproc.broker.processor.connection import INFLIGHT_MAX, Block, Connection
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.describe import client_of, connection_name, why_refused
from kproc.broker.processor.frame_memory import FrameMemories
from kproc.broker.processor.framing import LENGTH_BYTES, find_frames, frame_length, pack_length, unpack_length
from kproc.broker.processor.handler_peer import HandlerPeer
from kproc.broker.processor.handler_set import HandlerSet
from kproc.broker.processor.lent_blocks import LentBlocks
from kproc.broker.processor.memory_budget import MemoryBudget
from kproc.broker.processor.processor_state import ProcessorState
from kproc.broker.processor.slow_frames import LARGE_FRAME_BYTES
from kproc.broker.processor.timed_requests import TimedRequests
from kproc.broker.transport.envelope import HEAD, HEAD_BYTES, REQUEST, REQUEST_BLOCK, SEQUENCE_MASK

logger = logging.getLogger(__name__)

_LOOK_NS: Final = 500_000  # Shortest interval at which a request is considered for timing.
_REQUESTS: Final = SLOT["requests"]


class RequestForwarder:
    """Puts the frames that clients have sent into the request rings of Handlers. One per Processor.

    RequestReader calls it with the bytes of one connection at a time.
    """

    __slots__ = (
        "_blocks", "_budget", "_counts", "_handlers", "_memories", "_request_bytes_max", "_state", "_table", "_timed",
        "_unpublished", "next_look_ns",
    )  # fmt: skip

    def __init__(
        self,
        table: ConnectionTable,
        handlers: HandlerSet,
        state: ProcessorState,
        *,
        budget: MemoryBudget,
        blocks: LentBlocks,
        timed: TimedRequests,
        memories: FrameMemories,
        request_bytes_max: int,
    ) -> None:
        self._table = table
        self._handlers = handlers
        self._unpublished = handlers.unpublished
        self._state = state
        self._counts = state.counts
        self._budget = budget
        self._blocks = blocks
        self._timed = timed
        self._memories = memories
        self._request_bytes_max = request_bytes_max
        self.next_look_ns = 0  # When the next request may be timed.

    # -- bytes in the home's ring ------------------------------------------------------------------------------

    def forward(self, connection: Connection, view: memoryview, count: int) -> None:
        """Put the frames in the `count` received bytes into request rings, and keep an incomplete last frame.

        `view` is reserved in the ring of the connection's home. The bytes follow HEAD_BYTES of space for a head.
        """
        end = HEAD_BYTES + count
        if count > LENGTH_BYTES and connection.inflight < INFLIGHT_MAX:
            (length,) = unpack_length(view, HEAD_BYTES)
            if length == count - LENGTH_BYTES <= self._request_bytes_max and connection.is_introduced:
                # Handle one whole frame without a search for frames, because nearly every read brings one.
                if self._handlers.router is None:
                    self._commit(connection, view, end, 1)
                    return
                if self._route(connection, view[HEAD_BYTES:end]):
                    return
            # A large frame that has only begun: receive the rest into the arena, because a ring could not hold it.
            elif LARGE_FRAME_BYTES < length <= self._request_bytes_max and length > count - LENGTH_BYTES:
                self._hold(connection, view[HEAD_BYTES:end])
                return
        self._forward_frames(connection, view, end)

    def _forward_frames(self, connection: Connection, view: memoryview, end: int) -> None:
        """Put the complete frames in view[HEAD_BYTES:end] into request rings. `view` is reserved in the home's ring.

        A frame goes to the Handler that the router names, or without a router to the connection's home. The bytes
        behind the complete frames are kept in `Connection.held`, or in an arena block if they begin a large frame. An
        invalid frame length rejects the connection, after the frames before it were forwarded.
        """
        position, frames, is_valid = find_frames(
            view,
            HEAD_BYTES,
            end,
            count_max=INFLIGHT_MAX - connection.inflight,
            length_max=self._request_bytes_max,
        )
        if not is_valid:
            # Copy the start of the invalid frame for the log line, because the commit below ends the view.
            start = bytes(view[position : position + LENGTH_BYTES])
            if frames:
                self._forward_frames(connection, view, position)
            self._reject(connection, start)
            return
        if frames and not connection.is_introduced:
            self._forward_first(connection, bytes(view[HEAD_BYTES:end]))
        elif frames and self._handlers.router is not None:
            self._forward_each(connection, bytes(view[HEAD_BYTES:end]), position - HEAD_BYTES)
        else:
            rest = bytes(view[position:end])  # Copied before the commit, which ends the view.
            if frames:
                self._commit(connection, view, position, frames)
            if rest:
                self._keep_rest(connection, rest)

    def _commit(self, connection: Connection, view: memoryview, end: int, frames: int) -> None:
        """Commit view[:end], which has room for a head and whole frames behind it, to the home's ring as one record."""
        home = connection.home
        flags = connection.flags
        if self._state.now_ns >= self.next_look_ns:
            flags |= self._start_timing(connection, view[HEAD_BYTES + LENGTH_BYTES : end], home)
        HEAD.pack_into(view, 0, connection.id, connection.next_sequence, connection.listener, flags)
        assert home.link is not None
        home.link.sender.commit(end, REQUEST)
        self._count_forwarded(connection, home, frames)

    def _count_forwarded(self, connection: Connection, target: HandlerPeer, frames: int) -> None:
        """Record that `frames` requests of a connection went into a Handler's ring."""
        self._unpublished[target] = None
        connection.target = target
        connection.next_sequence = (connection.next_sequence + frames) & SEQUENCE_MASK
        connection.inflight += frames
        self._counts[_REQUESTS] += frames
        if connection.is_full:
            self._table.update_interest(connection)

    # -- the first frames, logins ------------------------------------------------------------------------------

    def _forward_first(self, connection: Connection, data: bytes) -> None:
        """Introduce a connection to the Handlers, then forward its first frames.

        `data` is a copy, because the introduction is a record of the same ring and ends the reservation.
        """
        # The first request has the client id, which `kproc clients` shows from then on.
        if connection.client is None:
            connection.client = client_of(memoryview(data)[LENGTH_BYTES:])
        if connection.login is not None:
            self._forward_login(connection, data)
        elif self._handlers.introduce(connection):
            self._store(connection, data)
            self.forward_held(connection)
        else:
            self._park(connection, data)

    def _forward_login(self, connection: Connection, data: bytes) -> None:
        """Forward the first frame of a client that logs in to its home. Keep the bytes behind it until its answer."""
        if self._is_too_long(connection, data[:LENGTH_BYTES]):
            return
        end = LENGTH_BYTES + frame_length(data)
        if connection.inflight or not self._push_to_home(connection, data[:end]):
            self._park(connection, data)
        elif end < len(data):
            self._park(connection, data[end:])

    def _push_to_home(self, connection: Connection, *frame: bytes | memoryview) -> bool:
        """Push a frame of a client that logs in, given as parts, to its home.

        Return False if the home's ring has no room, or the home has no link.
        """
        home = connection.home
        if not self._introduce(connection) or home.link is None:
            return False
        head = HEAD.pack(connection.id, connection.next_sequence, connection.listener, connection.flags)
        if not home.link.sender.try_push(REQUEST, head, *frame):
            return False
        self._count_forwarded(connection, home, 1)
        return True

    def _is_too_long(self, connection: Connection, start: bytes) -> bool:
        """Close the connection of a client that logs in if a frame is too long for a login; return True if it is."""
        length = frame_length(start)
        longest = self._table.logins.bytes_max
        link = connection.home.link
        if link is not None:  # The frame must fit into one record of the ring.
            longest = min(longest, link.sender.record_bytes_max - HEAD_BYTES - LENGTH_BYTES)
        if length <= longest:
            return False
        # A session has ended. Only a login may follow, and nothing of this length is one (KIP-368).
        if connection.login is not None and connection.login.has_session:
            self._counts[SLOT["sessions_killed"]] += 1
            logger.debug(
                "closing connection %s: its SASL session has expired and the client has not logged in again",
                connection_name(connection),
            )
            self._table.drain(connection)
        else:
            self._counts[SLOT["logins_failed"]] += 1
            self._reject(connection, start, longest)
        return True

    def _introduce(self, connection: Connection) -> bool:
        """Introduce a connection to all Handlers, or only to its home before the login.

        Return False if a ring has no room, or if the home of a client that logs in has no link.
        """
        login = connection.login
        if login is None:
            return self._handlers.introduce(connection)
        if connection.home.link is None or not self._handlers.introduce_to(connection.home, connection):
            return False
        login.start(self._state.now_ns)
        return True

    # -- several Handlers --------------------------------------------------------------------------------------

    def _forward_each(self, connection: Connection, data: bytes, end: int) -> None:
        """Push each complete frame in data[:end] to the Handler that the router names. Keep the bytes behind them.

        Requests of one connection are in work at one Handler only. A frame for another one waits, with all frames
        behind it, until the requests before it are answered.
        """
        view = memoryview(data)
        position = 0
        while position < end:
            following = position + LENGTH_BYTES + frame_length(data, position)
            if connection.inflight >= INFLIGHT_MAX or not self._route(connection, view[position:following]):
                self._park(connection, data[position:])
                return
            position = following
        if end < len(data):
            self._keep_rest(connection, data[end:])

    def _route(self, connection: Connection, frame: memoryview) -> bool:
        """Push one frame, with its length, to the Handler that the router names. Return False if it has to wait.

        The frame may lie in a ring's reserved room.
        """
        assert self._handlers.router is not None
        target = self._handlers.by_index.get(
            self._handlers.router.route(frame[LENGTH_BYTES:]), connection.home
        )
        # The owner has no link while it restarts. The home then answers in the owner's place.
        if target.link is None:
            target = connection.home
        link = target.link
        # A second Handler could answer before the first one. Responses must have the order of the requests, so wait
        # until the connection has nothing in work.
        if link is None or (connection.inflight and target is not connection.target):
            return False
        flags = connection.flags
        if self._state.now_ns >= self.next_look_ns:
            flags |= self._start_timing(connection, frame[LENGTH_BYTES:], target)
        head = HEAD.pack(connection.id, connection.next_sequence, connection.listener, flags)
        if not link.sender.try_push(REQUEST, head, frame):
            self._timed.cancel(connection)
            return False
        self._count_forwarded(connection, target, 1)
        return True

    # -- bytes that wait ---------------------------------------------------------------------------------------

    def forward_held(self, connection: Connection) -> None:
        """Put the frames in `Connection.held` into request rings.

        They waited for room in a ring, or for the answers of another Handler. The last frame may be incomplete, and is
        then kept.
        """
        link = connection.home.link
        view = link.sender.reserve(HEAD_BYTES + len(connection.held)) if link is not None else None
        if view is None:
            self._table.stall(connection)
        else:
            self.forward_behind_held(connection, view, 0)

    def forward_behind_held(self, connection: Connection, view: memoryview, count: int) -> None:
        """Put the frames in `Connection.held` and in `count` new bytes behind them into request rings.

        The new bytes were received into `view`, behind space for the bytes in `held`.
        """
        held = connection.held
        start = HEAD_BYTES + len(held)
        view[HEAD_BYTES:start] = held
        connection.held = b""
        self._budget.held_bytes -= len(held)
        self._forward_frames(connection, view, start + count)

    def _keep_rest(self, connection: Connection, rest: bytes) -> None:
        """Keep the bytes behind the forwarded frames: part of a frame, or frames beyond INFLIGHT_MAX."""
        if connection.inflight < INFLIGHT_MAX:
            self._hold(connection, rest)
        else:
            self._park(connection, rest)

    def _park(self, connection: Connection, frames: bytes) -> None:
        """Keep frames in `Connection.held`, and stall the connection until they can be forwarded.

        The last frame may be incomplete.
        """
        self._store(connection, frames)
        self._table.stall(connection)

    def _hold(self, connection: Connection, rest: bytes | memoryview) -> None:
        """Keep the first part of a frame, in a block if the frame is large or its client has not logged in."""
        if len(rest) >= LENGTH_BYTES:
            length = frame_length(rest)
            if length > LARGE_FRAME_BYTES or connection.login is not None:
                if connection.login is not None and self._is_too_long(connection, bytes(rest[:LENGTH_BYTES])):
                    return
                if self._memories.of(connection).start(connection, length, rest[LENGTH_BYTES:]):
                    return
                # Do not close other connections for memory here: `rest` may lie in a ring, and a close pushes a record
                # into it.
                self._store(connection, bytes(rest))
                self._table.wait_for_block(connection)
                return
        self._store(connection, bytes(rest))

    def _store(self, connection: Connection, data: bytes) -> None:
        connection.held = data
        self._budget.held_bytes += len(data)

    # -- large frames ------------------------------------------------------------------------------------------

    def forward_block(self, connection: Connection, block: Block) -> None:
        """Forward a large frame that is complete. Stall the connection if the frame has to wait."""
        if connection.client is None:
            connection.client = client_of(block.view)
        is_done = (
            self._copy_block(connection, block)
            if block.memory is self._memories.logins
            else self._lend_block(connection, block)
        )
        if not is_done:
            self._table.stall(connection)

    def _lend_block(self, connection: Connection, block: Block) -> bool:
        """Push a reference to a block of the arena. The Handler uses the block until it answers.

        Return False if the frame has to wait: for room in the ring, for a link, or for another Handler's answers.
        """
        target = connection.home
        login = connection.login
        if login is None and self._handlers.router is not None:
            owner = self._handlers.by_index.get(self._handlers.router.route(block.view))
            if owner is not None and owner.link is not None:
                target = owner
        if not connection.is_introduced and not self._introduce(connection):
            return False
        flags = connection.flags
        if login is None and self._state.now_ns >= self.next_look_ns:
            flags |= self._start_timing(connection, block.view, target)
        head = HEAD.pack(connection.id, connection.next_sequence, connection.listener, flags)
        link = target.link
        if (
            link is None
            or (connection.inflight and target is not connection.target)
            or not link.sender.try_push(REQUEST_BLOCK, head, block.record())
        ):
            self._timed.cancel(connection)
            return False
        self._blocks.lend(connection, block, target)
        self._count_forwarded(connection, target, 1)
        return True

    def _copy_block(self, connection: Connection, block: Block) -> bool:
        """Copy a large frame of a client that has not logged in into its home's ring.

        Return False if the frame has to wait: for room in the ring, for a link, or for the answer before it.
        """
        if connection.inflight or not self._push_to_home(connection, pack_length(block.length), block.view):
            return False
        block.memory.release(connection, block)
        return True

    # -- invalid lengths, timing -------------------------------------------------------------------------------

    def _reject(self, connection: Connection, start: bytes, longest: int = 0) -> None:
        """Reject an invalid frame length: read nothing more, and close when the requests before it are answered."""
        self._counts[SLOT["malformed"]] += 1
        if self._state.refusals.has_room(self._state.now_ns):
            reason = why_refused(start, frame_length(start), self._request_bytes_max, longest)
            logger.warning("closing connection %s: %s", connection_name(connection), reason)
        self._table.drain(connection)

    def _start_timing(self, connection: Connection, frame: memoryview, target: HandlerPeer) -> int:
        """Consider a request for timing, at most every _LOOK_NS. Return FLAG_TIMED if it is timed, otherwise 0."""
        if not connection.counters.is_timed:
            return 0
        now_ns = self._state.now_ns
        self.next_look_ns = now_ns + _LOOK_NS
        return self._timed.start(connection, frame, target.peer, now_ns)
