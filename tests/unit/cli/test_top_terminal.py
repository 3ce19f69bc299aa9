"""The terminal of `kproc top`: keys that it sends."""

from __future__ import annotations

from kproc.cli.top_terminal import parse_keys


def test_unknown_sequences_are_no_keys() -> None:
    assert parse_keys(b"\x1b[200~\x1b[1;5Ca\x00\xff\x1b[6~") == ["a", "pagedown"]
