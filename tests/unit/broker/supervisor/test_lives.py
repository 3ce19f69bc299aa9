"""Lives of a broker: each restore starts another one, with the resources of the former one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from kproc.broker.supervisor.lives import KeptResources, run_lives


class ScriptedLife:
    """A life with a known end."""

    def __init__(self, status: int | Exception, kept: KeptResources | None) -> None:
        self._status = status
        self._kept = kept

    def run(self, _ready_file: Path | None, _on_ready: Any) -> int:
        if isinstance(self._status, Exception):
            raise self._status
        return self._status

    def release(self) -> KeptResources | None:
        return self._kept


def test_lives_follow_each_other_until_one_ends_for_good(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    ready_file.write_text("{}")
    first = KeptResources(cast("Any", "sockets"), cast("Any", "signals"), 1)
    ends = [ScriptedLife(0, first), ScriptedLife(0, first._replace(restores=2)), ScriptedLife(3, None)]
    given: list[KeptResources | None] = []

    def make_life(kept: KeptResources | None) -> Any:
        given.append(kept)
        return ends[len(given) - 1]

    assert run_lives(make_life, ready_file, lambda _ready: None) == 3
    assert given == [None, first, first._replace(restores=2)]
    assert not ready_file.exists()


def test_failed_life_removes_the_ready_file(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    ready_file.write_text("{}")
    with pytest.raises(OSError, match="no memory"):
        run_lives(lambda _: cast("Any", ScriptedLife(OSError("no memory"), None)), ready_file, lambda _: None)
    assert not ready_file.exists()
