"""The soak's own judges: each kind of harm is found, and a run without harm is clean."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.soak.figures import (
    FILES_MORE,
    IDLE_PERCENT_MAX,
    IDLE_WINDOWS,
    PSS_MORE,
    SEGMENTS_MORE,
    Figures,
    idle_percents,
)
from tests.soak.ledger import Ledger
from tests.support.cases import in_one_test
from tests.support.descriptors import SEGMENT, SOCKET


def produced(count: int = 5) -> Ledger:
    """Half of the records are seen before their acknowledgement, the others after it."""
    ledger = Ledger(["reader"])
    for offset in range(count):
        steps = [lambda n=offset: ledger.acknowledged(0, n, b"p:%d pad" % n)]
        steps.append(lambda n=offset: ledger.seen("reader", 0, n, b"p:%d pad" % n))
        for step in steps if offset % 2 else reversed(steps):
            step()
    return ledger


def test_soak_ledger_accepts_records_at_acknowledged_offsets() -> None:
    ledger = produced()
    assert ledger.problems == []
    assert ledger.overdue(0) == []
    assert ledger.floor(0) == 5


def test_soak_ledger_reports_acknowledged_record_never_read() -> None:
    ledger = produced()
    ledger.acknowledged(0, 5, b"p:5 pad")
    (problem,) = ledger.overdue(0)
    assert problem.startswith("lost: reader has not got b'p:5'")


@pytest.mark.parametrize(
    ("offset", "value", "wanted"),
    [
        (5, b"p:4 pad", "duplicate"),
        (5, b"p:2 pad", "reordered"),
        (6, b"p:5 pad", "gap"),
    ],
)
def test_soak_ledger_reports_unexpected_record(offset: int, value: bytes, wanted: str) -> None:
    ledger = produced()
    ledger.seen("reader", 0, offset, value)
    assert [problem.split(":")[0] for problem in ledger.problems] == [wanted]


@pytest.mark.parametrize("is_seen_first", [True, False])
def test_soak_ledger_reports_record_at_other_offset(is_seen_first: bool) -> None:
    ledger = produced()
    steps = [
        lambda: ledger.acknowledged(0, 7, b"p:5 pad"),
        lambda: ledger.seen("reader", 0, 5, b"p:5 pad"),
    ]
    for step in reversed(steps) if is_seen_first else steps:
        step()
    assert [problem.split(":")[0] for problem in ledger.problems] == ["moved"]


def test_soak_ledger_checks_tool_without_offsets_by_values() -> None:
    ledger = produced()
    ledger.acknowledged(0, None, b"kcat:0 pad")
    assert len(ledger.overdue(0)) == 1
    ledger.seen("reader", 0, 5, b"kcat:0 pad")
    assert ledger.overdue(0) + ledger.problems == []


HANDLER = ("handler", 0)
BEFORE = Figures(
    seconds=0.0,
    threads={HANDLER: 2},
    descriptors={HANDLER: Counter({SOCKET: 3, SEGMENT: 9})},
    pss={HANDLER: 10 << 20},
    memfd_bytes=10 << 20,
    unlinked=[],
    files=Counter({".": 4}),
    file_bytes=0,
    idle_percent={HANDLER: 0.2},
    rescued=0,
    restarts=0,
)


def test_figures_within_the_tolerances_are_as_before() -> None:
    after = replace(BEFORE, descriptors={HANDLER: Counter({SOCKET: 3, SEGMENT: 9 + SEGMENTS_MORE})})
    assert after.grown_since(BEFORE) == []


@in_one_test(
    ("change", "wanted"),
    [
        ({"threads": {HANDLER: 2, ("handler", 1): 2}}, "other processes"),
        ({"threads": {HANDLER: 3}}, "3 threads, 2 before"),
        ({"descriptors": {HANDLER: Counter({SOCKET: 4})}}, "descriptors (now, before): {'socket': (4, 3)}"),
        ({"unlinked": ["handler-0: /data/t-0/0.log (deleted)"]}, "still open"),
        ({"pss": {HANDLER: (10 << 20) + PSS_MORE + 1}}, "MiB of PSS more"),
        ({"memfd_bytes": 12 << 20}, "MiB of shared memory more"),
        ({"files": Counter({".": 4, "t-0": 1})}, "t-0: 1 files, 0 before"),
        ({"files": Counter({".": 4 + FILES_MORE + 1})}, ".: 21 files, 4 before"),
        ({"idle_percent": {HANDLER: IDLE_PERCENT_MAX + 1}}, "when idle after the load: {'handler-0': 4.0}"),
    ],
)
def test_whatever_grew_is_named(change: dict[str, Any], wanted: str) -> None:
    (problem,) = replace(BEFORE, **change).grown_since(BEFORE)
    assert wanted in problem


def test_idle_cpu_ignores_work_that_is_done_once() -> None:
    """A role that has just been restarted may do its last work in the first window."""
    windows: list[float] = []

    def wait(seconds: float) -> None:
        windows.append(seconds)
        end_ns = time.monotonic_ns() + 100_000_000
        while len(windows) == 1 and time.monotonic_ns() < end_ns:
            pass
        threading.Event().wait(0.2)

    role = ("handler", 0)
    assert idle_percents({role: os.getpid()}, wait)[role] <= IDLE_PERCENT_MAX
    assert 1 < len(windows) <= IDLE_WINDOWS
