"""LentBlocks: the arena blocks that a Processor lent to Handlers.

Each comes back with the answer to its request. A request can wait in its Handler for as long as its client says (a
Fetch, a JoinGroup), and would occupy the arena meanwhile. So a block that a Handler has for more than a second is
recalled. Its request stays in `by_request` until it is answered, because the Handler keeps what it has decoded of it.
"""

from __future__ import annotations

from typing import Final

from kproc.broker.processor.connection import Block, Connection
from kproc.broker.processor.handler_peer import HandlerPeer
from kproc.broker.transport.agent import BlockOwner
from kproc.broker.transport.envelope import HEAD, RECALL_BLOCK
from kproc.wire.header import ApiKey

_RECALLED: Final = -1
_PRODUCE: Final = ApiKey.PRODUCE.to_bytes(2, "big")  # A frame begins with its API key.


class LentBlocks:
    """One per Processor. Others only read `by_request`."""

    __slots__ = ("_arena", "_seen", "by_request")

    def __init__(self, arena: BlockOwner) -> None:
        self._arena = arena
        self._seen: dict[tuple[int, int], bool] = {}  # At the last look: whether they are recalled.
        # By connection and sequence: the block's offset, or _RECALLED; the Handler that has it; how many bytes that
        # Handler may keep when the block is recalled.
        self.by_request: dict[tuple[int, int], tuple[int, HandlerPeer, int]] = {}

    def lend(self, connection: Connection, block: Block, handler: HandlerPeer) -> None:
        """Lend a block of the arena, which holds the connection's next request, to a Handler."""
        # A Produce that waits has been appended, mostly for a sync: the Handler keeps nothing of its records. If it
        # counted, a disk that stalls for seconds would close honest producers.
        kept_bytes = 0 if block.view[: len(_PRODUCE)] == _PRODUCE else block.length
        block.memory.hand_out(connection, block)
        self.by_request[connection.id, connection.next_sequence] = (block.offset, handler, kept_bytes)

    def give_back(self, connection_id: int, sequence: int) -> None:
        """Free the block that held a request, if it was in one."""
        lent = self.by_request.pop((connection_id, sequence), None)
        if lent is not None and lent[0] != _RECALLED:
            self._arena.free(lent[0])

    def recall(self) -> None:
        """Recall the blocks that were lent at the last call already. Called once a second."""
        before = self._seen
        self._seen = dict.fromkeys(self.by_request, False)
        for key in self._seen:
            is_recalled = before.get(key)
            if is_recalled is False:
                _, handler, _ = self.by_request[key]
                handler.notify(RECALL_BLOCK, HEAD.pack(*key, 0, 0))
            if is_recalled is not None:
                self._seen[key] = True

    def free_recalled(self, connection_id: int, sequence: int) -> None:
        """Free a block that a Handler does not need any more, although its request is not answered."""
        offset, handler, length = self.by_request.get((connection_id, sequence), (_RECALLED, None, 0))
        if handler is not None and offset != _RECALLED:
            self._arena.free(offset)
            self.by_request[connection_id, sequence] = (_RECALLED, handler, length)

    def recalled_bytes(self) -> dict[int, int]:
        """Return what Handlers may keep, by connection, of requests that wait there without their blocks."""
        sizes: dict[int, int] = {}
        for (connection_id, _), (offset, _, length) in self.by_request.items():
            if offset == _RECALLED:
                sizes[connection_id] = sizes.get(connection_id, 0) + length
        return sizes

    def lose(self, handler: HandlerPeer) -> None:
        """Free all blocks of a Handler that died."""
        for key, (offset, lent_to, _) in list(self.by_request.items()):
            if lent_to is handler:
                if offset != _RECALLED:
                    self._arena.free(offset)
                del self.by_request[key]

    def has_any_at(self, handler: HandlerPeer) -> bool:
        """Whether a Handler has any block."""
        return any(lent_to is handler for _, lent_to, _ in self.by_request.values())
