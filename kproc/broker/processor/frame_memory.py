"""FrameMemory: memory for large frames while they are received.

A block grows with the bytes that have arrived, not with the length that the client announced.

A Processor has two such memories. Frames of clients that may send requests are received into its arena, where Handlers
read them. Frames of clients that have not logged in are received into `LoginBlocks`, private memory with a small bound,
so that a client without a login cannot occupy the arena.

    memory in use     size of a frame's block
    up to an eighth   its length, at most USUAL_BYTES: a producer's batch is then received without a copy
    up to a half      FIRST_BYTES, then four times as much whenever the block is full
    more              its whole length at once, or it waits (ConnectionTable.wait_for_block)

Without the last rule many frames could each hold a part of the memory and wait for ever for the rest.
"""

from __future__ import annotations

from typing import Final

from kproc.broker.processor.address_shares import AddressShares
from kproc.broker.processor.connection import Block, Connection
from kproc.broker.transport.agent import BlockOwner

FIRST_BYTES: Final = 64 * 1024
USUAL_BYTES: Final = 1 << 20  # max.request.size of producers, and a little less than message.max.bytes.
_GROWTH: Final = 4


class FrameMemory:
    """Blocks of memory for the unfinished large frames of one Processor.

    `shares` has the bytes that each client address holds.
    """

    __slots__ = ("_owner", "shares")

    def __init__(self, owner: BlockOwner) -> None:
        self._owner = owner
        self.shares = AddressShares()

    @property
    def free_count(self) -> int:
        """The number of blocks freed so far. While it does not change, a failed allocation would fail again."""
        return self._owner.free_count

    def needed_bytes(self, length: int, filled: int, present: int = 0) -> int:
        """Return the size of the next block of a frame.

        `filled` of the frame's `length` bytes have arrived. `present` is the size of its present block, 0 if it has
        none.
        """
        used, capacity = self._owner.lent_bytes - present, self._owner.capacity
        size = min(length, max(FIRST_BYTES, _GROWTH * filled))
        usual = min(length, max(size, USUAL_BYTES))
        # Little memory is in use, so the usual batch of a producer is received without a copy.
        if used + usual <= capacity // 8:
            return usual
        return size if used + size <= capacity // 2 else length

    def start(self, connection: Connection, length: int, data: bytes | memoryview) -> bool:
        """Allocate the block of a frame that begins with `data`. Return False if there is no room for it."""
        block = self.reserve(length, len(data))
        if block is None:
            return False
        block.extend(data)
        self.assign(connection, block)
        return True

    def reserve(self, length: int, filled: int) -> Block | None:
        """Return an empty block for a frame of which `filled` bytes are elsewhere, or None if there is no room."""
        size = self.needed_bytes(length, filled)
        offset = self._owner.allocate(size)
        return None if offset is None else Block(self, offset, length, self._owner.view(offset, size))

    def assign(self, connection: Connection, block: Block) -> None:
        """Give a reserved block to a connection, which receives its frame into it."""
        connection.block = block
        self.shares.put(connection, len(block.view))

    def grow(self, connection: Connection, block: Block) -> bool:
        """Enlarge the block of an unfinished frame. Return False if there is no memory for that."""
        present = len(block.view)
        size = self.needed_bytes(block.length, block.filled, present)
        # Release the view first, because the block may move, and the old place then belongs to another frame.
        block.view.release()
        offset = self._owner.grow(block.offset, size, block.filled)
        # There is no memory until another frame is finished. The present block stays as it is, so that its bytes are
        # not lost.
        if offset is None:
            block.view = self._owner.view(block.offset, present)
            return False
        block.offset, block.view = offset, self._owner.view(offset, size)
        self.shares.put(connection, size)
        return True

    def discard(self, block: Block) -> None:
        """Free a reserved block that was not assigned to a connection."""
        block.view.release()
        self._owner.free(block.offset)

    def release(self, connection: Connection, block: Block) -> None:
        """Free the block of a frame that will not be received any further."""
        self.hand_out(connection, block)
        self._owner.free(block.offset)

    def hand_out(self, connection: Connection, block: Block) -> None:
        """Detach a block from its connection without freeing it. The caller lends it to a Handler, or frees it."""
        block.view.release()
        connection.block = None
        self.shares.remove(connection)


class FrameMemories:
    """The two memories for large frames of a Processor: its arena, and the one for clients that have not logged in."""

    __slots__ = ("arena", "logins")

    def __init__(self, arena: BlockOwner, login_bytes: int) -> None:
        self.arena = FrameMemory(arena)
        self.logins = FrameMemory(LoginBlocks(login_bytes))

    @property
    def free_counts(self) -> tuple[int, int]:
        """The number of blocks freed so far in the arena and in the memory of clients that have not logged in."""
        return self.arena.free_count, self.logins.free_count

    def of(self, connection: Connection) -> FrameMemory:
        """Return the memory of a connection's unfinished frame, or of its next one."""
        block = connection.block
        if block is not None:
            return block.memory
        return self.arena if connection.login is None else self.logins

    def share_of_key(self, key: bytes) -> int:
        """Return the bytes that the connections of an address hold, by its share_key."""
        return self.arena.shares.share_of_key(key) + self.logins.shares.share_of_key(key)


class LoginBlocks:
    """Private memory for the frames of clients that have not logged in. A BlockOwner, like the arena."""

    __slots__ = ("_blocks", "_next_offset", "capacity", "free_count", "lent_bytes")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.lent_bytes = 0
        self.free_count = 0
        self._blocks: dict[int, memoryview] = {}
        self._next_offset = 0

    def allocate(self, length: int) -> int | None:
        """Return the number of a new block, or None if the bound is reached."""
        # Clients without a login have only this memory. The frame waits until another one is finished.
        if self.lent_bytes + length > self.capacity:
            return None
        self._next_offset += 1
        self._blocks[self._next_offset] = memoryview(bytearray(length))
        self.lent_bytes += length
        return self._next_offset

    def grow(self, offset: int, length: int, filled: int) -> int | None:
        """Replace a block by a longer one with the same first bytes. Return None if the bound is reached."""
        old = self._blocks[offset]
        if self.lent_bytes - len(old) + length > self.capacity:
            return None
        new = memoryview(bytearray(length))
        new[:filled] = old[:filled]
        self._blocks[offset] = new
        self.lent_bytes += length - len(old)
        return offset

    def view(self, offset: int, length: int) -> memoryview:
        """Return the first `length` bytes of a block, writable, to receive into."""
        return self._blocks[offset][:length]

    def free(self, offset: int) -> None:
        """Free a block."""
        self.lent_bytes -= len(self._blocks.pop(offset))
        self.free_count += 1
