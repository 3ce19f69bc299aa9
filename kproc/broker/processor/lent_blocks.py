"""LentBlocks: the arena blocks that a Processor lent to Handlers.

Each block comes back with the answer to its request. A Fetch or a JoinGroup can wait in its Handler for as long as its
client requests, and would occupy the arena meanwhile. The Processor therefore recalls a block that a Handler has had
for more than a second. The request stays in `by_request` until it is answered, because the Handler keeps its decoded
fields.
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
    """The arena blocks that a Processor has lent to Handlers, until their requests are answered or the blocks recalled.

    One per Processor.
    """

    __slots__ = ("_arena", "_seen", "by_request")

    def __init__(self, arena: BlockOwner) -> None:
        self._arena = arena
        # The blocks that were lent at the last call of `recall`, and whether a recall was sent.
        self._seen: dict[tuple[int, int], bool] = {}
        # By connection and sequence: the block's offset, or _RECALLED; the Handler that has it; the number of bytes
        # that the Handler may keep after the block is recalled.
        self.by_request: dict[tuple[int, int], tuple[int, HandlerPeer, int]] = {}

    def lend(self, connection: Connection, block: Block, handler: HandlerPeer) -> None:
        """Lend a block of the arena, which holds the connection's next request, to a Handler."""
        # A parked Produce has been appended and mostly waits for a sync: the Handler keeps none of its records. If its
        # bytes counted, a disk that stalls for seconds would cause honest producers to be closed.
        kept_bytes = 0 if block.view[: len(_PRODUCE)] == _PRODUCE else block.length
        block.memory.hand_out(connection, block)
        self.by_request[connection.id, connection.next_sequence] = (block.offset, handler, kept_bytes)

    def release(self, connection_id: int, sequence: int) -> None:
        """Free the block of a request, if the request came in a block that was not freed before."""
        lent = self.by_request.pop((connection_id, sequence), None)
        if lent is not None and lent[0] != _RECALLED:
            self._arena.free(lent[0])

    def recall(self) -> None:
        """Recall the blocks that were already lent at the last call. Called once a second."""
        before = self._seen
        self._seen = dict.fromkeys(self.by_request, False)
        for key in self._seen:
            is_recalled = before.get(key)
            if is_recalled is False:
                # The block was lent at the last call, too, so its request has been parked for a second. It must not
                # occupy the arena any longer.
                _, handler, _ = self.by_request[key]
                handler.notify(RECALL_BLOCK, HEAD.pack(*key, 0, 0))
            if is_recalled is not None:
                self._seen[key] = True

    def free_recalled(self, connection_id: int, sequence: int) -> None:
        """Free a recalled block that its Handler does not use any more. The block's request is not answered yet."""
        offset, handler, length = self.by_request.get((connection_id, sequence), (_RECALLED, None, 0))
        if handler is not None and offset != _RECALLED:
            self._arena.free(offset)
            self.by_request[connection_id, sequence] = (_RECALLED, handler, length)

    def recalled_bytes(self) -> dict[int, int]:
        """Return, by connection, how many bytes Handlers may keep of requests whose blocks were recalled."""
        sizes: dict[int, int] = {}
        for (connection_id, _), (offset, _, length) in self.by_request.items():
            if offset == _RECALLED:
                sizes[connection_id] = sizes.get(connection_id, 0) + length
        return sizes

    def release_all_of(self, handler: HandlerPeer) -> None:
        """Free all blocks of a Handler that died."""
        for key, (offset, lent_to, _) in list(self.by_request.items()):
            if lent_to is handler:
                if offset != _RECALLED:
                    self._arena.free(offset)
                del self.by_request[key]

    def has_any_at(self, handler: HandlerPeer) -> bool:
        """Return True if this Handler has an unanswered request whose block was lent to it, also if it was recalled."""
        return any(lent_to is handler for _, lent_to, _ in self.by_request.values())
