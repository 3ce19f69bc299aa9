"""Agents: roles as objects with `do_work()`, and the links by which they talk.

A role never knows what runs it. `process.py` runs it as a forked child over shared-memory rings, `thread.py` as a
thread over deques; the inline transport calls every role from one thread. All three give the role the same `Link`
objects, and the bytes that travel over a link are the same in all three (envelope.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, NamedTuple, Protocol


class AgentId(NamedTuple):
    """Names one running role: its role word and its index, `processor-0`."""

    role: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which no code calls on an id

    def __str__(self) -> str:
        return f"{self.role}-{self.index}"


class Sender(Protocol):
    """The producing end of a link: records become visible at `publish()`, never before."""

    record_bytes_max: int
    capacity: int

    def reserve(self, length: int) -> memoryview | None: ...
    def commit(self, length: int, kind: int) -> None: ...

    def reserve_run(self, length: int) -> tuple[memoryview, int, int] | None:
        """Room for several records: a buffer, where the first begins in it, and where the last may begin."""

    def commit_run(self, position: int) -> None:
        """Finish the records that were written up to there, headers included."""

    def try_push(self, kind: int, *parts: bytes | bytearray | memoryview) -> bool: ...
    def publish(self) -> None: ...
    def free_bytes(self) -> int: ...
    def progress(self) -> tuple[int, int]: ...

    def waiting(self, limit: int) -> int:
        """How many published records the other side has not taken; counted up to `limit`."""

    def untaken(self) -> list[tuple[int, bytes]] | None:
        """The records that the other side never took, published or not; None unless it has ended in order."""


class Receiver(Protocol):
    """The consuming end: `poll` takes a batch, `release` gives its bytes back, `end` says that none follows."""

    def poll(self, limit: int) -> Sequence[tuple[int, memoryview]]: ...
    def release(self) -> None: ...
    def end(self) -> None: ...
    def is_empty(self) -> bool: ...


class Wakeable(Protocol):
    """Wakes the consuming agent if it sleeps."""

    def wake(self) -> None: ...


class Doze(Protocol):
    """The sleeping side (ipc/wait.py): `fd` goes into the agent's epoll, edge-triggered."""

    fd: int
    rescued_count: int
    slept_ns: int

    def prepare(self) -> None: ...
    def cancel(self) -> None: ...
    def wait(
        self,
        poll: Callable[[float], list[Any]],
        timeout_s: float,
        has_work: Callable[[], bool],
        since_ns: int = 0,
    ) -> list[Any]: ...


class BlockReader(Protocol):
    """A peer's arena, of which this agent reads single blocks."""

    def view(self, offset: int, length: int) -> memoryview: ...
    def close(self) -> None: ...


class BlockOwner(Protocol):
    """An agent's own arena."""

    capacity: int
    lent_bytes: int
    free_count: int

    def allocate(self, length: int) -> int | None: ...
    def grow(self, offset: int, length: int, filled: int) -> int | None: ...
    def view(self, offset: int, length: int) -> memoryview: ...
    def free(self, offset: int) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """Both directions between this agent and one peer. Owned by the agent that it was attached to."""

    peer: AgentId
    _: KW_ONLY
    sender: Sender
    receiver: Receiver
    waker: Wakeable
    generation: int = 0
    arena: BlockReader | None = None


# Longest sleep of a role whose metrics are to be published, and of an idle role, which then only shows that it lives.
STORE_MS: Final = 100
REST_MS: Final = 500


def beat_ms(hung_ms: int) -> int:
    """How long a role may sleep at most: three heartbeats fit into the time after which it counts as hung."""
    return max(STORE_MS, min(REST_MS, hung_ms // 3)) if hung_ms else REST_MS


class Agent(Protocol):
    """A role. Every method is called by the one thread that runs the agent."""

    id: AgentId
    # Set when a watched descriptor became readable; cleared by the code that reads that descriptor.
    is_called: bool

    def attach(self, link: Link) -> None:
        """Use this link to its peer from now on. It replaces an earlier link to the same peer, which was restarted."""

    def detach(self, peer: AgentId) -> None:
        """Drop the link to a peer that was reaped: nothing more comes from it, and it uses no block any more."""

    def do_work(self, timeout_ms: int) -> int:
        """Do one duty cycle and return how much was done. If nothing is left to do, sleep first, up to `timeout_ms` or
        until the next timer is due."""

    def watch(self, fd: int) -> None:
        """Also wake up when `fd`, the supervisor's control socket, is readable."""

    def poll_fd(self) -> int:
        """An epoll descriptor that is readable when something other than a link has input for this agent."""

    def next_deadline_ms(self) -> int:
        """How long the agent may sleep before its next timer is due."""

    def begin_stop(self) -> None:
        """Take nothing new; finish what is in work."""

    def is_drained(self) -> bool:
        """True when nothing is left to finish."""

    def close(self) -> str | None:
        """Release descriptors and files; called once, after the last `do_work`.

        Returns why the next start must not take this stop for a clean one, or None if it may.
        """
