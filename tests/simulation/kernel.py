"""Kernel: descriptors, sockets, eventfds and epolls in memory, as far as the broker uses them.

Descriptors are numbers of one space that are never used again, each owned by the process that made or received it:
when that process dies they are closed, and its peers see what they see on a real host. What is open is reference
counted, so a descriptor that is passed on lives on in the receiver.
"""

from __future__ import annotations

import array
import errno
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

IN, OUT, HUP, ERR, ET = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP, select.EPOLLERR, select.EPOLLET
RDHUP: Final = select.EPOLLRDHUP
_FIRST: Final = 1_000_000
_PACKETS_MAX: Final = 64  # In a SEQPACKET pair, one way.


def error(number: int, what: str = "") -> OSError:
    """The OSError of an errno, of the class that Linux and Python give it."""
    return OSError(number, os.strerror(number), what or None)


class File:
    """Something open. `events` says what an epoll would report of it."""

    def __init__(self) -> None:
        self.references = 0
        self.watchers: dict[Epoll, int] = {}  # Epoll -> descriptor it was registered with.
        self.edges = 0  # Grows with each new event: what edge-triggered epolls compare.

    def events(self) -> int:
        return 0

    def on_last_close(self) -> None:
        """Nobody has it open any more."""

    def notify(self) -> None:
        """Something happened that whoever sleeps on it should see."""
        self.edges += 1
        for epoll in self.watchers:
            epoll.wake()


class EventFd(File):
    """A counter that wakes."""

    def __init__(self, value: int = 0) -> None:
        super().__init__()
        self.value = value

    def events(self) -> int:
        return (IN if self.value else 0) | OUT

    def add(self, count: int) -> None:
        self.value += count
        self.notify()


class RegionFile(File):
    """A memfd: what a region, or a part of a connection that moves, is kept in."""

    def __init__(self, storage: Any) -> None:
        super().__init__()
        self.storage = storage


class Flag(File):
    """Readable once it is set: a pidfd, a signal."""

    is_set = False

    def events(self) -> int:
        return IN if self.is_set else 0

    def set(self) -> None:
        self.is_set = True
        self.notify()


class Socket(File):
    """One end of a connected pair. `peer` is None once that end is closed for good."""

    def __init__(self, *, is_stream: bool, room: int = 1 << 16) -> None:
        super().__init__()
        self.is_stream = is_stream
        self.room = room  # Of what waits to be read here.
        self.peer: Socket | None = None
        self.bytes = bytearray()
        self.packets: deque[tuple[bytes, list[File]]] = deque()
        self.has_ended = False  # The peer sends nothing more.
        self.is_reset = False
        self.is_shut = False
        self.held_until_ns = 0

    @classmethod
    def pair(cls, *, is_stream: bool, room: int = 1 << 16) -> tuple[Socket, Socket]:
        one, other = cls(is_stream=is_stream, room=room), cls(is_stream=is_stream, room=room)
        one.peer, other.peer = other, one
        return one, other

    def events(self) -> int:
        found = 0
        if self.bytes or self.packets or self.has_ended or self.is_reset:
            found |= IN
        if self.is_reset or (self.has_ended and self.is_shut):
            found |= HUP
        if self.has_ended or self.is_reset:
            found |= RDHUP
        peer = self.peer
        if peer is None or (len(peer.bytes) < peer.room and len(peer.packets) < _PACKETS_MAX):
            found |= OUT
        return found

    def send(self, data: bytes | bytearray | memoryview) -> int:
        peer = self._open_peer()
        room = peer.room - len(peer.bytes)
        if room <= 0:
            raise error(errno.EAGAIN)
        part = memoryview(data).cast("B")[:room]
        peer.bytes += part
        peer.notify()
        return len(part)

    def send_packet(self, payload: bytes, files: list[File]) -> None:
        peer = self._open_peer()
        if len(peer.packets) >= _PACKETS_MAX:
            raise error(errno.EAGAIN)
        for file in files:
            file.references += 1
        peer.packets.append((payload, files))
        peer.notify()

    def _open_peer(self) -> Socket:
        if self.is_reset:
            raise error(errno.ECONNRESET)
        if self.peer is None or self.is_shut:
            raise error(errno.EPIPE)
        return self.peer

    def receive(self, length: int) -> bytes:
        """Bytes of a stream, or one packet; b"" at the end."""
        if self.is_stream:
            if self.is_reset:
                self.is_reset = False
                raise error(errno.ECONNRESET)
            if self.bytes:
                part = bytes(self.bytes[:length])
                del self.bytes[:length]
                if self.peer is not None:
                    self.peer.notify()
                return part
        elif self.is_reset:
            self.is_reset = False
            raise error(errno.ECONNRESET)
        elif self.packets:
            payload, files = self.packets.popleft()
            for file in files:
                release(file)
            return payload[:length]
        if self.has_ended:
            return b""
        raise error(errno.EAGAIN)

    def receive_packet(self) -> tuple[bytes, list[File]]:
        if self.is_reset:
            self.is_reset = False
            raise error(errno.ECONNRESET)
        if self.packets:
            packet = self.packets.popleft()
            if self.peer is not None:
                self.peer.notify()
            return packet
        if self.has_ended:
            return b"", []
        raise error(errno.EAGAIN)

    def shut(self, how: int = socket.SHUT_RDWR) -> None:
        """Both directions, or only ours (SHUT_WR)."""
        if self.is_shut and (self.has_ended or how == socket.SHUT_WR):
            raise error(errno.ENOTCONN)
        self.is_shut = True
        if how == socket.SHUT_RDWR:
            self.has_ended = True
        if self.peer is not None:
            self.peer.has_ended = True
            self.peer.notify()
        self.notify()

    def on_last_close(self) -> None:
        peer, self.peer = self.peer, None
        if peer is not None:
            peer.has_ended = True
            # What was not read is lost, and the kernel says so once.
            peer.is_reset = bool(self.bytes or self.packets)
            peer.peer = None
            peer.notify()
        for _, files in self.packets:
            for file in files:
                release(file)
        self.packets.clear()


class Listening(File):
    """A listening socket, bound to a port of the simulated host."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self.host = host
        self.port = 0
        self.is_listening = False
        self.backlog: deque[Socket] = deque()

    def events(self) -> int:
        if not self.is_listening:
            return HUP | OUT
        return IN if self.backlog else 0

    def bind(self, port: int) -> None:
        if port in self.host.ports:
            raise error(errno.EADDRINUSE)
        self.port = port or self.host.free_port()
        self.host.ports[self.port] = self

    def listen(self) -> None:
        self.is_listening = True
        self.notify()

    def shut(self, _how: int = socket.SHUT_RDWR) -> None:
        self.is_listening = False
        self._refuse()
        self.notify()

    def on_last_close(self) -> None:
        self.is_listening = False
        self.host.ports.pop(self.port, None)
        self._refuse()

    def _refuse(self) -> None:
        while self.backlog:
            self.backlog.popleft().on_last_close()


class Host:
    """The ports of the one address that there is."""

    def __init__(self) -> None:
        self.ports: dict[int, Listening] = {}
        self._next_port = 40_000

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def connect(self, port: int, *, room: int = 1 << 16) -> Socket | None:
        """A client's end, its other end in the backlog; None: refused."""
        listening = self.ports.get(port)
        if listening is None or not listening.is_listening:
            return None
        client, server = Socket.pair(is_stream=True)
        client.room = room
        client.references = 1
        listening.backlog.append(server)
        listening.notify()
        return client


class Epoll(File):
    """An epoll of one process; `wake` ends its sleep."""

    def __init__(self, kernel: Kernel, process: Any) -> None:
        super().__init__()
        self._kernel = kernel
        self._process = process
        self._watched: dict[int, list[Any]] = {}  # Descriptor -> [file, mask, edges seen].

    def wake(self) -> None:
        self._process.is_awake = True

    def register(self, fd: int, mask: int = IN | OUT) -> None:
        file = self._kernel.file(fd)
        if fd in self._watched:
            raise error(errno.EEXIST)
        self._watched[fd] = [file, mask, -1]
        file.watchers[self] = fd
        self.wake()

    def modify(self, fd: int, mask: int) -> None:
        entry = self._watched.get(fd)
        if entry is None:
            raise error(errno.ENOENT)
        entry[1], entry[2] = mask, -1
        self.wake()

    def unregister(self, fd: int) -> None:
        entry = self._watched.pop(fd, None)
        if entry is None:
            raise error(errno.ENOENT)
        entry[0].watchers.pop(self, None)

    def forget(self, file: File) -> None:
        """It is closed everywhere."""
        for fd in [fd for fd, entry in self._watched.items() if entry[0] is file]:
            del self._watched[fd]

    def ready(self) -> list[tuple[int, int]]:
        found = []
        for fd, entry in self._watched.items():
            file, mask, seen = entry
            events = file.events() & (mask | HUP | ERR)
            if events and (not mask & ET or file.edges != seen):
                entry[2] = file.edges
                found.append((fd, events))
        return found

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        del maxevents
        found = self.ready()
        if not found and timeout:
            return self._process.sleep_in_poll(self, timeout)
        return found

    def on_last_close(self) -> None:
        for entry in self._watched.values():
            entry[0].watchers.pop(self, None)
        self._watched.clear()

    # As select.epoll has them; the descriptor is made when somebody asks.
    _fd = -1

    def fileno(self) -> int:
        if self._fd < 0:
            self._fd = self._kernel.install(self)
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            self._kernel.close(self._fd)
            self._fd = -1
        else:
            self.on_last_close()


def release(file: File) -> None:
    """One reference less."""
    file.references -= 1
    if file.references == 0:
        for epoll in list(file.watchers):
            epoll.forget(file)
        file.watchers.clear()
        file.on_last_close()


class Kernel:
    """All descriptors. `current` is the process whose turn it is."""

    def __init__(self) -> None:
        self.current: Any = None
        self.host = Host()
        self._files: dict[int, tuple[File, Any]] = {}
        self._next = _FIRST

    def install(self, file: File, owner: Any = None) -> int:
        """A new descriptor of the process whose turn it is, or of `owner`."""
        fd = self._next
        self._next += 1
        file.references += 1
        self._files[fd] = (file, owner or self.current)
        return fd

    def file(self, fd: int) -> File:
        found = self._files.get(fd)
        if found is None:
            raise error(errno.EBADF, str(fd))
        return found[0]

    def find(self, fd: int) -> File | None:
        found = self._files.get(fd)
        return found[0] if found is not None else None

    def close(self, fd: int) -> None:
        """One that a dead process had is closed already, which is no error of the one that is collected now."""
        found = self._files.pop(fd, None)
        if found is not None:
            release(found[0])

    def dup(self, fd: int) -> int:
        return self.install(self.file(fd))

    def close_all_of(self, owner: Any) -> None:
        """A process died."""
        for fd in [fd for fd, (_, has) in self._files.items() if has is owner]:
            self.close(fd)


class SocketHandle:
    """What `socket.socket` is to the code: one descriptor of one end, or of a listening socket."""

    family = socket.AF_INET

    def __init__(self, kernel: Kernel, fd: int) -> None:
        self._kernel = kernel
        self._fd = fd
        self._file: Any = kernel.file(fd)

    def fileno(self) -> int:
        return self._fd

    def setblocking(self, _flag: bool) -> None:
        """Nothing here ever blocks."""

    def getblocking(self) -> bool:
        return False

    def settimeout(self, _seconds: float | None) -> None:
        """As above."""

    def setsockopt(self, *_: Any) -> None:
        """Buffers are what the simulation says."""

    def getsockopt(self, _level: int, option: int) -> int:
        is_listening = isinstance(self._file, Listening) and self._file.is_listening
        return int(option == socket.SO_ACCEPTCONN and is_listening)

    def close(self) -> None:
        if self._fd >= 0:
            self._kernel.close(self._fd)
            self._fd = -1

    def detach(self) -> int:
        fd, self._fd = self._fd, -1
        return fd

    def __enter__(self) -> SocketHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Any:
        if self._fd < 0:
            raise error(errno.EBADF)
        return self._file

    def send(self, data: Any, _flags: int = 0) -> int:
        file = self._open()
        if file.is_stream:
            return int(file.send(data))
        file.send_packet(bytes(data), [])
        return len(data)

    def sendall(self, data: Any) -> None:
        sent = self.send(data)
        assert sent == len(data), "there is room for what is sent so"

    def recv(self, length: int, _flags: int = 0) -> bytes:
        return bytes(self._open().receive(length))

    def recv_into(self, buffer: Any, _length: int = 0) -> int:
        data = self._open().receive(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def sendmsg(self, buffers: Iterable[Any], control: Sequence[Any] = (), _flags: int = 0) -> int:
        payload = b"".join(bytes(each) for each in buffers)
        if self._open().is_stream:
            return int(self._file.send(payload))
        fds = [fd for _, _, numbers in control for fd in numbers]
        self._open().send_packet(payload, [self._kernel.file(fd) for fd in fds])
        return len(payload)

    def recvmsg(self, length: int, _control: int = 0, _flags: int = 0) -> tuple[bytes, list[Any], int, None]:
        payload, files = self._open().receive_packet()
        assert len(payload) <= length, (len(payload), length)
        fds = array.array("i", [self._kernel.install(file) for file in files])
        for file in files:
            file.references -= 1  # What the message under way held.
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds.tobytes())] if files else []
        return payload, control, 0, None

    def shutdown(self, how: int) -> None:
        self._open().shut(how)

    def bind(self, address: tuple[Any, ...]) -> None:
        self._open().bind(address[1])

    def listen(self, _backlog: int = 0) -> None:
        self._open().listen()

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", getattr(self._open(), "port", 0)

    def getpeername(self) -> tuple[str, int]:
        if self._open().peer is None:
            raise error(errno.ENOTCONN)
        return "127.0.0.1", 50_000

    def accept(self) -> tuple[SocketHandle, tuple[str, int]]:
        listening = self._open()
        if not listening.is_listening:
            raise error(errno.EINVAL)
        if not listening.backlog:
            raise error(errno.EAGAIN)
        end = listening.backlog.popleft()
        return SocketHandle(self._kernel, self._kernel.install(end)), ("127.0.0.1", 50_000)


Maker = Callable[[], Kernel]
