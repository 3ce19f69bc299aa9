"""The Host header of a page that reaches for the loopback."""

from __future__ import annotations

import socket

from kproc.common.own_host import is_own_host


def test_own_names_and_addresses_are_accepted() -> None:
    names = (
        "localhost",
        "LocalHost.:80",
        "127.0.0.1:9",
        "[::1]:80",
        "[::1]",
        "10.0.0.1",
        f"{socket.gethostname()}:1",
    )
    assert [name for name in names if not is_own_host(name)] == []


def test_names_of_web_pages_are_rejected() -> None:
    names = ("evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "", ":80")
    assert [name for name in names if is_own_host(name)] == []
