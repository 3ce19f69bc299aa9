"""Listeners without authentication stay on the loopback interface."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from kproc.broker.config import Config, EndPoint
from kproc.broker.config.exposure import exposure_error
from kproc.broker.config.values import ConfigError
from kproc.broker.role import listeners
from kproc.broker.role.listeners import open_control_listener, open_metrics_listener
from kproc.common.errors import FatalError
from tests.support.bound_listeners import bind


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    opened: list[socket.socket] = []
    yield opened
    for sock in opened:
        sock.close()


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]", "192.0.2.7", "[::ffff:192.0.2.7]"])
def test_open_listener_without_login_is_rejected(
    sockets: list[socket.socket], host: str
) -> None:
    complaint = r"^listeners: A://.*open to other hosts.*kproc\.allow\.unauthenticated\.network=A "
    with pytest.raises(ConfigError, match=complaint):
        bind(sockets, f"A://{host}:0", listener_security_protocol_map="A:PLAINTEXT")
    assert not sockets


def test_name_is_judged_by_its_addresses(
    sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    (endpoint,) = bind(sockets, "PLAINTEXT://localhost:0")
    assert endpoint.advertised_host == "localhost"
    outside = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0))]
    monkeypatch.setattr(listeners.socket, "getaddrinfo", lambda *_args, **_parts: outside)
    with pytest.raises(FatalError, match="open to other hosts"):
        bind(sockets, "PLAINTEXT://some.name:0")


@pytest.mark.parametrize("name", ["CONTROL", "METRICS"])
def test_control_and_metrics_listeners_default_to_loopback(name: str) -> None:
    setting = f"kproc.{name.lower()}.listener"
    make = open_control_listener if name == "CONTROL" else open_metrics_listener
    with pytest.raises(ConfigError, match=rf"^{setting}: .*kproc\.allow\.unauthenticated\.network={name} "):
        make(Config.build({setting: "0.0.0.0:0"}))
    opened = make(Config.build({setting: "0.0.0.0:0", "kproc.allow.unauthenticated.network": name.lower()}))
    assert opened is not None
    opened[1].close()


def test_listener_that_asks_for_a_login_may_be_open() -> None:
    config = Config.build()
    for protocol, is_free in (
        ("SASL_SSL", True),
        ("SASL_PLAINTEXT", True),
        ("SSL", False),
        ("PLAINTEXT", False),
    ):
        complaint = exposure_error(config, EndPoint("A", protocol, "", 9092), "")
        assert (complaint is None) is is_free
    certificates = Config.build({"listener.name.a.ssl.client.auth": "required"})
    assert exposure_error(certificates, EndPoint("A", "SSL", "", 9092), "") is None
    assert exposure_error(certificates, EndPoint("B", "SSL", "", 9092), "") is not None
    assert exposure_error(config, EndPoint("A", "PLAINTEXT", "::1", 9092), "::1") is None
    assert exposure_error(config, EndPoint("A", "PLAINTEXT", "x", 9092), "::ffff:127.0.0.1") is None
