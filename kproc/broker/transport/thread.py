"""Links between roles of one process, which carry the same records as rings through deques, and the roles' threads.

Every transport but `process` uses these links. A deque's append and popleft are atomic under the GIL and on
free-threaded builds, so a link needs no lock of its own. The bound in bytes gives the same back-pressure as a ring.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NoReturn

from kproc.broker.ipc.ring import RECORD_HEADER
from kproc.broker.transport.agent import Agent

_SLEEP_MS: Final = 100  # Longest sleep of an agent's thread.
_PAUSE_S: Final = 5.0  # Time that pause_threads() gives the agents to finish a duty cycle.
# Count the size of a ring's record header for each record, so that a Pipe is full after the same records as a ring.
_RECORD_HEAD: Final = RECORD_HEADER.size


class Pipe:
    """One direction of a link inside one process: the state that both ends share."""

    __slots__ = ("capacity", "is_over", "popped_bytes", "pushed_bytes", "queue")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.queue: deque[tuple[int, memoryview]] = deque()
        # Only the sender writes pushed_bytes, and only the receiver writes popped_bytes.
        self.pushed_bytes = 0
        self.popped_bytes = 0
        self.is_over = False  # True when the receiver has ended in order.


class PipeSender:
    """Sender over a Pipe. Records stay invisible to the receiver until `publish()`."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self.capacity = pipe.capacity
        self.record_bytes_max = pipe.capacity // 4 - _RECORD_HEAD  # As in a ring.
        self._unpublished: list[tuple[int, memoryview]] = []
        self._reserved: bytearray | None = None

    def free_bytes(self) -> int:
        return self.capacity - (self._pipe.pushed_bytes - self._pipe.popped_bytes)

    def waiting(self, limit: int) -> int:
        return min(limit, len(self._pipe.queue))

    def untaken(self) -> list[tuple[int, bytes]] | None:
        if not self._pipe.is_over:
            return None
        return [(kind, bytes(view)) for kind, view in (*self._pipe.queue, *self._unpublished)]

    def progress(self) -> tuple[int, int]:
        """Return (bytes pushed, bytes released by the receiver) since the link was created."""
        return self._pipe.pushed_bytes, self._pipe.popped_bytes

    def reserve(self, length: int) -> memoryview | None:
        if length > self.record_bytes_max:
            self._refuse_length(length)
        if length + _RECORD_HEAD > self.free_bytes():
            return None
        # Reuse the buffer of an earlier reserve() that was never committed. A ring does so, too.
        buffer = self._reserved
        if buffer is None or len(buffer) < _RECORD_HEAD + length:
            buffer = self._reserved = bytearray(_RECORD_HEAD + length)
        return memoryview(buffer)[_RECORD_HEAD : _RECORD_HEAD + length]

    def commit(self, length: int, kind: int) -> None:
        buffer = self._reserved
        assert buffer is not None, "commit without reserve"
        assert length <= len(buffer) - _RECORD_HEAD, (length, len(buffer))
        record = memoryview(buffer)[_RECORD_HEAD : _RECORD_HEAD + length]
        # Copy a record that fills less than a quarter of its buffer, because a view would keep the whole buffer alive.
        if length * 4 < len(buffer):
            record = memoryview(bytearray(record))
        else:
            self._reserved = None
        self._unpublished.append((kind, record))
        self._pipe.pushed_bytes += length + _RECORD_HEAD

    def reserve_run(self, length: int) -> tuple[memoryview, int, int] | None:
        """Reserve space for a run of one record, which is enough: the caller starts a new run when this one is full."""
        if self.reserve(length) is None:
            return None
        assert self._reserved is not None
        return memoryview(self._reserved), 0, 0

    def commit_run(self, position: int) -> None:
        if position:
            assert self._reserved is not None, "commit without reserve"
            self.commit(*RECORD_HEADER.unpack_from(self._reserved))

    def try_push(self, kind: int, *parts: bytes | bytearray | memoryview) -> bool:
        length = sum(map(len, parts))
        if length > self.record_bytes_max:
            self._refuse_length(length)
        if length + _RECORD_HEAD > self.free_bytes():
            return False
        self._unpublished.append((kind, memoryview(bytearray(b"".join(parts)))))
        self._pipe.pushed_bytes += length + _RECORD_HEAD
        return True

    def publish(self) -> None:
        # Records become visible here and not at each push, because the receiver must not see only some of the records
        # of one duty cycle. A ring behaves the same way.
        if self._unpublished:
            self._pipe.queue.extend(self._unpublished)
            self._unpublished.clear()

    def _refuse_length(self, length: int) -> NoReturn:
        raise ValueError(f"record of {length} bytes; this pipe takes {self.record_bytes_max} bytes at most")


class PipeReceiver:
    """Receiver over a Pipe."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._polled_bytes = 0

    def poll(self, limit: int) -> Sequence[tuple[int, memoryview]]:
        queue = self._pipe.queue
        batch = [queue.popleft() for _ in range(min(limit, len(queue)))]
        for _, view in batch:
            self._polled_bytes += len(view) + _RECORD_HEAD
        return batch

    def release(self) -> None:
        self._pipe.popped_bytes += self._polled_bytes
        self._polled_bytes = 0

    def finish(self) -> None:
        self._pipe.is_over = True

    def is_empty(self) -> bool:
        return not self._pipe.queue


class AgentThread:
    """Runs one agent in a thread of its own until `stop()`.

    on_error: gets any exception that the agent raises.
    wake_fd: the eventfd that wakes the agent from its sleep. Without it, `post` and `stop` wait for the sleep's end.
    """

    def __init__(
        self, agent: Agent, on_error: Callable[[Agent, BaseException], None], wake_fd: int | None = None
    ) -> None:
        self.agent = agent
        self._wake_fd = wake_fd
        self._on_error = on_error
        self._actions: deque[Callable[[], None]] = deque()
        self._must_stop = False
        # A daemon thread, because an agent that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=str(agent.id), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, action: Callable[[], None]) -> None:
        """Let the agent's own thread run `action` after this duty cycle."""
        self._actions.append(action)
        self._wake()

    def request_stop(self) -> None:
        """Let the loop end after this duty cycle."""
        self._must_stop = True
        self._wake()

    def _wake(self) -> None:
        if self._wake_fd is not None:
            os.eventfd_write(self._wake_fd, 1)

    def stop(self, timeout_s: float) -> bool:
        """Let the loop end and join the thread. Return False if it did not end within `timeout_s`."""
        self.request_stop()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        agent = self.agent
        actions = self._actions
        try:
            while not self._must_stop:
                agent.do_work(_SLEEP_MS)
                while actions:
                    actions.popleft()()
        except BaseException as error:  # noqa: BLE001 - `on_error` decides how the broker ends
            self._on_error(agent, error)


@contextlib.contextmanager
def pause_threads(threads: Sequence[AgentThread]) -> Iterator[None]:
    """Pause the threads between two duty cycles until the context ends.

    Raises TimeoutError if an agent does not finish its duty cycle within 5 s.
    """
    resume = threading.Event()
    paused = threading.Semaphore(0)

    def pause() -> None:
        paused.release()
        resume.wait()

    try:
        for thread in threads:
            thread.post(pause)
        if not all(paused.acquire(timeout=_PAUSE_S) for _ in threads):
            raise TimeoutError(
                f"a role did not finish its duty cycle within {_PAUSE_S:g} s, so it cannot be paused"
            )
        yield
    finally:
        resume.set()
