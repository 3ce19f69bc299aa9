"""The sweep of failing system calls in small: every promise is kept, and what is taken out is found."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest import mock

import pytest

from kproc.broker.storage import fs
from kproc.broker.storage.log_state import LogState
from tests.syscalls.sweep import PATHS, sweep, try_one

pytestmark = pytest.mark.long


def test_sweep_of_failing_calls_keeps_every_promise() -> None:
    """`python -m tests.syscalls` tries all of them."""
    tried, found = sweep(list(PATHS), every=29)
    assert not found, "\n".join(map(str, found))
    assert tried.total() > 100


MUTATIONS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "shortage is damage": lambda: mock.patch.object(fs, "_SHORT", frozenset()),
    "failed sync passes": lambda: mock.patch.object(LogState, "note_failure"),
}


@pytest.mark.parametrize(
    ("mutation", "path", "number", "error"),
    [
        ("shortage is damage", "sync", 1, errno.EMFILE),
        ("shortage is damage", "roll", 4, errno.ENOMEM),
        ("shortage is damage", "first append", 4, errno.ENOMEM),
        ("failed sync passes", "sync", 12, errno.EDQUOT),
    ],
)
def test_sweep_of_failing_calls_finds_mutations(mutation: str, path: str, number: int, error: int) -> None:
    assert try_one(path, number, error) is None
    with MUTATIONS[mutation]():
        assert try_one(path, number, error) is not None
