"""LentBlocks: which blocks of a Processor's arena its Handlers have, each until the answer of its request."""

from __future__ import annotations

from kproc.net.handler_peer import HandlerPeer
from kproc.transport.agent import BlockOwner


class LentBlocks:
    """One per Processor. `by_request` is for looking at only."""

    __slots__ = ("_arena", "by_request")

    def __init__(self, arena: BlockOwner) -> None:
        self._arena = arena
        # By connection and sequence: where it is, and who has it.
        self.by_request: dict[tuple[int, int], tuple[int, HandlerPeer]] = {}

    def lend(self, connection_id: int, sequence: int, offset: int, handler: HandlerPeer) -> None:
        """The block at `offset` goes with this request."""
        self.by_request[connection_id, sequence] = (offset, handler)

    def give_back(self, connection_id: int, sequence: int) -> None:
        """Free the block that a request came in, if it did."""
        lent = self.by_request.pop((connection_id, sequence), None)
        if lent is not None:
            self._arena.free(lent[0])

    def lose(self, handler: HandlerPeer) -> None:
        """That Handler died: nobody reads what it had."""
        for key, (offset, lent_to) in list(self.by_request.items()):
            if lent_to is handler:
                self._arena.free(offset)
                del self.by_request[key]

    def has_any_at(self, handler: HandlerPeer) -> bool:
        """Whether that Handler has one."""
        return any(lent_to is handler for _, lent_to in self.by_request.values())
