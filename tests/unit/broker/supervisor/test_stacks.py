"""Stacks of a running process: the file that receives them is emptied, so it must be the process's own memfd."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproc.broker.supervisor import stacks


@pytest.fixture
def handler() -> Iterator[None]:
    """A process that catches the signal, as every role does."""
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_stacks_do_not_empty_file_with_the_memfds_name(
    handler: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a mount namespace of its own another user's process gives that name to any file of the host."""
    path = tmp_path / "memfd:stacks"
    path.write_text("not to be lost")
    monkeypatch.setattr("kproc.broker.supervisor.stacks._LINK", str(path))
    descriptor = os.open(path, os.O_PATH)
    try:
        assert stacks.read_stacks(os.getpid()) is None
    finally:
        os.close(descriptor)
    assert path.read_text() == "not to be lost"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_stacks_do_not_empty_deleted_file_of_other_user(
    handler: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memfd:stacks"
    path.write_text("not to be lost")
    monkeypatch.setattr("kproc.broker.supervisor.stacks._LINK", str(path))
    with open(path, "rb") as file:
        os.chown(path, 65534, 65534)
        path.unlink()
        assert stacks.read_stacks(os.getpid()) is None
        assert file.read() == b"not to be lost"
