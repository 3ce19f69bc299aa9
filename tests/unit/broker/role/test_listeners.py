"""Listening sockets: bound or refused by name, with the address that clients are told."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from kproc.broker.config import Config, EndPoint
from kproc.broker.role import listeners
from kproc.broker.role.listeners import find
from kproc.common.errors import FatalError
from tests.support.bound_listeners import bind
from tests.support.wait import PATIENCE_SECONDS


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    opened: list[socket.socket] = []
    yield opened
    for sock in opened:
        sock.close()


OPEN = Config.build({"kproc.allow.unauthenticated.network": "*"})


def test_port_0_becomes_a_real_one_that_is_advertised(sockets: list[socket.socket]) -> None:
    (endpoint,) = bind(sockets, "PLAINTEXT://127.0.0.1:0")
    assert endpoint.bound_port > 0
    assert endpoint.bound == endpoint.advertised == f"127.0.0.1:{endpoint.bound_port}"
    with pytest.raises(ConnectionRefusedError):  # An open port means ready.
        socket.create_connection(("127.0.0.1", endpoint.bound_port))
    listeners.start_listening(sockets, Config.build())
    with socket.create_connection(("127.0.0.1", endpoint.bound_port)):
        pass


def test_early_listener_is_open_at_once(sockets: list[socket.socket]) -> None:
    """Kafka's testStagedListenerStartup, as far as it applies: there is no authorizer to wait for."""
    early, late = bind(
        sockets,
        "EARLY://127.0.0.1:0,LATE://127.0.0.1:0",
        listener_security_protocol_map="EARLY:PLAINTEXT,LATE:PLAINTEXT",
        early_start_listeners="early",
    )
    with socket.create_connection(("127.0.0.1", early.bound_port)):
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", late.bound_port))


def test_port_taken_before_listen_is_named_in_the_error(sockets: list[socket.socket]) -> None:
    """Kafka's testFailedAcceptorStartupCausesEnableRequestProcessingFailure."""
    (endpoint,) = bind(sockets, "PLAINTEXT://127.0.0.1:0")
    rival = socket.create_server(("127.0.0.1", endpoint.bound_port), reuse_port=False)
    sockets.append(rival)
    with pytest.raises(FatalError, match=rf"cannot open 127.0.0.1:{endpoint.bound_port}.*in use"):
        listeners.start_listening(sockets[:1], Config.build())


def test_listener_of_a_running_broker_is_opened_and_closed(sockets: list[socket.socket]) -> None:
    config = Config.build({"socket.receive.buffer.bytes": "50000"})
    endpoint, sock = listeners.open_listener(EndPoint("MORE", "PLAINTEXT", "127.0.0.1", 0), config)
    copy = sock.dup()  # The Acceptor's.
    sockets.append(copy)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 100_000, (
        "before bind, as the kernel doubles it"
    )
    assert endpoint.advertised == endpoint.bound
    with socket.create_connection(("127.0.0.1", endpoint.bound_port)) as waiting:
        listeners.close_listener(sock)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", endpoint.bound_port))
        with pytest.raises(ConnectionResetError):
            waiting.recv(1)


def test_backlog_holds_clients_before_anybody_accepts(sockets: list[socket.socket]) -> None:
    """Kafka's testListenBacklogSize."""
    (endpoint,) = bind(sockets, "PLAINTEXT://127.0.0.1:0", socket_listen_backlog_size=128)
    listeners.start_listening(sockets, Config.build({"socket.listen.backlog.size": "128"}))
    address = ("127.0.0.1", endpoint.bound_port)
    clients = [socket.create_connection(address, timeout=PATIENCE_SECONDS) for _ in range(100)]
    for client in clients:
        client.close()


def test_several_listeners_keep_their_order_and_names(sockets: list[socket.socket]) -> None:
    endpoints = bind(
        sockets,
        "ONE://127.0.0.1:0,TWO://127.0.0.1:0",
        listener_security_protocol_map="ONE:PLAINTEXT,TWO:PLAINTEXT",
        advertised_listeners="ONE://one.example:1111,TWO://two.example:2222",
        inter_broker_listener_name="ONE",
    )
    assert [endpoint.name for endpoint in endpoints] == ["ONE", "TWO"]
    assert [endpoint.advertised for endpoint in endpoints] == ["one.example:1111", "two.example:2222"]
    assert find(endpoints, "TWO") is endpoints[1]


def test_port_in_use_is_named_and_bound_ones_are_released(sockets: list[socket.socket]) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    sockets.append(taken)
    port = taken.getsockname()[1]
    with pytest.raises(FatalError, match=rf"cannot bind .*127.0.0.1:{port}.*in use"):
        bind(
            sockets,
            f"ONE://127.0.0.1:0,TWO://127.0.0.1:{port}",
            listener_security_protocol_map="ONE:PLAINTEXT,TWO:PLAINTEXT",
            inter_broker_listener_name="ONE",
        )
    assert len(sockets) == 1, "and the leak guard sees to the rest"
    config = Config.build(
        dict.fromkeys(("kproc.control.listener", "kproc.metrics.listener"), f"127.0.0.1:{port}")
    )
    with pytest.raises(FatalError, match=r"^kproc\.control\.listener: cannot bind CONTROL"):
        listeners.open_control_listener(config)
    with pytest.raises(FatalError, match=r"^kproc\.metrics\.listener: cannot bind METRICS"):
        listeners.open_metrics_listener(config)


def test_host_that_does_not_resolve_is_named(
    sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_parts: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(listeners.socket, "getaddrinfo", fail)
    with pytest.raises(FatalError, match=r"cannot resolve the host of .*nowhere.*Name or service"):
        bind(sockets, "PLAINTEXT://nowhere.example:9092")


def test_empty_host_binds_every_interface(sockets: list[socket.socket]) -> None:
    (endpoint,) = bind(
        sockets,
        "PLAINTEXT://:0",
        advertised_listeners="PLAINTEXT://127.0.0.1:9",
        kproc_allow_unauthenticated_network="PLAINTEXT",
    )
    listeners.start_listening(sockets, Config.build())
    with socket.create_connection(("127.0.0.1", endpoint.bound_port)):
        pass


def test_receive_buffer_is_set_before_anybody_connects(sockets: list[socket.socket]) -> None:
    bind(sockets, "PLAINTEXT://127.0.0.1:0", socket_receive_buffer_bytes=65_536)
    assert sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 131_072


def test_sockets_do_not_block_and_do_not_outlive_an_exec(sockets: list[socket.socket]) -> None:
    bind(sockets, "PLAINTEXT://127.0.0.1:0")
    assert not sockets[0].getblocking()
    assert not sockets[0].get_inheritable()


def test_listener_on_running_broker_skips_name_look_up(
    sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor opens it: while it waits nobody sees a role die."""
    resolve = socket.getaddrinfo

    def only_numbers(host: str, port: int, *, type: int = 0, flags: int = 0) -> Any:
        assert flags & socket.AI_NUMERICHOST, f"{host} would be looked up"
        return resolve(host, port, type=type, flags=flags)

    monkeypatch.setattr(socket, "getaddrinfo", only_numbers)
    monkeypatch.setattr(socket, "getfqdn", lambda: pytest.fail("this host's name would be looked up"))
    for host, found, advertised in (
        ("127.0.0.1", [], "127.0.0.1"),
        ("some.name", ["127.0.0.1"], "some.name"),
        ("", ["told.name"], "told.name"),
    ):
        asked = EndPoint("PLAINTEXT", "PLAINTEXT", host, 0)
        endpoint, sock = listeners.open_listener(asked, OPEN, found)
        sockets.append(sock)
        assert endpoint.advertised_host == advertised


def test_family_that_the_host_lacks_is_passed_over(
    sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = socket.socket

    def no_ipv6(
        family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM, *more: Any, **named: Any
    ) -> Any:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return make(family, kind, *more, **named)

    monkeypatch.setattr(socket, "socket", no_ipv6)
    asked = EndPoint("PLAINTEXT", "PLAINTEXT", "", 0)
    endpoint, sock = listeners.open_listener(asked, OPEN, ["told.name"])
    sockets.append(sock)
    assert endpoint.bound_host == "0.0.0.0"
