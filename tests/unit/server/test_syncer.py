"""The sync thread: rounds in order, outcomes to whoever asks, errors as values, one wake-up per round."""

from __future__ import annotations

import errno
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from kproc.handler.syncer import InlineSyncer, ThreadSyncer

DEADLINE_S = 10.0


@dataclass(eq=False)
class ScriptedLog:
    """Syncs when its gate is open, as it was told."""

    name: str
    error: OSError | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    threads: list[str] = field(default_factory=list)

    def run_sync(self, _point: Any) -> None:
        self.threads.append(threading.current_thread().name)
        assert self.gate.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error


def opened(name: str, error: OSError | None = None) -> ScriptedLog:
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
    assert [(log.name, point, error) for log, point, error in syncer.take()] == [
        ("good", 1, None),
        ("bad", 2, bad.error),
    ]
    assert syncer.take() == []
    syncer.close()


def test_thread_syncs_away_from_the_caller_and_wakes_it_once_per_round() -> None:
    wakes = Wakes()
    syncer = ThreadSyncer("handler-0-sync", wakes)
    logs = [opened("a"), opened("b", OSError(errno.EIO, "bad disk")), opened("c")]
    syncer.submit([(log, number) for number, log in enumerate(logs)])
    assert wakes.wait()
    assert [(log.name, point, error) for log, point, error in syncer.take()] == [
        ("a", 0, None),
        ("b", 1, logs[1].error),
        ("c", 2, None),
    ]
    assert [log.threads for log in logs] == [["handler-0-sync"]] * 3
    assert wakes.is_silent()
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
    assert [log.name for log, _, _ in syncer.take()] == ["slow", "quick"]
    syncer.close()


def test_close_waits_for_the_round_in_work_and_its_outcome_can_be_taken() -> None:
    wakes = Wakes()
    syncer = ThreadSyncer("sync", wakes)
    log = ScriptedLog("slow")
    syncer.submit([(log, 1)])
    opener = threading.Timer(0.01, log.gate.set)
    opener.start()
    syncer.close()
    done = [each.name for each, _, _ in syncer.take()]
    opener.join()
    assert done == ["slow"]
    assert not any(thread.name == "sync" for thread in threading.enumerate())


@pytest.mark.parametrize("make", [InlineSyncer, lambda: ThreadSyncer("sync", lambda: None)])
def test_syncer_without_work_closes(make: Any) -> None:
    syncer = make()
    assert syncer.take() == []
    syncer.close()
