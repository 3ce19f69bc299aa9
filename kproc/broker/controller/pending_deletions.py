"""PendingDeletions: decide when the name of a deleted topic can be used again.

A partition's directory is named after its topic. The Handler that owns the partition uses the directory by its name: to
roll segments, to write snapshots, and to rename the directory after a deletion. A Handler that is suspended or recovers
a long log can do this long after the deletion. It would then change the directory of a newer topic with the same name.
So a topic is not created until every running Handler has acknowledged the deletion of the earlier topic with its name.
A Handler acknowledges the deletion when it has closed and renamed the directory. Therefore no Handler has to check the
topic's id before each rename.

A request to create a topic whose name is still in use waits up to WAIT_NS, and then gets a retriable error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple

from kproc.broker.transport.agent import AgentId

WAIT_NS: Final = 5_000_000_000


class _NameWait(NamedTuple):
    names: frozenset[str]
    until_ns: int
    on_free: Callable[[frozenset[str]], None]


class PendingDeletions:
    """Names of deleted topics whose directories a Handler can still have open. The controller has one instance."""

    def __init__(self, now_ns: Callable[[], int], *, unsure_until: int | None) -> None:
        """Create the state of a new controller.

        unsure_until: the metadata version at which a restarted controller begins. It does not know which Handlers have
        acknowledged the deletions before that version and, until `all_linked`, which Handlers exist.
        """
        self._now_ns = now_ns
        self._unsure_until = unsure_until
        self._is_linked = unsure_until is None
        self._known: dict[AgentId, int] = {}  # The version that each Handler has acknowledged.
        self._deleted: dict[str, int] = {}  # Name -> the version of its deletion.
        self._waiting: deque[_NameWait] = deque()

    @property
    def is_waited_for(self) -> bool:
        """True if a request to create a topic waits until the topic's name can be used again."""
        return bool(self._waiting)

    def all_linked(self) -> None:
        """Record that `attach` was called for every running Handler. Before this, every name counts as in use."""
        self._is_linked = True
        self._release_free()

    def attach(self, handler: AgentId) -> None:
        """Record that a Handler has started. It may have any directory open until it acknowledges its snapshot."""
        # -1: no version is acknowledged. The Handler may have opened directories by older metadata, so every name
        # counts as in use until its first acknowledgement.
        self._known[handler] = -1

    def detach(self, handler: AgentId) -> None:
        """Remove a Handler that has died, because it has no directory open."""
        self._known.pop(handler, None)
        self._release_free()

    def acknowledged(self, handler: AgentId, version: int) -> None:
        """Record that the Handler has carried out the changes of the metadata up to this version."""
        # Ignore a late acknowledgement of a Handler that has died. Otherwise all names would wait for its next
        # acknowledgement, which never comes.
        if handler in self._known:
            self._known[handler] = version
            self._release_free()

    def deleted(self, names: Iterable[str], version: int) -> None:
        """Record that topics of these names were deleted with this version of the metadata."""
        self._deleted.update(dict.fromkeys(names, version))

    def held(self, names: Collection[str]) -> frozenset[str]:
        """Return those of `names` whose topics' directories a Handler can still have open."""
        # A restarted controller does not know which names its predecessor's Handlers still use, so every name
        # can be in use.
        if not self._is_linked or self._unsure_until is not None:
            return frozenset(names)
        return frozenset(name for name in names if name in self._deleted)

    def wait(self, names: frozenset[str], on_free: Callable[[frozenset[str]], None]) -> None:
        """Call `on_free` with an empty set when no Handler has a directory of topics with these names open.

        After WAIT_NS call `on_free` with those of the names that are still in use.
        """
        self._waiting.append(_NameWait(names, self._now_ns() + WAIT_NS, on_free))

    def tick(self, *, is_stopping: bool) -> None:
        """End the waits that have lasted WAIT_NS, or all waits if the controller stops.

        The controller's tick calls this.
        """
        # All waits have the same length, so the one that began first also ends first.
        while self._waiting and (is_stopping or self._now_ns() >= self._waiting[0].until_ns):
            waiting = self._waiting.popleft()
            waiting.on_free(self.held(waiting.names))

    def _release_free(self) -> None:
        """Remove the names that every Handler has released, and resume the requests that waited for them."""
        if not self._is_linked or not (self._deleted or self._unsure_until is not None):
            return
        everybody_knows = min(self._known.values(), default=None)
        # No Handler runs, so no directory is open and all names are free.
        if everybody_knows is None:
            self._deleted.clear()
            self._unsure_until = None
        else:
            if self._unsure_until is not None and everybody_knows >= self._unsure_until:
                self._unsure_until = None
            self._deleted = {name: at for name, at in self._deleted.items() if at > everybody_knows}
        for waiting in list(self._waiting):
            if not self.held(waiting.names):
                self._waiting.remove(waiting)
                waiting.on_free(frozenset())


def created_names(op: str, body: dict[str, Any]) -> list[str]:
    """Return the names of the topics that an operation on the metadata would create."""
    if op == "create_topics" and not body["validate_only"]:
        return [topic["name"] for topic in body["topics"]]
    return body["names"] if op == "auto_create_topics" else []
