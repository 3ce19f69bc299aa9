"""ThreadProcessor: every connection has a thread, which reads requests, runs the roles that serve them, and writes.

    a connection's thread:  recv (blocks) -> the one lock: frames, Handler, answers -> send (blocks) -> recv ...
                                             parked? -> sleep until somebody has answered -> send

Everything but the sockets is protected by the one lock. As in Kafka, no further request is read before the last one is
answered, but the requests of one read are served together. A client that does not read its answers blocks its own
thread.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from socket import MSG_MORE
from typing import Any, Final

from bench.alternatives.broker.connection_threads import (
    ConnectionThread,
    ThreadTable,
    ThreadWatch,
    ThreadWriter,
    UnmeteredConnections,
)
from bench.alternatives.broker.substitute import substituted
from bench.alternatives.broker.turn_processor import TurnProcessor
from kproc.broker.metrics.spec import SLOT
from kproc.broker.processor import processor
from kproc.broker.processor.answer_parts import SEGMENT_BYTES_MAX, FileSend, Part
from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_state import ACTIVE, CLOSING

_JOIN_S: Final = 5.0
_BYTES_OUT: Final = SLOT["bytes_out"]


class ThreadProcessor(TurnProcessor):
    """`lock` is the one lock of the broker; `run` runs the roles that are due and must be called with the lock held.

    `on_error` gets an unexpected exception of a connection's thread: any role may have raised it.
    """

    __slots__ = ("_lock", "_on_error", "_received", "_run", "_threads")

    table: ThreadTable

    def __init__(
        self,
        *arguments: Any,
        lock: AbstractContextManager[Any],
        run: Callable[[], None],
        on_error: Callable[[BaseException], None],
        **named: Any,
    ) -> None:
        self._lock = lock
        self._run = run
        self._on_error = on_error
        with substituted(
            processor,
            EpollWatch=self._make_watch,
            ConnectionTable=ThreadTable,
            ResponseWriter=ThreadWriter,
            MeteredConnections=UnmeteredConnections,
        ):
            super().__init__(*arguments, **named)
        assert isinstance(self.writer, ThreadWriter)
        self.writer.watch = self._threads
        self._received: deque[ConnectionThread] = deque()  # Threads that have received and wait for the lock.

    def _make_watch(self, epoll: select.epoll) -> ThreadWatch:
        self._threads = ThreadWatch(epoll, self._run_connection)
        return self._threads

    # -- under the lock ----------------------------------------------------------------------------------------

    def _read_received(self, owner: ConnectionThread) -> None:
        """Read the requests that a thread has received."""
        if self._state.is_stopping and not owner.has_ended:
            return  # The broker stops: requests that arrive now are not answered.
        self.update_time()
        self._values[_BYTES_OUT] += owner.sent_bytes
        owner.sent_bytes = 0
        self.reader.read(owner.connection)

    def _dequeue_ready(self, connection: Connection, owner: ConnectionThread) -> list[Part]:
        if not connection.ready:
            return []  # A separate empty list, because other threads append to `ready`.
        ready: list[Part] = connection.ready
        connection.ready = []
        owner.is_writing = True
        return ready

    def _may_read(self, connection: Connection) -> bool:
        is_read = connection.interest == ACTIVE and connection.state is not CLOSING
        return is_read and not connection.inflight

    # -- a connection's thread -----------------------------------------------------------------------------------

    def _run_connection(self, owner: ConnectionThread) -> None:
        try:
            # The lock makes us wait until the thread that registers this connection has finished doing so.
            with self._lock:
                pass
            while self._read_and_answer(owner.connection, owner):
                pass
            with self._lock:
                self.table.close_finished(owner.connection)
                self.publish()
                self._run()
        except BaseException as error:  # noqa: BLE001 - any role may have raised it, so the roles' runner decides
            self._on_error(error)

    def _read_and_answer(self, connection: Connection, owner: ConnectionThread) -> bool:
        """Read once and send the answers. Return False if the connection has ended."""
        # Bytes that found no room in a ring or in the memory budget are read first.
        if not owner.has_unread:
            owner.receive()
        self._received.append(owner)
        with self._lock:
            if not self.is_here(connection):
                return False
            self._handle_received()
            if not self.is_here(connection):
                return False
            ready = self._dequeue_ready(connection, owner)
            is_over = self._may_read(connection)
        failure: OSError | EOFError | None = None
        sent = 0
        while True:
            if ready:
                try:
                    sent = _write(connection, ready)
                except (OSError, EOFError) as error:
                    failure = error
                owner.is_writing = False
                if is_over and failure is None:
                    owner.sent_bytes += sent  # Added to the metrics when the thread has the lock again.
                    return True
            elif is_over:
                return True
            with self._lock:
                if not self.is_here(connection):
                    return False
                if failure is not None:
                    self.table.close(connection, str(failure))
                    return False
                owner.sent_bytes += sent
                sent = 0
                is_over = self._after_write(connection, owner)
                ready = self._dequeue_ready(connection, owner)
                if not self.is_here(connection):
                    return False
            if not ready and not is_over:
                owner.signal.acquire()

    def _handle_received(self) -> None:
        """Serve the bytes that this thread received, and those of threads that wait for the lock.

        One pass for all of them is cheaper than several.
        """
        received = self._received
        has_any = False
        while received:
            owner = received.popleft()
            if self.is_here(owner.connection):
                self._read_received(owner)
                has_any = True
        if has_any:
            self.publish()
            self._run()

    def _after_write(self, connection: Connection, owner: ConnectionThread) -> bool:
        """Update a connection after a write. Return True if its thread may read on.

        If it may not, and no answer is ready, the thread sleeps until it is woken.
        """
        if connection.ready:
            return False
        self.update_time()
        self.writer.after_send(connection)
        self.publish()
        self._run()
        if connection.ready or not self.is_here(connection):
            return False
        if self._may_read(connection):
            return True
        if owner.has_hung_up:
            self.table.close(connection, "the client closed it")
            self.publish()
            self._run()
        else:
            owner.is_waiting = True
        return False

    # -- stopping ------------------------------------------------------------------------------------------------

    def is_drained(self) -> bool:
        # With the lock, because otherwise an answer could be missed while it moves from one state to the next.
        with self._lock:
            has_ready = any(each.ready for each in self.table.by_fd.values())
            is_writing = any(each.is_writing for each in self._threads.threads.values())
            return super().is_drained() and not has_ready and not is_writing

    def close(self) -> None:
        with self._lock:
            threads = [owner.thread for owner in self._threads.threads.values()]
            super().close()
        for thread in threads:
            thread.join(_JOIN_S)


def _write(connection: Connection, parts: Sequence[Part]) -> int:
    """Send everything and return the bytes sent. Raises OSError, or EOFError if a file is too short."""
    total = 0
    run: list[bytes | memoryview] = []
    for at, part in enumerate(parts):
        if not isinstance(part, FileSend):
            total += len(part)
            run.append(part)
            if at + 1 < len(parts) and not isinstance(parts[at + 1], FileSend):
                continue
            data = run[0] if len(run) == 1 else b"".join(run)
            run = []
            is_first = at + 1 < len(parts) and len(data) + len(parts[at + 1]) <= SEGMENT_BYTES_MAX
            _send_all(connection, data, MSG_MORE if is_first else 0)
            continue
        total += part.remaining
        while part.remaining:
            sent = connection.transport.send_file(part.file.fd, part.position, part.remaining)
            part.position += sent
            part.remaining -= sent
    return total


def _send_all(connection: Connection, data: bytes | memoryview, flags: int) -> None:
    """Send everything on the blocking socket. `sendall` would read the clock; one `send` nearly always suffices."""
    sent = connection.send(data, flags)
    if sent < len(data):
        connection.transport.sock.sendall(memoryview(data)[sent:], flags)
