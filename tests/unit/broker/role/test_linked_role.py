"""LinkedRole: a role without work sleeps longer, and publishes its results as soon as before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from kproc.broker.cleaner.compactor import Compactor
from kproc.broker.transport.agent import REST_MS, STORE_MS, beat_ms
from kproc.wire.header import ApiKey
from tests.support.cleaner_rig import CleanerRig
from tests.support.handler_rig import HandlerRig
from tests.support.raw import batch, produce_fields
from tests.support.sleeps import note_sleeps

Start = Callable[..., HandlerRig]
LONG_MS = 10 * REST_MS


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return note_sleeps(monkeypatch)


def produce(rig: HandlerRig) -> None:
    fields = produce_fields([("t", bytes(16), [(0, batch(b"1"))])], acks=1)
    rig.processors[0].send(ApiKey.PRODUCE, 9, fields)


def stored_requests(rig: HandlerRig) -> int:
    return rig.slab.read(0)["requests"]


def test_handler_rests_until_it_has_something_to_publish(start: Start, wanted: list[float]) -> None:
    rig = start()
    rig.create_topic("t")
    produce(rig)
    rig.settle()  # Its log is open.
    rig.advance_ms(STORE_MS)
    rig.handler().do_work(LONG_MS)
    assert wanted.pop() == REST_MS, "nothing happened since it published"
    before = stored_requests(rig)
    produce(rig)
    rig.handler().do_work(LONG_MS)
    assert (wanted.pop(), stored_requests(rig)) == (STORE_MS, before)
    rig.clock.advance_ms(STORE_MS)
    rig.handler().do_work(LONG_MS)
    assert (wanted.pop(), stored_requests(rig)) == (REST_MS, before + 1)


def test_once_a_second_is_by_the_clock_and_not_by_ticks(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start()
    ticks: list[int] = []
    monkeypatch.setattr(type(rig.partitions()), "tick", lambda _partitions: ticks.append(rig.clock.now_ns()))
    for _ in range(8):
        rig.advance_ms(REST_MS)
    assert len(ticks) == 4


def test_cleaner_goes_on_at_once_while_a_log_is_being_compacted(
    tmp_path: Path, wanted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        rig = CleanerRig(stack, tmp_path)
        rig.advance_ms(STORE_MS)
        for left_ms, sleep_ms in ((0, 0), (30, 30), (500, REST_MS)):
            monkeypatch.setattr(Compactor, "next_deadline_ms", lambda _compactor, left_ms=left_ms: left_ms)
            rig.cleaner.do_work(LONG_MS)
            assert wanted.pop() == sleep_ms


@pytest.mark.parametrize(("hung_ms", "beat"), [(0, 500), (5000, 500), (600, 200), (100, 100)])
def test_no_role_sleeps_as_long_as_counts_as_hung(hung_ms: int, beat: int) -> None:
    assert beat_ms(hung_ms) == beat
