"""ShareStates: the calls from the group coordinator to the share coordinators, which store the states of partitions.

The rules of share groups know only `initialize` and `delete`, so that they need no I/O. Their callbacks come later,
when the group's coordinator may have resigned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from kproc.broker.share.membership.records import NamedPartitions
from kproc.broker.share.state.messages import InitializeState, state_key
from kproc.common.errors import ErrorCode

T = TypeVar("T")
# A callback that gets the error code of each item, in the order of the items.
OnCodes = Callable[[list[int]], None]
# Limit of the items in one call. A topic can have thousands of partitions, and an item takes 60 us.
ITEMS_AT_ONCE: Final = 200
# Requests with more items send one call in a duty cycle, because many groups can have such requests at the same time.
_FREE_ITEMS: Final = 20
# Results of a deletion after which the share partition has no state. The share coordinator rejects calls for a deleted
# topic, because it deletes the states of such a topic itself.
_HAS_NO_STATE: Final = frozenset({int(ErrorCode.NONE), int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)})


class ShareStates(msgspec.Struct, frozen=True):
    """The functions that call the share coordinators. Each item of a call is a share partition, by its `state_key`."""

    initialize: Callable[[Sequence[tuple[str, InitializeState]], OnCodes], None]
    delete: Callable[[Sequence[str], OnCodes], None]
    # Runs a function later. The Handler runs one deferred function in each duty cycle.
    defer: Callable[[Callable[[], None]], None]

    def initialize_all(
        self,
        group_id: str,
        partitions: Mapping[tuple[bytes, int], InitializeState],
        is_over: Callable[[], bool],
        on_done: OnCodes,
    ) -> None:
        """Initialize the states of the share partitions. `on_done` gets their error codes in the order of `partitions`.

        is_over: returns True when no further calls may be sent. The remaining states get NOT_COORDINATOR.
        """
        items = [(state_key(group_id, *each), state) for each, state in partitions.items()]
        _CallInParts(self.initialize, items, on_done, is_over, self.defer).receive([])

    def delete_all(
        self,
        group_id: str,
        topics: Mapping[bytes, NamedPartitions],
        on_done: Callable[[set[bytes], int], None],
    ) -> None:
        """Delete the states of topics. `on_done` gets the topics with no state left, and the first error or 0."""
        pairs = [(topic_id, each) for topic_id, topic in topics.items() for each in sorted(topic.partitions)]
        keys = [state_key(group_id, *each) for each in pairs]

        def on_codes(codes: list[int]) -> None:
            errors = [0 if code in _HAS_NO_STATE else code for code in codes]
            failed = {topic_id for (topic_id, _), code in zip(pairs, errors, strict=True) if code}
            on_done(topics.keys() - failed, next((code for code in errors if code), 0))

        _CallInParts(self.delete, keys, on_codes, lambda: False, self.defer).receive([])


class _CallInParts(Generic[T]):
    """One call with many items, which is sent in parts of ITEMS_AT_ONCE items until `is_over` returns True.

    `on_done` gets the error codes of all items at the end. Items that were not sent get NOT_COORDINATOR.
    """

    # A class and no nested functions: two functions that refer to each other would keep the group in memory until a
    # garbage collection.
    def __init__(
        self,
        send: Callable[[Sequence[T], OnCodes], None],
        items: Sequence[T],
        on_done: OnCodes,
        is_over: Callable[[], bool],
        defer: Callable[[Callable[[], None]], None],
    ) -> None:
        self._send = send
        self._items = items
        self._on_done = on_done
        self._is_over = is_over
        self._defer = defer
        self._codes: list[int] = []

    def receive(self, part: Sequence[int]) -> None:
        """Add the error codes of a part, then send the next one. Call `on_done` after the last part."""
        self._codes.extend(part)
        if len(self._codes) == len(self._items):
            self._on_done(self._codes)
        elif len(self._items) > _FREE_ITEMS:
            self._defer(self._send_part)
        else:
            self._send_part()

    def _send_part(self) -> None:
        sent = len(self._codes)
        # Another Handler may coordinate the group now. The remaining calls could reset states that it has initialized
        # since.
        if self._is_over():
            self.receive([int(ErrorCode.NOT_COORDINATOR)] * (len(self._items) - sent))
        else:
            self._send(self._items[sent : sent + ITEMS_AT_ONCE], self.receive)


def _unavailable(items: Sequence[object], on_codes: OnCodes) -> None:
    on_codes([int(ErrorCode.COORDINATOR_NOT_AVAILABLE)] * len(items))


# For tools and tests that have no share coordinator.
NO_SHARE_STATES: Final = ShareStates(_unavailable, _unavailable, lambda work: work())
