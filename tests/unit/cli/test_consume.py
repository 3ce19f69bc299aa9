"""`kproc consume`: what a person at a terminal is told, and when."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from kproc.cli import consume


def test_consume_tells_of_ctrl_c_once_it_ends_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test typed Ctrl-C at once, on a busy machine into an import, and the process died of SIGINT."""
    told: list[str] = []

    def note(text: str) -> None:
        told.append(text)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(consume, "print_note", note)
    monkeypatch.setattr("sys.stdout", SimpleNamespace(buffer=SimpleNamespace(write=None, flush=None)))
    closed: list[bool] = []
    reader = SimpleNamespace(is_done=False, close=lambda: closed.append(True))
    with pytest.raises(KeyboardInterrupt):
        consume._copy(reader, bytes, None, followed=["t", "u"])
    assert (told, closed) == (["kproc: following t, u; Ctrl-C ends"], [True])
