"""FreedNames: when the name of a deleted topic may be used again.

A partition's directory is called after its topic's name, and its owner acts on it by name: it renames it for the
deletion, rolls segments, writes snapshots. An owner that is stopped, or recovers a long log, may do so long after the
deletion, and would do it to the directory of a topic that has the name by then. So a topic is not made before every
Handler that lives has acknowledged the deletion of its namesake, which a Handler does when it has let go of the
directory. Nobody has to look before each rename: there is never a second directory of a name that anybody may act on.

Whoever asks for the name earlier waits, WAIT_NS at most, and is then told to try again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple

from kproc.transport.agent import AgentId

WAIT_NS: Final = 5_000_000_000


class _Waiting(NamedTuple):
    names: frozenset[str]
    until_ns: int
    go_on: Callable[[frozenset[str]], None]


class FreedNames:
    """The controller's note of who may still hold the directories of which names."""

    def __init__(self, now_ns: Callable[[], int], *, unsure_until: int | None) -> None:
        """`unsure_until`: the version at which a restarted controller begins. It does not know who had heard of the
        deletions before, nor, until `all_linked`, who there is."""
        self._now_ns = now_ns
        self._unsure_until = unsure_until
        self._is_linked = unsure_until is None
        self._known: dict[AgentId, int] = {}  # The version that each Handler has acknowledged.
        self._deleted: dict[str, int] = {}  # Name -> the version of its deletion.
        self._waiting: deque[_Waiting] = deque()

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for a name."""
        return bool(self._waiting)

    def all_linked(self) -> None:
        """Every Handler that runs is attached by now."""
        self._is_linked = True
        self._settle()

    def attach(self, handler: AgentId) -> None:
        """A Handler is there (again): it may hold anything until it has taken in its snapshot."""
        self._known[handler] = -1

    def detach(self, handler: AgentId) -> None:
        """It died: it holds nothing."""
        self._known.pop(handler, None)
        self._settle()

    def acknowledged(self, handler: AgentId, version: int) -> None:
        """It has done what the metadata up to this version asks for."""
        if handler in self._known:
            self._known[handler] = version
            self._settle()

    def deleted(self, names: Iterable[str], version: int) -> None:
        """Topics of these names were deleted with this version."""
        self._deleted.update(dict.fromkeys(names, version))

    def held(self, names: Collection[str]) -> frozenset[str]:
        """Those of the names that somebody may still act on."""
        if not self._is_linked or self._unsure_until is not None:
            return frozenset(names)
        return frozenset(name for name in names if name in self._deleted)

    def wait(self, names: frozenset[str], go_on: Callable[[frozenset[str]], None]) -> None:
        """Call back when none of the names is held, or with those that are when that takes too long."""
        self._waiting.append(_Waiting(names, self._now_ns() + WAIT_NS, go_on))

    def tick(self, *, is_stopping: bool) -> None:
        """Now and then: let nobody wait too long."""
        while self._waiting and (is_stopping or self._now_ns() >= self._waiting[0].until_ns):
            waiting = self._waiting.popleft()
            waiting.go_on(self.held(waiting.names))

    def _settle(self) -> None:
        """Somebody has let go: forget what nobody holds, and go on with who waited for it."""
        if not self._is_linked or not (self._deleted or self._unsure_until is not None):
            return
        everybody_knows = min(self._known.values(), default=None)
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
                waiting.go_on(frozenset())


def wanted_names(op: str, body: dict[str, Any]) -> list[str]:
    """The names that an operation on the metadata would give to new topics."""
    if op == "create_topics" and not body["validate_only"]:
        return [topic["name"] for topic in body["topics"]]
    return body["names"] if op == "auto_create_topics" else []
