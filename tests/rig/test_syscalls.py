"""The sweep of failing system calls in small: every promise is kept, and each mutation is found."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest import mock

import pytest

from kproc.broker.storage import fs
from kproc.broker.storage.log_state import LogState
from tests.simulation.mutations import mutated
from tests.syscalls.sweep import PATHS, calls_of, sweep, try_one

pytestmark = pytest.mark.long


def test_sweep_of_failing_calls_keeps_every_promise() -> None:
    """`python -m tests.syscalls` tries all of them."""
    tried, found = sweep(list(PATHS), every=71)
    assert not found, "\n".join(map(str, found))
    assert tried.total() > 50


MUTATIONS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "shortage is damage": lambda: mock.patch.object(fs, "SHORTAGE_ERRORS", frozenset()),
    "failed sync passes": lambda: mock.patch.object(LogState, "set_offline_after"),
    "failed write is not undone": lambda: mutated("failed-write-not-undone"),
}


@pytest.mark.parametrize(
    ("mutation", "path", "call", "error"),
    [
        ("shortage is damage", "sync", "open_directory", errno.EMFILE),
        ("shortage is damage", "roll", "create", errno.ENOMEM),
        ("shortage is damage", "first append", "create", errno.ENOMEM),
        ("failed sync passes", "sync", "sync", errno.EDQUOT),
        ("failed write is not undone", "append", "write", errno.ENOSPC),
    ],
)
def test_sweep_of_failing_calls_finds_mutations(mutation: str, path: str, call: str, error: int) -> None:
    numbers = [number for number, each in enumerate(calls_of(path), 1) if each == call]
    with MUTATIONS[mutation]():
        assert any(try_one(path, number, error) for number in numbers)
