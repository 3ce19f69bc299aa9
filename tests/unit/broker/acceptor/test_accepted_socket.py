"""The options and flags of an accepted socket."""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Callable

import pytest

from kproc.broker.acceptor.accepted_socket import configure
from kproc.broker.transport.envelope import FLAG_LOOPBACK
from tests.support.acceptor_rig import AcceptorRig
from tests.support.wait import PATIENCE_SECONDS


def test_listener_and_loopback_flag_travel_with_the_socket(rig: AcceptorRig) -> None:
    rig.connect()
    rig.step()
    rig.taken()
    (head,) = [head for processor in rig.processors for head in processor.heads]
    assert head == (5, FLAG_LOOPBACK)


def test_configured_send_buffer_is_set(start: Callable[..., AcceptorRig]) -> None:
    rig = start(1, send_buffer_bytes=100_000)
    rig.connect()
    rig.step()
    rig.taken()
    assert rig.processors[0].sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 200_000


def test_unconfigurable_socket_is_closed_and_next_served(
    rig: AcceptorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's testExceptionInAcceptor."""
    failures = [OSError(errno.EINVAL, "reset meanwhile")]
    monkeypatch.setattr(
        "kproc.broker.acceptor.acceptor.configure",
        lambda *sock_and_bytes: _raise(failures.pop()) if failures else configure(*sock_and_bytes),
    )
    first, second = rig.connect(2)
    rig.step()
    assert sum(rig.taken()) == 1
    assert select.select([first], [], [], PATIENCE_SECONDS)[0]
    assert first.recv(1) == b""
    with pytest.raises(BlockingIOError):
        second.recv(1)


def _raise(error: Exception) -> int:
    raise error
