"""Agents: roles as objects with `do_work()`, and the links by which they talk.

A role never knows what runs it. `process.py` runs it as a forked child over shared-memory rings, `thread.py` as a
thread over deques; the inline transport calls every role from one thread. All three give the role the same `Link`
objects, and the bytes that travel over a link are the same in all three (envelope.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from kproc.broker.ipc.arena import ArenaReader


class AgentId(NamedTuple):
    """Names one running role: its role word and its index, `processor-0`."""

    role: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which no code calls on an id

    def __str__(self) -> str:
        return f"{self.role}-{self.index}"


class Sender(Protocol):
    """The sending end of a link. Records become visible to the receiver at `publish()`, never before."""

    record_bytes_max: int
    capacity: int

    def reserve(self, length: int) -> memoryview | None: ...
    def commit(self, length: int, kind: int) -> None: ...

    def reserve_run(self, length: int) -> tuple[memoryview, int, int] | None:
        """Reserve space for several records.

        Return (buffer, position of the first record, last position at which a record may begin), or None if not even
        one record of `length` bytes fits now.
        """

    def commit_run(self, position: int) -> None:
        """Commit the records that the caller has written up to `position`, with their record headers."""

    def try_push(self, kind: int, *parts: bytes | bytearray | memoryview) -> bool: ...
    def publish(self) -> None: ...
    def free_bytes(self) -> int: ...
    def progress(self) -> tuple[int, int]: ...

    def waiting(self, limit: int) -> int:
        """Return how many published records the receiver has not polled (in a ring: not released), at most `limit`."""

    def untaken(self) -> list[tuple[int, bytes]] | None:
        """Return the records that the receiver never polled, published or not.

        None unless the receiver called `finish`.
        """


class Receiver(Protocol):
    """The receiving end of a link.

    `poll` returns a batch of records, and `release` frees its bytes. `finish` ends the polling for good: the sender may
    then send unpolled records elsewhere.
    """

    def poll(self, limit: int) -> Sequence[tuple[int, memoryview]]: ...
    def release(self) -> None: ...
    def finish(self) -> None: ...
    def is_empty(self) -> bool: ...


class Wakeable(Protocol):
    """Wakes the agent at the receiving end of a link if it sleeps."""

    def wake(self) -> None: ...


class BlockOwner(Protocol):
    """The memory from which an agent allocates blocks for large frames.

    It is the arena of a Processor. For clients that have not logged in, it is the Processor's LoginBlocks
    (processor/frame_memory.py).
    """

    capacity: int
    lent_bytes: int
    free_count: int

    def allocate(self, length: int) -> int | None: ...
    def grow(self, offset: int, length: int, filled: int) -> int | None: ...
    def view(self, offset: int, length: int) -> memoryview: ...
    def free(self, offset: int) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """Both directions between this agent and one peer. The agent on this side owns it."""

    peer: AgentId
    _: KW_ONLY
    sender: Sender
    receiver: Receiver
    waker: Wakeable
    generation: int = 0
    arena: ArenaReader | None = None


# The longest sleeps of a role in ms: STORE_MS if its metrics have changed and must be stored in shared memory, REST_MS
# if it is idle and must only store its heartbeat there.
STORE_MS: Final = 100
REST_MS: Final = 500


def beat_ms(hung_ms: int) -> int:
    """Return the longest sleep of an idle role in ms, so that it stores 3 heartbeats within `hung_ms` (0: no limit)."""
    return max(STORE_MS, min(REST_MS, hung_ms // 3)) if hung_ms else REST_MS


class Agent(Protocol):
    """A role. Every method is called by the one thread that runs the agent."""

    id: AgentId
    # True after the descriptor of `watch()` became readable. The code that reads the descriptor sets it to False.
    is_called: bool

    def attach(self, link: Link) -> None:
        """Use this link from now on. It replaces the link to the peer's predecessor if the peer was restarted."""

    def detach(self, peer: AgentId) -> None:
        """Release the link to a peer whose process or thread has ended, and the arena blocks that were lent to it."""

    def do_work(self, timeout_ms: int) -> int:
        """Run one duty cycle and return the amount of work done, 0 if none.

        If there is nothing to do, sleep first, up to `timeout_ms` or until the next timer is due.
        """

    def watch(self, fd: int) -> None:
        """Also wake up when `fd`, the supervisor's control socket, is readable."""

    def poll_fd(self) -> int:
        """Return an epoll descriptor that is readable when anything but a link has input for this agent."""

    def next_deadline_ms(self) -> int:
        """Return how many ms the agent may sleep before its next timer is due."""

    def follow_time(self, on_done: Callable[[], None]) -> None:
        """Run the timers that are due after a test has moved the broker's time, and then call `on_done` (role.py)."""

    def drain(self) -> None:
        """Accept no new work, and finish the work in progress."""

    def is_drained(self) -> bool:
        """Return True when no work is in progress."""

    def close(self) -> str | None:
        """Release descriptors and files. Called once, after the last `do_work`.

        Returns the reason why this stop does not count as clean at the next start, or None if it does.
        """
