"""Parts of the ThreadProcessor: they track which connection's thread waits, reads or writes.

All fields are protected by the one lock of the broker, except where a comment says otherwise.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterable
from typing import Final

from kproc.broker.metrics.spec import SLOT
from kproc.broker.processor.connection import Connection
from kproc.broker.processor.connection_state import ACTIVE, PAUSED, WRITING
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.metered import MeteredConnections
from kproc.broker.processor.request_reader import READ_BYTES
from kproc.broker.processor.response_writer import ResponseWriter
from kproc.broker.processor.socket_watch import EpollWatch
from kproc.broker.transport.envelope import SEND

# Edge-triggered, so that a hang-up is reported once. Requests are not reported here, because the threads read them.
_HANG_UP: Final = select.EPOLLRDHUP | select.EPOLLET
_RESPONSES: Final = SLOT["responses"]


class ConnectionThread:
    """The thread of a connection, and what it has received.

    The thread receives without the lock (`receive`). The RequestReader then reads these bytes with the lock, through
    `recv_into`, as if they came from a socket that does not block.
    """

    __slots__ = (
        "_buffer",
        "_error",
        "_is_in_block",
        "_unread",
        "connection",
        "has_hung_up",
        "is_waiting",
        "is_writing",
        "sent_bytes",
        "signal",
        "thread",
    )

    def __init__(self, connection: Connection, run: Callable[[ConnectionThread], None]) -> None:
        self.connection = connection
        name = f"connection-{connection.origin.number}"
        self.thread = threading.Thread(target=run, args=(self,), name=name, daemon=True)
        self.signal = threading.Lock()  # Locked while the thread has no reason to wake up.
        self.signal.acquire()
        self.is_waiting = False
        # Cleared by the thread itself, when everything that it took from `ready` is sent.
        self.is_writing = False
        self.has_hung_up = False
        self.sent_bytes = 0  # Used by the thread only: bytes that are not in the metrics yet.
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._unread: memoryview | None = None  # Received bytes; empty if the client has ended.
        self._is_in_block = False  # True if `_unread` lies in the connection's block already.
        self._error: OSError | None = None

    def wake(self) -> None:
        if self.is_waiting:
            self.is_waiting = False
            self.signal.release()

    @property
    def has_unread(self) -> bool:
        """Return True if the RequestReader has not read all that was received."""
        return self._unread is not None or self._error is not None

    @property
    def has_ended(self) -> bool:
        """Return True if the client has ended or its socket has failed, and the RequestReader has yet to close it."""
        return self._error is not None or (self._unread is not None and not self._unread)

    def receive(self) -> None:
        """Receive once, which blocks. Called by the thread itself, without the lock."""
        block = self.connection.block
        self._is_in_block = block is not None
        into = self._buffer if block is None else block.room
        try:
            count = self.connection.transport.sock.recv_into(into)
        except OSError as error:
            self._error = error
        else:
            self._unread = into[:count]

    def recv_into(self, into: memoryview) -> int:
        """Pass received bytes to the RequestReader. Raises BlockingIOError if there are none, OSError if it failed."""
        if self._error is not None:
            raise self._error
        unread = self._unread
        if unread is None:
            raise BlockingIOError
        count = min(len(into), len(unread))
        if not self._is_in_block:
            into[:count] = unread[:count]
        # Less than everything is read if bytes of the next frame lie behind the end of a block.
        self._unread = unread[count:] if count < len(unread) else None
        return count


class ThreadWatch(EpollWatch):
    """Starts a thread for each connection, which calls `run`. The epoll reports only clients that hung up."""

    __slots__ = ("_run", "threads")

    def __init__(self, epoll: select.epoll, run: Callable[[ConnectionThread], None]) -> None:
        super().__init__(epoll)
        self._run = run
        self.threads: dict[int, ConnectionThread] = {}  # By connection.

    def register(self, connection: Connection, interest: int = ACTIVE) -> None:
        connection.transport.sock.setblocking(True)
        owner = ConnectionThread(connection, self._run)
        connection.recv_into = owner.recv_into
        self.epoll.register(connection.fd, _HANG_UP)
        self.threads[connection.id] = owner
        connection.interest = interest
        try:
            # The thread waits for the one lock, which we hold, before its first read.
            owner.thread.start()
        except RuntimeError as error:
            self.remove(connection)
            # The host allows no more threads. Raise OSError, so that ConnectionTable.open closes this one socket.
            raise OSError(str(error)) from error

    def unregister(self, connection: Connection) -> None:
        """Do nothing: the connection's thread ends by itself, and calls `remove`."""

    def remove(self, connection: Connection) -> None:
        """Drop the thread and the registration of a connection that has ended."""
        del self.threads[connection.id]
        if not self.epoll.closed:
            self.epoll.unregister(connection.fd)

    def set(self, connection: Connection, interest: int) -> None:
        owner = self.threads.get(connection.id)
        if owner is not None and owner.is_writing and interest == PAUSED:
            interest = WRITING
        connection.interest = interest
        if interest == ACTIVE:
            self.wake(connection)

    def wake(self, connection: Connection) -> None:
        """Wake the connection's thread: it has an answer to send, may read on, or must end."""
        owner = self.threads.get(connection.id)
        if owner is not None:
            owner.wake()

    def is_writing(self, connection: Connection) -> bool:
        owner = self.threads.get(connection.id)
        return owner is not None and owner.is_writing


class ThreadTable(ConnectionTable):
    """A connection's block and socket belong to its thread, and are freed when that ends."""

    __slots__ = ()

    watch: ThreadWatch

    def update_interest(self, connection: Connection) -> None:
        if self.watch.is_writing(connection):
            # The connection must not be closed while its thread is sending. `ThreadProcessor._after_write` decides
            # again afterwards.
            connection.interest = WRITING
        else:
            super().update_interest(connection)

    def hung_up(self, connection: Connection) -> None:
        """Handle a hang-up of a client. A reading thread notices it by itself; a waiting thread is woken."""
        owner = self.watch.threads.get(connection.id)
        if owner is not None:
            owner.has_hung_up = True
            if owner.is_waiting:
                self.close(connection, "the client closed it")

    def free_block(self, connection: Connection) -> None:
        """Do not free the block yet: the connection's thread may be receiving into it."""

    def _close_socket(self, connection: Connection) -> None:
        """Shut the socket down. Its thread closes it later, so that the descriptor's number is not reused before."""
        connection.transport.shutdown()
        self.watch.wake(connection)

    def close_finished(self, connection: Connection) -> None:
        """Close the connection. Its thread calls this as its last action."""
        super().free_block(connection)
        self.watch.remove(connection)
        connection.transport.close()


class ThreadWriter(ResponseWriter):
    """Leaves the sending to the connections' threads: the present thread must not wait for another client."""

    __slots__ = ("watch",)

    watch: ThreadWatch

    def _send(self, connection: Connection) -> None:
        self.watch.wake(connection)

    def _send_at_once(
        self, connection: Connection, sequence: int, body: memoryview, touched: dict[Connection, None]
    ) -> bool:
        """Send nothing: the socket blocks, and the present thread has the lock."""
        return False

    def _send_answers(
        self, answers: Iterable[tuple[int, int, bytes | memoryview]], touched: dict[Connection, None]
    ) -> None:
        """Queue the answers for the connections' threads."""
        for connection_id, sequence, frame in answers:
            connection = self._by_id.get(connection_id)
            if connection is not None:  # Otherwise it was closed meanwhile.
                queued = self._enqueue(connection, sequence, SEND, bytes(frame), touched)
                self._counts[_RESPONSES] += queued


class UnmeteredConnections(MeteredConnections):
    """Measures nothing, because a call of a blocking socket includes the wait for the client."""

    __slots__ = ()

    def switch(self, connection: Connection, client_id: bytes, *, is_on: bool) -> None:
        """Leave the connection as it is."""
