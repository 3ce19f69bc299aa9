"""record_copy.py: the loop from a reader to the standard output, and the signals that end it."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from kproc.cli import record_copy
from kproc.cli.record_copy import copy_records


def test_note_of_ctrl_c_comes_once_it_ends_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test typed Ctrl-C at once, on a busy machine into an import, and the process died of SIGINT."""
    told: list[str] = []

    def note(text: str) -> None:
        told.append(text)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(record_copy, "print_note", note)
    monkeypatch.setattr("sys.stdout", SimpleNamespace(buffer=SimpleNamespace(write=None, flush=None)))
    closed: list[bool] = []
    reader = SimpleNamespace(is_done=False, close=lambda: closed.append(True))
    with pytest.raises(KeyboardInterrupt):
        copy_records(reader, bytes, None, None, followed=["t", "u"])
    assert (told, closed) == (["kproc: following t, u; Ctrl-C ends"], [True])
