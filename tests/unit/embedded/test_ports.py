"""The ports of a broker that is started again."""

from __future__ import annotations

import socket

import pytest

from kproc.embedded.ports import pin_ports, reserved_ports
from tests.support.wait import PATIENCE_SECONDS

READY = {
    "listeners": {"PLAINTEXT": {"bound": "127.0.0.1:1001"}, "INSIDE": {"bound": "[::]:1002"}},
    "metrics": "127.0.0.1:1003",
}


def test_pinned_settings_have_the_ports_of_the_last_start() -> None:
    cases = {
        ("listeners", "PLAINTEXT://127.0.0.1:0"): "PLAINTEXT://127.0.0.1:1001",
        ("listeners", "plaintext://:0, INSIDE://[::]:0"): "plaintext://:1001, INSIDE://[::]:1002",
        ("listeners", "PLAINTEXT://127.0.0.1:9092"): "PLAINTEXT://127.0.0.1:9092",
        ("listeners", "OTHER://127.0.0.1:0,wrong:0"): "OTHER://127.0.0.1:0,wrong:0",
        ("kproc.metrics.listener", "127.0.0.1:0"): "127.0.0.1:1003",
        ("kproc.control.listener", "127.0.0.1:0"): "127.0.0.1:0",
        ("advertised.listeners", "PLAINTEXT://127.0.0.1:0"): "PLAINTEXT://127.0.0.1:0",
    }
    for (name, value), pinned in cases.items():
        assert pin_ports({name: value}, READY) == {name: pinned}


def test_reserved_port_refuses_clients_and_can_be_bound() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first:
        host, port = first.getsockname()
    ready = {"listeners": {"PLAINTEXT": {"bound": f"{host}:{port}"}}}
    with reserved_ports(ready):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port), timeout=PATIENCE_SECONDS)
        # A client without an own port never gets this one.
        with socket.socket() as client, pytest.raises(OSError, match="in use"):
            client.bind((host, port))
        # create_server sets SO_REUSEADDR, as the broker does.
        socket.create_server((host, port)).close()


def test_taken_port_is_left_to_the_start_to_report() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        host, port = other.getsockname()
        with reserved_ports({"listeners": {"PLAINTEXT": {"bound": f"{host}:{port}"}}}):
            pass
