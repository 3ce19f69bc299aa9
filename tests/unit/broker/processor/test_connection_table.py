"""ConnectionTable: sockets from the Acceptor, and connections for which the kernel refuses something."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kproc.broker.processor.connection import INFLIGHT_MAX
from kproc.broker.role.handoff import EVICT, HANDOFF, REFUSED
from tests.support.processor_rig import LOOPBACK, ProcessorRig, framed, no_more_descriptors

Start = Callable[..., ProcessorRig]


def test_every_socket_that_is_handed_over_is_acknowledged_once(rig: ProcessorRig) -> None:
    pairs = [socket.socketpair() for _ in range(20)]
    serials = [rig.hand_off(theirs.fileno()) for _, theirs in pairs]
    rig.step()
    assert rig.acknowledged() == serials
    rig.step()
    assert rig.acknowledged() == []
    for ours, theirs in pairs:
        theirs.close()
        ours.send(framed(b"x"))
    rig.step()
    assert len(rig.handler.bodies()) == 20
    assert rig.metric("connections_accepted") == 20
    for ours, _ in pairs:
        ours.close()


def test_client_sees_close_though_socket_copy_is_open(rig: ProcessorRig) -> None:
    """The Acceptor may not have closed its copy yet when a connection ends."""
    ours, theirs = socket.socketpair()
    rig.hand_off(theirs.fileno())
    rig.step()
    ours.send(b"\xff\xff\xff\xff")
    rig.step()
    ours.setblocking(False)
    assert ours.recv(1) == b""
    ours.close()
    theirs.close()


def test_ended_acceptor_is_forgotten_and_successor_served(rig: ProcessorRig) -> None:
    client = rig.connect()
    rig.acceptor.close()
    rig.step()
    rig.acceptor = rig.attach_acceptor()
    other = rig.connect()
    for each in (client, other):
        each.send(framed(b"x"))
    assert len(rig.handler.bodies()) == 2


def test_acceptor_death_after_handoff_is_harmless(rig: ProcessorRig) -> None:
    """Its acknowledgement cannot be sent any more; the connection is the Processor's all the same."""
    ours, theirs = socket.socketpair()
    rig.hand_off(theirs.fileno())
    theirs.close()
    rig.acceptor.close()
    rig.step()
    ours.send(framed(b"served"))
    rig.step(2)
    assert rig.handler.bodies() == [b"served"]
    ours.close()


def test_unreceivable_socket_is_rejected_to_go_elsewhere(rig: ProcessorRig) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        serial = rig.hand_off(theirs.fileno())
        with no_more_descriptors():
            rig.step()
        assert select.select([rig.acceptor], [], [], 0)[0], f"nothing is said about socket {serial}"


def test_processor_out_of_descriptors_serves_and_recovers(rig: ProcessorRig) -> None:
    client = rig.connect()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        rig.hand_off(theirs.fileno())
        with no_more_descriptors():
            rig.step()
            client.send(framed(b"served"))
        rig.acknowledged()
    assert rig.handler.bodies() == [b"served"]
    other = rig.connect()
    other.send(framed(b"new"))
    assert rig.handler.bodies() == [b"new"]


def test_the_last_descriptors_are_not_for_clients(
    rig: ProcessorRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are for links: a Processor that cannot take one ends, and all of its connections with it."""
    client = rig.connect()
    for _ in range(3):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            monkeypatch.setattr(rig.processor, "_descriptor_end", theirs.fileno())
            rig.acknowledged()
            serial = rig.hand_off(theirs.fileno())
            rig.step()
            assert rig.acknowledged() == [serial | REFUSED]
    assert caplog.text.count("refusing connections: the limit of open files") == 1, "once, not for each"
    client.send(framed(b"served"))
    assert rig.handler.bodies() == [b"served"]


def test_ids_are_never_used_again(rig: ProcessorRig) -> None:
    ids = []
    for _ in range(5):
        client = rig.connect()
        client.send(framed(b"x"))
        ids.append(rig.handler.take()[0].connection_id)
        client.close()
    assert len(set(ids)) == 5


def test_successor_of_a_processor_uses_other_ids(start: Start) -> None:
    """A Handler may still hold requests of the connections of the one that died."""
    ids = []
    for age_ms in (0, 1):
        rig = start(age_ms=age_ms)
        client = rig.connect()
        client.send(framed(b"x"))
        ids.append(rig.handler.take()[0].connection_id)
    assert ids[1] - ids[0] >= 1 << 20, "room for a million connections in a millisecond"


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


def test_muted_connection_expires_with_unread_requests(start: Start) -> None:
    """Polling does not make it active; its late answer is harmless."""
    rig = start(idle_ms_max=60_000)
    client = rig.connect()
    client.send(framed(b"x") * INFLIGHT_MAX)
    client.sock.send(framed(b"unread"))
    for _ in range(6):
        rig.advance_ms(10_000)
    assert not client.has_end()
    rig.advance_ms(2_000)
    assert client.has_end()
    requests = rig.handler.take()
    assert {request.body for request in requests} == {b"x"}
    rig.handler.answer(requests[0], framed(b"late"))
    rig.step(2)
    assert rig.handler.take() == []


def test_hung_up_muted_client_expires_with_unread_requests(start: Start) -> None:
    """Kafka's testExpireClosedConnectionWithPendingReceives: out of the epoll, but not out of the idle wheel."""
    rig = start(idle_ms_max=60_000)
    client = rig.connect()
    client.send(framed(b"x") * INFLIGHT_MAX)
    client.sock.send(framed(b"unread"))
    client.sock.close()
    rig.settle()
    rig.advance_ms(59_000)
    assert len(rig.processor.describe_connections()) == 1
    rig.advance_ms(3_000)
    assert rig.processor.describe_connections() == []
    assert {request.body for request in rig.handler.take()} == {b"x"}
    rig.step()
    rig.acknowledged()
    assert list(rig.counted.values()) == [0]


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
def test_event_of_connection_closed_in_same_pass_is_ignored(
    rig: ProcessorRig, event: str
) -> None:
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
