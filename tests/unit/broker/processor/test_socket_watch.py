"""EpollWatch: sockets that the kernel refuses, and events of closed descriptors."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kproc.broker.processor.connection import INFLIGHT_MAX
from kproc.broker.role.handoff import EVICT, HANDOFF
from tests.support.processor_rig import LOOPBACK, ProcessorRig, framed

# -- one connection that the kernel refuses something for ------------------------------------------------------


class RefusingEpoll:
    """The Processor's epoll, but for one operation on one descriptor."""

    def __init__(self, rig: ProcessorRig, operation: str) -> None:
        self._real = rig.processor.table.watch.epoll
        self._operation = operation
        self.fd = -1
        rig.processor.table.watch.epoll = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name != self._operation:
            return real

        def refuse(fd: int, *rest: int) -> None:
            if fd == self.fd or self.fd < 0:
                raise OSError(errno.ENOMEM, "no memory for it")
            real(fd, *rest)

        return refuse


def test_unregisterable_socket_is_closed_and_next_served(rig: ProcessorRig) -> None:
    epoll = RefusingEpoll(rig, "register")
    broken = rig.connect()
    assert broken.is_closed()
    epoll.fd = 10_000_000  # Nobody.
    rig.connect().send(framed(b"served"))
    assert rig.handler.bodies() == [b"served"]
    assert len(rig.processor.describe_connections()) == 1


@pytest.mark.parametrize("when", ["muted", "unmuted"])
def test_connection_failing_to_mute_or_unmute_is_closed_alone(rig: ProcessorRig, when: str) -> None:
    client, other = rig.connect(), rig.connect()
    (connection, _) = rig.processor.table.by_fd.values()
    epoll = RefusingEpoll(rig, "modify")
    epoll.fd = connection.fd if when == "muted" else 10_000_000
    client.send(framed(b"x") * INFLIGHT_MAX)
    requests = rig.handler.take()
    if when == "unmuted":
        epoll.fd = connection.fd
        rig.handler.no_op(requests[0])
        rig.step()
    assert client.is_closed()
    other.send(framed(b"served"))
    assert rig.handler.bodies() == [b"served"]
    rig.acknowledged()
    assert list(rig.counted.values()) == [1]


# -- descriptors that are used again within one pass -----------------------------------------------------------


@contextmanager
def no_descriptor_free_below(fd: int) -> Iterator[None]:
    """The next descriptor to be made is `fd`, once that is closed."""
    filling = [os.dup(0)]
    while filling[-1] < fd:
        filling.append(os.dup(0))
    try:
        yield
    finally:
        for each in filling:
            os.close(each)


@pytest.mark.parametrize("event", ["has room", "hung up"])
def test_event_of_connection_closed_in_same_pass_is_ignored(rig: ProcessorRig, event: str) -> None:
    """An Acceptor evicts one and hands over the next, which gets its descriptor, while the first has news, too."""
    victim = rig.connect()
    client = rig.connect(listener=1)
    if event == "has room":
        client.send(framed(b"x"))
        (request,) = rig.handler.take()
        rig.handler.answer(request, bytes(3 << 20))
        while rig.handler.outbox.has_overflow:
            rig.step()
            rig.handler.outbox.flush()
    else:
        client.send(framed(b"x") * INFLIGHT_MAX)
    rig.settle()
    connection = rig.processor.table.by_fd[max(rig.processor.table.by_fd)]
    assert connection.listener == 1
    rig.acceptor.send(HANDOFF.pack(EVICT, 1, 1, LOOPBACK, 0))
    ours, theirs = socket.socketpair()
    with ours, theirs, no_descriptor_free_below(connection.fd):
        serial = rig.hand_off(theirs.fileno())
        if event == "has room":
            client.received()
        else:
            client.sock.shutdown(socket.SHUT_RDWR)
        rig.step()
        assert serial in rig.acknowledged()
        (_, newcomer) = sorted(rig.processor.table.by_fd.values(), key=lambda each: each.id)
        assert newcomer.fd == connection.fd, "or this shows nothing"
        assert not victim.is_closed()
        ours.send(framed(b"served"))
        rig.step(2)
        assert b"served" in rig.handler.bodies()
