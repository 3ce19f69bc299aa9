"""The restore loop: each restore starts another run, with the resources of the former run."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any, cast

import pytest

from kproc.broker.supervisor.restore_loop import KeptResources, run_with_restores


class ScriptedRun:
    """A broker whose run ends in a known way."""

    def __init__(self, status: int | Exception, kept: KeptResources | None) -> None:
        self._status = status
        self._kept = kept

    def run(self, _ready_file: Path | None, _on_ready: Any) -> int:
        if isinstance(self._status, Exception):
            raise self._status
        return self._status

    def release(self) -> KeptResources | None:
        return self._kept


def test_runs_follow_until_one_ends_without_a_restore(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    ready_file.write_text("{}")
    first = KeptResources(cast("Any", "sockets"), cast("Any", "signals"), 1)
    ends = [ScriptedRun(0, first), ScriptedRun(0, first._replace(restores=2)), ScriptedRun(3, None)]
    given: list[KeptResources | None] = []

    def make_broker(kept: KeptResources | None) -> Any:
        given.append(kept)
        return ends[len(given) - 1]

    assert run_with_restores(make_broker, ready_file, lambda _ready: None) == 3
    assert given == [None, first, first._replace(restores=2)]
    assert not ready_file.exists()


def test_failed_run_removes_the_ready_file(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    ready_file.write_text("{}")
    with pytest.raises(OSError, match="no memory"):
        run_with_restores(
            lambda _: cast("Any", ScriptedRun(OSError("no memory"), None)), ready_file, lambda _: None
        )
    assert not ready_file.exists()


@pytest.mark.long
def test_former_runs_are_freed_without_the_collector(tmp_path: Path) -> None:
    """A Supervisor disables the collector and freezes its heap at each fork, and its objects are cyclic garbage.

    There is one collection, because each visits all objects of this process.
    """
    runs: list[weakref.ref[ScriptedRun]] = []

    class CyclicRun(ScriptedRun):
        def run(self, _ready_file: Path | None, _on_ready: Any) -> int:
            self.cycle = self
            gc.freeze()
            return 0

    def make_broker(_kept: KeptResources | None) -> Any:
        number = len(runs) + 1
        kept = KeptResources(cast("Any", None), cast("Any", None), number) if number <= 20 else None
        run = CyclicRun(0, kept)
        runs.append(weakref.ref(run))
        return run

    gc.disable()
    try:
        run_with_restores(make_broker, tmp_path / "ready.json", lambda _ready: None)
        assert sum(each() is not None for each in runs) <= 1
    finally:
        gc.unfreeze()
        gc.enable()
