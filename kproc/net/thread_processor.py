"""ThreadProcessor: every connection has a thread, which reads requests, runs the roles that serve them, and writes.

    a connection's thread:  recv (blocks) -> the one lock: frames, Handler, answers -> send (blocks) -> recv ...
                                             parked? -> sleep until somebody has answered -> send

Everything but the sockets is protected by the one lock. As in Kafka, no further request is read before the last one is
answered, but the requests of one read are served together. A client that does not read its answers blocks its own
thread.
"""

from __future__ import annotations

import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from kproc.metrics.spec import SLOT
from kproc.net.connection import Connection, FileSend
from kproc.net.holder import ACTIVE, PAUSED, WRITING
from kproc.net.processor import READ_BYTES
from kproc.net.turn_processor import TurnProcessor
from kproc.transport.envelope import HEAD, HEAD_BYTES, SEND

# Edge-triggered: reported once. Requests are not reported here, because the threads read them.
_HANG_UP: Final = select.EPOLLRDHUP | select.EPOLLET
_JOIN_S: Final = 5.0

Part = bytes | memoryview | FileSend


class _Owner:
    """The thread of a connection. Its fields are protected by the lock, except where a comment says otherwise."""

    __slots__ = ("has_hung_up", "is_waiting", "is_writing", "sent_bytes", "signal", "thread")

    def __init__(self, thread: threading.Thread) -> None:
        self.thread = thread
        self.signal = threading.Lock()  # Locked while the thread has no reason to wake up.
        self.signal.acquire()
        self.is_waiting = False
        # Cleared by the thread itself, when everything that it took from `ready` is sent.
        self.is_writing = False
        self.has_hung_up = False
        self.sent_bytes = 0  # Used by the thread only: bytes that are not in the metrics yet.

    def wake(self) -> None:
        if self.is_waiting:
            self.is_waiting = False
            self.signal.release()


class ThreadProcessor(TurnProcessor):
    """`lock` is the one lock of the broker; `run` runs the roles that are due and must be called with the lock held.

    `on_error` gets an unexpected exception of a connection's thread: any role may have raised it.
    """

    __slots__ = ("_lock", "_on_error", "_owners", "_received", "_run")

    def __init__(
        self,
        *arguments: Any,
        lock: AbstractContextManager[Any],
        run: Callable[[], None],
        on_error: Callable[[BaseException], None],
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self._lock = lock
        self._run = run
        self._on_error = on_error
        self._owners: dict[int, _Owner] = {}  # By connection.
        self._received: deque[tuple[Connection, memoryview, int]] = deque()

    # -- under the lock ----------------------------------------------------------------------------------------

    def _watch(self, connection: Connection) -> None:
        connection.transport.set_blocking(True)
        thread = threading.Thread(
            target=self._serve, args=(connection,), name=f"connection-{connection.origin.number}", daemon=True
        )
        self._epoll.register(connection.fd, _HANG_UP)
        self._owners[connection.id] = _Owner(thread)
        try:
            thread.start()  # The thread begins to read at once, and waits for the lock only afterwards.
        except RuntimeError as error:
            del self._owners[connection.id]
            self._epoll.unregister(connection.fd)
            # The host allows no more threads: treated like having no more descriptors.
            raise OSError(str(error)) from error

    def _unwatch(self, connection: Connection) -> None:
        """Nothing to do here: the connection's thread ends by itself, in `_end`."""

    def _set_interest(self, connection: Connection, interest: int) -> None:
        owner = self._owners.get(connection.id)
        if owner is not None and owner.is_writing and interest == PAUSED:
            interest = WRITING
        connection.interest = interest
        if interest == ACTIVE and owner is not None:
            owner.wake()

    def _update_interest(self, connection: Connection) -> None:
        owner = self._owners.get(connection.id)
        if owner is not None and owner.is_writing:
            # `_settle` decides again when the write is done; the connection must not end before.
            connection.interest = WRITING
        else:
            super()._update_interest(connection)

    def _send(self, connection: Connection) -> None:
        owner = self._owners.get(connection.id)
        if owner is not None:
            owner.wake()

    def _pass_back(
        self, answers: Iterable[tuple[int, int, bytes | memoryview]], touched: dict[Connection, None]
    ) -> None:
        """Leave the sending to the connections' threads: the present thread must not wait for another client."""
        for connection_id, sequence, frame in answers:
            head = HEAD.pack(connection_id, sequence, 0, 0)
            self._take_response(SEND, memoryview(head + bytes(frame)), touched)

    def _pass_back_range(self, view: memoryview, touched: dict[Connection, None]) -> bool:
        """Leave the sending to the connection's thread, as `_pass_back` does."""
        return False

    def _on_hang_up(self, connection: Connection) -> None:
        """The client has closed. A thread that reads notices that itself; one that waits for an answer is woken."""
        owner = self._owners.get(connection.id)
        if owner is not None:
            owner.has_hung_up = True
            if owner.is_waiting:
                self._close(connection, "the client closed it")

    def _free_block(self, connection: Connection) -> None:
        """Do not free the block yet: the connection's thread may be receiving into it."""

    def _end_socket(self, connection: Connection) -> None:
        """Shut the socket down and let its thread close it: the descriptor's number must not be used again before."""
        connection.transport.end()
        owner = self._owners.get(connection.id)
        if owner is not None:
            owner.wake()

    def _end(self, connection: Connection) -> None:
        """Close the connection; the last thing that its thread does."""
        super()._free_block(connection)
        del self._owners[connection.id]
        if not self._epoll.closed:
            self._epoll.unregister(connection.fd)
        connection.transport.close()

    def _took(self, connection: Connection, buffer: memoryview, count: int) -> None:
        """Handle `count` received bytes, which are in the connection's block or else in `buffer`."""
        if count == 0:
            self._close(connection, "the client closed it")
            return
        if self._is_stopping:
            return  # A closing connection's further requests are not answered.
        self._now_ns = connection.last_active_ns = self._clock.now_ns()
        self._counts[_BYTES_IN] += count
        owner = self._owners[connection.id]
        self._counts[_BYTES_OUT] += owner.sent_bytes
        owner.sent_bytes = 0
        block = connection.block
        if block is not None:
            block.filled += count
            if block.filled == block.length:
                self._pass_on_block(connection, block)
            return
        link = connection.home.link
        held = connection.held
        start = HEAD_BYTES + len(held)
        view = link.sender.reserve(start + count) if link is not None else None
        if held:
            connection.held = b""
            self._held_bytes -= len(held)
        if view is None:
            self._put_off(connection, bytes(held) + bytes(buffer[:count]))
            return
        view[HEAD_BYTES:start] = held
        view[start:] = buffer[:count]
        self._pass_on(connection, view, start + count)

    def _take_ready(self, connection: Connection, owner: _Owner) -> list[Part]:
        if not connection.ready:
            return []  # An empty list of our own: other threads append to `ready`.
        ready: list[Part] = connection.ready
        connection.ready = []
        owner.is_writing = True
        return ready

    def _may_read(self, connection: Connection) -> bool:
        return not connection.inflight and connection.interest == ACTIVE and not connection.is_closing

    # -- a connection's thread -----------------------------------------------------------------------------------

    def _serve(self, connection: Connection) -> None:
        try:
            with self._lock:  # Wait until the thread that registers this connection has finished doing so.
                owner = self._owners[connection.id]
            buffer = memoryview(bytearray(READ_BYTES))
            while self._serve_once(connection, owner, buffer):
                pass
            with self._lock:
                self._end(connection)
                self.publish()
                self._run()
        except BaseException as error:  # noqa: BLE001 - it may have been in any role: whoever runs them decides.
            self._on_error(error)

    def _serve_once(self, connection: Connection, owner: _Owner, buffer: memoryview) -> bool:
        """One read and its answers; False when the connection has ended."""
        block = connection.block
        into = buffer if block is None else block.view[block.filled :]
        failure: OSError | EOFError | None = None
        count = 0
        try:
            count = connection.recv_into(into)
        except OSError as error:
            failure = error
        else:
            self._received.append((connection, into, count))
        with self._lock:
            if not self.is_here(connection):
                return False
            if failure is not None:
                self._close(connection, str(failure))
                return False
            self._take_received()
            if not self.is_here(connection):
                return False
            ready = self._take_ready(connection, owner)
            is_over = self._may_read(connection)
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
                    self._close(connection, str(failure))
                    return False
                owner.sent_bytes += sent
                sent = 0
                is_over = self._settle(connection, owner)
                ready = self._take_ready(connection, owner)
                if not self.is_here(connection):
                    return False
            if not ready and not is_over:
                owner.signal.acquire()

    def _take_received(self) -> None:
        """Serve what this thread received, together with what threads that wait for the lock received: one pass is
        cheaper than several.
        """
        received = self._received
        has_any = False
        while received:
            connection, buffer, count = received.popleft()
            if self.is_here(connection):
                self._took(connection, buffer, count)
                has_any = True
        if has_any:
            self.publish()
            self._run()

    def _settle(self, connection: Connection, owner: _Owner) -> bool:
        """After a write: whether the thread goes on reading. If not, and nothing is ready, it will be woken."""
        if connection.ready:
            return False
        self._now_ns = self._clock.now_ns()
        self._after_send(connection)
        self.publish()
        self._run()
        if connection.ready or not self.is_here(connection):
            return False
        if self._may_read(connection):
            return True
        if owner.has_hung_up:
            self._close(connection, "the client closed it")
            self.publish()
            self._run()
        else:
            owner.is_waiting = True
        return False

    # -- stopping ------------------------------------------------------------------------------------------------

    def is_drained(self) -> bool:
        # Without the lock an answer could be missed while it goes from one state to the next.
        with self._lock:
            has_ready = any(each.ready for each in self._connections.values())
            is_writing = any(each.is_writing for each in self._owners.values())
            return super().is_drained() and not has_ready and not is_writing

    def close(self) -> None:
        with self._lock:
            threads = [owner.thread for owner in self._owners.values()]
            super().close()
        for thread in threads:
            thread.join(_JOIN_S)


_BYTES_IN: Final = SLOT["bytes_in"]
_BYTES_OUT: Final = SLOT["bytes_out"]


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
            connection.transport.send_all(data, socket.MSG_MORE if at + 1 < len(parts) else 0)
            continue
        total += part.remaining
        while part.remaining:
            part.send_by(connection.transport)
    return total
