"""The sync thread: rounds in order, outcomes to whoever asks, errors as values, one wake-up per round."""

from __future__ import annotations

import errno
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from kproc.broker.handler.syncer import InlineSyncer, ThreadSyncer
from tests.support.shortages import no_thread
from tests.support.wait import wait_until

DEADLINE_S = 120.0


@dataclass(eq=False)
class ScriptedLog:
    """Syncs when its gate is open, as it was told."""

    name: str
    error: Exception | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    threads: list[str] = field(default_factory=list)

    @property
    def durability(self) -> ScriptedLog:
        """The part of a log that the syncer calls."""
        return self

    def run_sync(self, _point: Any) -> None:
        self.threads.append(threading.current_thread().name)
        self.begun.set()
        assert self.gate.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error


def opened(name: str, error: Exception | None = None) -> ScriptedLog:
    log = ScriptedLog(name, error)
    log.gate.set()
    return log


class Wakes:
    """Counts wake-ups and lets a test wait for one."""

    def __init__(self) -> None:
        self._semaphore = threading.Semaphore(0)

    def __call__(self) -> None:
        self._semaphore.release()

    def wait(self) -> bool:
        return self._semaphore.acquire(timeout=DEADLINE_S)

    def is_silent(self) -> bool:
        return not self._semaphore.acquire(blocking=False)


def test_inline_syncer_has_done_it_when_submit_returns() -> None:
    syncer = InlineSyncer()
    good, bad = opened("good"), opened("bad", OSError(errno.EIO, "bad disk"))
    syncer.submit([(good, 1), (bad, 2)])
    assert [(log.name, point, error) for log, point, error in syncer.collect()] == [
        ("good", 1, None),
        ("bad", 2, bad.error),
    ]
    assert syncer.collect() == []
    syncer.close()


def test_round_ends_although_syncs_raise_something_unexpected() -> None:
    """In the round's own thread and in a helper."""
    wakes = Wakes()
    syncer = ThreadSyncer("handler-0-sync", wakes)
    for _ in range(2):
        syncer.submit([(opened(f"{number}", MemoryError()), number) for number in range(3)])
        assert wakes.wait()
        errors = [error for _, _, error in syncer.collect()]
        assert [type(error) for error in errors] == [OSError] * 3
        assert "MemoryError" in str(errors[0])
    syncer.close()


def test_thread_syncs_and_wakes_caller_once_per_round() -> None:
    wakes = Wakes()
    syncer = ThreadSyncer("handler-0-sync", wakes)
    logs = [opened("a"), opened("b", OSError(errno.EIO, "bad disk")), opened("c")]
    syncer.submit([(log, number) for number, log in enumerate(logs)])
    assert wakes.wait()
    outcomes = sorted((log.name, point, error) for log, point, error in syncer.collect())
    assert outcomes == [("a", 0, None), ("b", 1, logs[1].error), ("c", 2, None)]
    assert logs[0].threads == ["handler-0-sync"]
    assert all(thread.startswith("handler-0-sync") for log in logs for thread in log.threads)
    assert wakes.is_silent()
    syncer.close()


@pytest.mark.parametrize("count", [1, 3, 8])
def test_the_logs_of_a_round_are_synced_side_by_side(count: int) -> None:
    wakes = Wakes()
    syncer = ThreadSyncer("sync", wakes)
    together = threading.Barrier(count)

    class Together(ScriptedLog):
        def run_sync(self, _point: Any) -> None:
            together.wait(DEADLINE_S)  # Broken, and so raised, unless all of them are being synced at once.

    for _ in range(3):
        syncer.submit([(Together(str(number)), number) for number in range(count)])
        assert wakes.wait()
        assert sorted(point for _, point, error in syncer.collect() if error is None) == list(range(count))
    assert wakes.is_silent()
    syncer.close()
    assert not any(thread.name.startswith("sync") for thread in threading.enumerate())


def test_round_of_many_logs_uses_few_threads_one_per_log() -> None:
    wakes = Wakes()
    syncer = ThreadSyncer("sync", wakes)
    for _ in range(20):
        logs = [opened(str(number)) for number in range(100)]
        syncer.submit([(log, 0) for log in logs])
        assert wakes.wait()
        assert sorted(log.name for log, _, _ in syncer.collect()) == sorted(log.name for log in logs)
        assert all(len(log.threads) == 1 for log in logs)
        assert len({log.threads[0] for log in logs}) <= 8
    assert wakes.is_silent()
    syncer.close()


def test_idle_sync_threads_end_and_next_round_starts_new_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kproc.broker.handler.syncer._IDLE_S", 0.01)
    wakes = Wakes()
    syncer = ThreadSyncer("sync", wakes)
    for _ in range(3):
        logs = [opened(str(number)) for number in range(20)]
        syncer.submit([(log, 0) for log in logs])
        assert wakes.wait()
        assert sorted(log.name for log, _, _ in syncer.collect()) == sorted(log.name for log in logs)
        wait_until(lambda: _threads() == ["sync"], seconds=DEADLINE_S, what="one thread")
    syncer.close()
    assert _threads() == []


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("sync")]


def test_a_round_of_one_log_starts_no_thread() -> None:
    wakes = Wakes()
    syncer = ThreadSyncer("sync", wakes)
    for _ in range(3):
        syncer.submit([(opened("a"), 1)])
        assert wakes.wait()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("sync")] == ["sync"]
    syncer.close()


def test_round_is_synced_without_helpers_if_none_can_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A control group limits the threads: the sync thread goes on, and so do all later rounds."""
    wakes = Wakes()
    syncer = ThreadSyncer("sync", wakes)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    for _ in range(3):
        syncer.submit([(opened(name), 1) for name in "abc"])
        assert wakes.wait()
        assert [log.name for log, _, error in syncer.collect() if error is None] == ["a", "b", "c"]
    assert caplog.messages == ["syncing with 0 helper threads, because no more can start: can't start new thread"]
    monkeypatch.undo()
    syncer.submit([(opened(name), 1) for name in "abc"])
    assert wakes.wait()
    syncer.close()


def test_a_round_that_helpers_have_not_ended_is_not_over() -> None:
    wakes = Wakes()
    syncer = ThreadSyncer("sync", wakes)
    slow = ScriptedLog("slow")
    syncer.submit([(opened("a"), 1), (slow, 2), (opened("b"), 3)])
    later = opened("c")
    syncer.submit([(later, 4)])
    assert slow.begun.wait(DEADLINE_S)
    assert wakes.is_silent()
    assert later.threads == []
    slow.gate.set()
    assert wakes.wait()
    assert wakes.wait()
    assert sorted(log.name for log, _, _ in syncer.collect()) == ["a", "b", "c", "slow"]
    syncer.close()


def test_rounds_run_one_after_the_other() -> None:
    wakes = Wakes()
    syncer = ThreadSyncer("sync", wakes)
    slow, quick = ScriptedLog("slow"), opened("quick")
    syncer.submit([(slow, 1)])
    syncer.submit([(quick, 2)])
    assert quick.threads == []
    slow.gate.set()
    assert wakes.wait()
    assert wakes.wait()
    assert [log.name for log, _, _ in syncer.collect()] == ["slow", "quick"]
    syncer.close()


def test_close_waits_for_round_and_outcome_is_available() -> None:
    wakes = Wakes()
    syncer = ThreadSyncer("sync", wakes)
    log = ScriptedLog("slow")
    syncer.submit([(log, 1)])
    opener = threading.Timer(0.01, log.gate.set)
    opener.start()
    syncer.close()
    done = [each.name for each, _, _ in syncer.collect()]
    opener.join()
    assert done == ["slow"]
    assert not any(thread.name == "sync" for thread in threading.enumerate())


@pytest.mark.parametrize("make", [InlineSyncer, lambda: ThreadSyncer("sync", lambda: None)])
def test_syncer_without_work_closes(make: Any) -> None:
    syncer = make()
    assert syncer.collect() == []
    syncer.close()
