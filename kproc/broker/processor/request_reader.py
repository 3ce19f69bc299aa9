"""RequestReader: reads frames from the clients' sockets into the Handlers' rings.

    socket --recv_into--> request ring (whole frames)            small frames, no copy
    socket --recv_into--> arena block, ring record names it      frames above LARGE_FRAME_BYTES
    socket --recv_into--> private memory --> request ring        large frames of a client that has not logged in

It does not interpret a frame: the router decides which Handler gets it. Nearly every read brings one whole frame for
the only Handler, and run_reader.py handles that case. RequestReader handles all others.
"""

from __future__ import annotations

import logging
import struct
from heapq import nsmallest
from itertools import islice
from typing import Final

from kproc.broker.metrics.spec import SLOT
from kproc.broker.processor.connection import INFLIGHT_MAX, Block, Connection
from kproc.broker.processor.connection_state import Pause
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.describe import client_of, connection_name, why_refused
from kproc.broker.processor.frame_memory import FrameMemory
from kproc.broker.processor.handler_peer import HandlerPeer
from kproc.broker.processor.handler_set import HandlerSet
from kproc.broker.processor.lent_blocks import LentBlocks
from kproc.broker.processor.memory_budget import MemoryBudget
from kproc.broker.processor.processor_state import ProcessorState
from kproc.broker.processor.slow_frames import LARGE_FRAME_BYTES, SlowFrameReaper, wanted_bytes
from kproc.broker.processor.timed_requests import TimedRequests
from kproc.broker.transport.envelope import HEAD, HEAD_BYTES, REQUEST, REQUEST_BLOCK, SEQUENCE_MASK

logger = logging.getLogger(__name__)

# Room reserved per read. It takes several small frames at once; large frames bypass the ring. Neither this bound nor
# LARGE_FRAME_BYTES was tuned.
READ_BYTES: Final = 32 * 1024
_ROOM_BYTES: Final = 2 * (READ_BYTES + LARGE_FRAME_BYTES)  # For one read, held bytes and padding.
_LOOK_NS: Final = 500_000  # Shortest interval at which a request is considered for timing.
_LENGTH: Final = struct.Struct(">i")
_unpack_length: Final = _LENGTH.unpack_from
RESERVED_BYTES: Final = HEAD_BYTES + READ_BYTES
_BEHIND_HEAD: Final = slice(HEAD_BYTES, None)
_CLOSED: Final = "the client closed it"
_RETRY_NS: Final = 100_000_000  # Interval at which waiting frames are retried even if no memory became free.
_RETRIES: Final = 64  # Limit of addresses in one retry, and of frames of each address.
_BYTES_IN: Final = SLOT["bytes_in"]
_REQUESTS: Final = SLOT["requests"]


class RequestReader:
    """One per Processor. `read` is for any connection whose socket is readable."""

    __slots__ = (
        "_blocks", "_budget", "_counts", "_free_counts", "_handlers", "_login_memory", "_memory", "_next_retry_ns",
        "_reaper", "_request_bytes_max", "_state", "_table", "_timed", "_unpublished", "judges_each", "next_look_ns",
        "read",
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
        memory: FrameMemory,
        login_memory: FrameMemory,
        reaper: SlowFrameReaper,
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
        self._memory = memory
        self._login_memory = login_memory
        self._reaper = reaper
        self._free_counts = (-1, -1)
        self._next_retry_ns = 0
        self._request_bytes_max = request_bytes_max
        self.next_look_ns = 0  # When the next request may be timed.
        # True if a read may have to wait for the budget, or if a frame that fits into one read may be too long.
        self.judges_each = budget.is_limited or request_bytes_max < READ_BYTES
        self.read = self._read_within_budget if budget.is_limited else self._read

    def _read_within_budget(self, connection: Connection) -> None:
        """Read if the memory budget has room. Always read an unfinished frame: only its end frees its memory."""
        if connection.block is not None or connection.held or self._budget.has_room():
            before = self._counts[_REQUESTS]
            self._read(connection)
            self._budget.count(connection, self._counts[_REQUESTS] - before)
            return
        self._table.wait_for_memory(connection)

    def _read(self, connection: Connection) -> None:
        """Read once, straight into the home's ring, and forward every whole frame."""
        link = connection.home.link
        if connection.held or connection.block is not None or link is None:
            self._read_on(connection)
            return
        view = link.sender.reserve(RESERVED_BYTES)
        if view is None:
            self._table.stall(connection)
            return
        if count := self._receive(connection, view[_BEHIND_HEAD]):
            self.split(connection, view, count)

    def split(self, connection: Connection, view: memoryview, count: int) -> None:
        """Forward the frames in the `count` bytes that were received behind the room for a head."""
        end = HEAD_BYTES + count
        if count > 4 and connection.inflight < INFLIGHT_MAX:
            (length,) = _unpack_length(view, HEAD_BYTES)
            if length == count - 4 <= self._request_bytes_max and connection.is_introduced:
                if self._handlers.router is not None and self._route(connection, view[HEAD_BYTES:end]):
                    return
            elif LARGE_FRAME_BYTES < length <= self._request_bytes_max and length > count - 4:
                self._hold(connection, view[HEAD_BYTES:end])
                return
        self._pass_on(connection, view, end)

    def _read_on(self, connection: Connection) -> None:
        """Read once from a connection that has part of a frame, or whose home has no link."""
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
            self._pass_on_behind_held(connection, view, count)

    def _receive(self, connection: Connection, into: memoryview, if_ended: str = _CLOSED) -> int:
        """Receive once; return how many bytes came. 0 if there are none, or if the connection was closed."""
        try:
            count = connection.recv_into(into)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._table.close(connection, str(error))
            return 0
        return self.received(connection, count, if_ended)

    def received(self, connection: Connection, count: int, if_ended: str = _CLOSED) -> int:
        """Record that one call received `count` bytes; return `count`. If it is 0 the client has ended: close."""
        if count:
            connection.last_active_ns = self._state.now_ns
            self._counts[_BYTES_IN] += count
        else:
            self._table.close(connection, if_ended)
        return count

    def _passed(self, connection: Connection, target: HandlerPeer, frames: int) -> None:
        """Record that `frames` requests of a connection went into a Handler's ring."""
        self._unpublished[target] = None
        connection.target = target
        connection.next_sequence = (connection.next_sequence + frames) & SEQUENCE_MASK
        connection.inflight += frames
        self._counts[_REQUESTS] += frames
        if connection.is_full:
            self._table.update_interest(connection)

    def pass_received(self, connection: Connection, buffer: memoryview, count: int) -> None:
        """Forward `count` bytes that another thread received: into the connection's block, or else into `buffer`."""
        if not self.received(connection, count):
            return
        block = connection.block
        if block is not None:
            block.advance(count)
            if block.is_whole:
                self._pass_on_block(connection, block)
            elif block.must_grow and not block.memory.grow(connection, block):
                self._table.wait_for_block(connection)
            return
        link = connection.home.link
        held = connection.held
        start = HEAD_BYTES + len(held)
        view = link.sender.reserve(start + count) if link is not None else None
        if view is None:
            self._budget.held_bytes -= len(held)
            self._put_off(connection, bytes(held) + bytes(buffer[:count]))
            return
        view[start:] = buffer[:count]
        self._pass_on_behind_held(connection, view, count)

    def _pass_on(self, connection: Connection, view: memoryview, end: int) -> None:
        """Split view[HEAD_BYTES:end], which lies in the home's ring, into frames, and commit the whole ones."""
        position = HEAD_BYTES
        frames = length = 0
        room = INFLIGHT_MAX - connection.inflight
        while end - position >= 4 and frames < room:
            (length,) = _LENGTH.unpack_from(view, position)
            if not 0 <= length <= self._request_bytes_max:
                start = bytes(view[position : position + 4])
                self._pass_on(connection, view, position)  # Forward the valid frames before it.
                self._refuse(connection, start, length)
                return
            if position + 4 + length > end:
                break
            position += 4 + length
            frames += 1
        rest = bytes(view[position:end]) if position < end else b""
        if frames:
            if not connection.is_introduced:
                self._pass_on_introduced(connection, bytes(view[HEAD_BYTES:end]))
                return
            if self._handlers.router is not None:
                self._pass_on_routed(connection, bytes(view[HEAD_BYTES:position]), rest)
                return
            flags = connection.flags
            if self._state.now_ns >= self.next_look_ns:
                flags |= self._begin_timing(connection, view[HEAD_BYTES + 4 : position], connection.home)
            HEAD.pack_into(view, 0, connection.id, connection.next_sequence, connection.listener, flags)
            link = connection.home.link
            assert link is not None
            link.sender.commit(position, REQUEST)
            self._passed(connection, connection.home, frames)
        if rest:
            self._keep_rest(connection, rest)

    def _pass_on_introduced(self, connection: Connection, data: bytes) -> None:
        """Introduce a connection to the Handlers, then forward its first frames."""
        if connection.client is None:
            connection.client = client_of(memoryview(data)[4:])
        if connection.login is not None:
            self._pass_on_login(connection, data)
            return
        if not self._handlers.introduce(connection):
            self._put_off(connection, data)
            return
        connection.held = data
        self._budget.held_bytes += len(data)
        self._pass_on_held(connection)

    def _pass_on_login(self, connection: Connection, data: bytes) -> None:
        """Forward the first frame of a client that logs in to its home. The other bytes wait for the answer."""
        end = 4 + _LENGTH.unpack_from(data)[0]
        if self._is_too_long(connection, data[:4]):
            return
        home = connection.home
        head = HEAD.pack(connection.id, connection.next_sequence, connection.listener, connection.flags)
        if (
            connection.inflight
            or not self._introduce(connection)
            or home.link is None
            or not home.link.sender.try_push(REQUEST, head, data[:end])
        ):
            self._put_off(connection, data)
            return
        self._passed(connection, home, 1)
        if end < len(data):
            self._put_off(connection, data[end:])

    def _is_too_long(self, connection: Connection, start: bytes) -> bool:
        """Reject a frame of a client that logs in if it is too long for a login; return True if it is."""
        (length,) = _LENGTH.unpack_from(start)
        longest = self._table.logins.bytes_max
        link = connection.home.link
        if link is not None:  # The frame must fit into one record of the ring.
            longest = min(longest, link.sender.record_bytes_max - HEAD_BYTES - _LENGTH.size)
        if length <= longest:
            return False
        self._counts[SLOT["logins_failed"]] += 1
        self._refuse(connection, start, length, longest)
        return True

    def _pass_on_routed(self, connection: Connection, frames: bytes, rest: bytes) -> None:
        """Push each frame to the Handler that the router names.

        Requests of one connection are in work at one Handler only. A frame for another one waits, with all frames
        behind it, until the requests before it are answered.
        """
        view = memoryview(frames)
        position = 0
        while position < len(frames) and connection.inflight < INFLIGHT_MAX:
            end = position + 4 + _LENGTH.unpack_from(frames, position)[0]
            if not self._route(connection, view[position:end]):
                break
            position = end
        if position < len(frames):
            self._put_off(connection, frames[position:] + rest)
        elif rest:
            self._keep_rest(connection, rest)

    def _route(self, connection: Connection, frame: memoryview) -> bool:
        """Push one frame with its length. Return False if it has to wait. It may lie in a ring's reserved room."""
        assert self._handlers.router is not None
        target = self._handlers.by_index.get(self._handlers.router.route(frame[4:]), connection.home)
        if target.link is None:
            target = connection.home
        link = target.link
        if link is None or (connection.inflight and target is not connection.target):
            return False
        flags = connection.flags
        if self._state.now_ns >= self.next_look_ns:
            flags |= self._begin_timing(connection, frame[4:], target)
        head = HEAD.pack(connection.id, connection.next_sequence, connection.listener, flags)
        if not link.sender.try_push(REQUEST, head, frame):
            self._timed.cancel(connection)
            return False
        self._passed(connection, target, 1)
        return True

    def _keep_rest(self, connection: Connection, rest: bytes) -> None:
        """Store the bytes behind the forwarded frames: part of a frame, or frames beyond INFLIGHT_MAX."""
        if connection.inflight < INFLIGHT_MAX:
            self._hold(connection, rest)
        else:
            self._put_off(connection, rest)

    def _put_off(self, connection: Connection, frames: bytes) -> None:
        """Store whole frames, and stall the connection until there is room for them."""
        connection.held = frames
        self._budget.held_bytes += len(frames)
        self._table.stall(connection)

    def _hold(self, connection: Connection, rest: bytes | memoryview) -> None:
        """Store the first part of a frame, in a block if the frame is large."""
        if len(rest) >= 4:
            (length,) = _LENGTH.unpack_from(rest)
            if length > LARGE_FRAME_BYTES or connection.login is not None:
                if connection.login is not None and self._is_too_long(connection, bytes(rest[:4])):
                    return
                if self._memory_of(connection).start(connection, length, rest[4:]):
                    return
                # Do not close other connections for memory here: `rest` may lie in a ring, and a close pushes a record
                # into it.
                connection.held = bytes(rest)
                self._budget.held_bytes += len(rest)
                self._table.wait_for_block(connection)
                return
        connection.held = bytes(rest)
        self._budget.held_bytes += len(rest)

    def _read_block(self, connection: Connection, block: Block) -> None:
        """Read into the connection's block as long as the socket fills it. Forward the frame when it is complete."""
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
        self._pass_on_block(connection, block)

    def _pass_on_block(self, connection: Connection, block: Block) -> None:
        """Forward a large frame that is complete. Stall the connection if there is no room."""
        if connection.client is None:
            connection.client = client_of(block.view)
        if block.memory is self._login_memory:
            self._publish_login_block(connection, block)
            return
        target = connection.home
        login = connection.login
        if login is None and self._handlers.router is not None:
            owner = self._handlers.by_index.get(self._handlers.router.route(block.view))
            if owner is not None and owner.link is not None:
                target = owner
        if not connection.is_introduced and not self._introduce(connection):
            self._table.stall(connection)
            return
        flags = connection.flags
        if login is None and self._state.now_ns >= self.next_look_ns:
            flags |= self._begin_timing(connection, block.view, target)
        head = HEAD.pack(connection.id, connection.next_sequence, connection.listener, flags)
        link = target.link
        if (
            link is None
            or (connection.inflight and target is not connection.target)
            or not link.sender.try_push(REQUEST_BLOCK, head, block.record())
        ):
            self._timed.cancel(connection)
            self._table.stall(connection)
            return
        self._blocks.lend(connection, block, target)
        self._passed(connection, target, 1)

    def _publish_login_block(self, connection: Connection, block: Block) -> None:
        """Copy a large frame of a client that has not logged in into the ring of its home Handler."""
        home = connection.home
        head = HEAD.pack(connection.id, connection.next_sequence, connection.listener, connection.flags)
        if (
            connection.inflight
            or not self._introduce(connection)
            or home.link is None
            or not home.link.sender.try_push(REQUEST, head, _LENGTH.pack(block.length), block.view)
        ):
            self._table.stall(connection)
            return
        block.memory.release(connection, block)
        self._passed(connection, home, 1)

    def _introduce(self, connection: Connection) -> bool:
        """Introduce a connection to all Handlers, or only to its home before the login. Return False without room."""
        login = connection.login
        if login is None:
            return self._handlers.introduce(connection)
        if connection.home.link is None or not self._handlers.introduce_to(connection.home, connection):
            return False
        login.begin(self._state.now_ns)
        return True

    def retry_stalled(self) -> None:
        """Continue the connections that had no room; those that still have none stall again."""
        for connection in list(self._table.stalled):
            is_throttled = Pause.THROTTLED in connection.pauses and not self._state.is_stopping
            if connection.migration is not None or is_throttled:
                continue
            if connection.out or connection.is_full:
                # It must first send answers, or get some. Then ConnectionTable.update_interest enters it again.
                del self._table.stalled[connection]
                continue
            link = connection.home.link
            # Without room for a read it would stall again at once, and the Processor would spin instead of sleeping.
            if link is None or link.sender.free_bytes() < _ROOM_BYTES:
                continue
            del self._table.stalled[connection]
            connection.pauses &= ~Pause.STALLED
            before = self._counts[_REQUESTS]
            if connection.block is not None:
                self._read_block(connection, connection.block)
            elif connection.held:
                self._pass_on_held(connection)
            self._budget.count(connection, self._counts[_REQUESTS] - before)
            if connection.fd in self._table.by_fd:
                self._table.update_interest(connection)

    def retry_block_waits(self) -> None:
        """Give memory to frames that wait for it. Addresses with the smallest share and short frames come first.

        Does nothing if no memory became free, except every _RETRY_NS: then frames of an address that holds more memory
        may be closed.
        """
        free_counts = self._memory.free_count, self._login_memory.free_count
        now_ns = self._state.now_ns
        may_close = now_ns >= self._next_retry_ns
        if free_counts == self._free_counts and not may_close:
            return
        if may_close:
            self._next_retry_ns = now_ns + _RETRY_NS
        waiting = self._table.awaiting_block
        for key in nsmallest(_RETRIES, waiting, key=self._share_of):
            # At most _RETRIES, because an address may have many waiting connections. A copy, because making room for
            # one frame may close connections of another address, which may be waiting, too.
            for connection in sorted(islice(waiting.get(key, ()), _RETRIES), key=self._needed):
                if connection.migration is None and not self._retry(connection, may_close=may_close):
                    break
        self._free_counts = self._memory.free_count, self._login_memory.free_count

    def _memory_of(self, connection: Connection) -> FrameMemory:
        """Return the memory of a connection's unfinished frame, or of its next one."""
        block = connection.block
        is_login = connection.login is not None if block is None else block.memory is self._login_memory
        return self._login_memory if is_login else self._memory

    def _share_of(self, key: bytes) -> int:
        return self._memory.shares.share_of_key(key) + self._login_memory.shares.share_of_key(key)

    def _retry(self, connection: Connection, *, may_close: bool) -> bool:
        """Try to get memory for a frame, if allowed by closing others. Return False if there is none."""
        memory = self._memory_of(connection)
        if self._retry_block(connection, memory):
            return True
        return (
            may_close
            and self._reaper.make_room(connection, memory, self._needed(connection))
            and self._retry_block(connection, memory)
        )

    def _needed(self, connection: Connection) -> int:
        """Return the number of bytes that a connection waits for."""
        block, memory = connection.block, self._memory_of(connection)
        if block is None:
            return memory.needed_bytes(wanted_bytes(connection), len(connection.held))
        present = len(block.view)
        return memory.needed_bytes(block.length, block.filled, present) - present

    def _retry_block(self, connection: Connection, memory: FrameMemory) -> bool:
        """Allocate memory for a frame, or return False. If it succeeds, resume reading the connection."""
        block = connection.block
        if block is not None:
            if not memory.grow(connection, block):
                return False
        else:
            held = connection.held
            if not memory.start(connection, wanted_bytes(connection), held[4:]):
                return False
            connection.held = b""
            self._budget.held_bytes -= len(held)
        self._table.resume_with_block(connection)
        return True

    def _pass_on_held(self, connection: Connection) -> None:
        """Forward the held bytes: whole frames that waited for room or for another Handler."""
        link = connection.home.link
        view = link.sender.reserve(HEAD_BYTES + len(connection.held)) if link is not None else None
        if view is None:
            self._table.stall(connection)
        else:
            self._pass_on_behind_held(connection, view, 0)

    def _pass_on_behind_held(self, connection: Connection, view: memoryview, count: int) -> None:
        """Forward the held bytes, and `count` more that lie in `view` behind the room for them."""
        held = connection.held
        start = HEAD_BYTES + len(held)
        view[HEAD_BYTES:start] = held
        connection.held = b""
        self._budget.held_bytes -= len(held)
        self._pass_on(connection, view, start + count)

    def _refuse(self, connection: Connection, start: bytes, length: int, longest: int = 0) -> None:
        """Reject an invalid frame length: read nothing more, and close when the requests before it are answered."""
        self._counts[SLOT["malformed"]] += 1
        reason = why_refused(start, length, self._request_bytes_max, longest)
        if self._state.refusals.has_room(self._state.now_ns):
            logger.warning("closing connection %s: %s", connection_name(connection), reason)
        self._table.drain(connection)

    def _begin_timing(self, connection: Connection, frame: memoryview, target: HandlerPeer) -> int:
        """Consider a request for timing, at most every _LOOK_NS. Return FLAG_TIMED if it is timed, otherwise 0."""
        if not connection.counters.is_timed:
            return 0
        now_ns = self._state.now_ns
        self.next_look_ns = now_ns + _LOOK_NS
        return self._timed.begin(connection, frame, target.peer, now_ns)
