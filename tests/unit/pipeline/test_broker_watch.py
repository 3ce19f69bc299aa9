"""A pipeline without its broker: its messages, and waiting for the broker."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kproc.common.clock import NS_PER_S, ManualClock
from kproc.pipeline import runner
from kproc.pipeline.access import Access
from kproc.pipeline.broker_watch import BrokerWatch
from kproc.pipeline.errors import PipelineError
from kproc.pipeline.running_query import RunningQuery
from kproc.pipeline.spec import Outside, parse_spec

SPEC = """
pipeline = { name = "p", checkpoint = "state" }
source = [{ name = "lines", topic = "words" }]
sink = [{ name = "screen", input = "lines", console = true }]
"""


class Scene:
    """A port that somebody may listen at, and a watch over it."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._port = self._listening.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        self.refused = f"cannot connect to {self.address}: connection refused"
        self.clock = ManualClock()
        self.notes: list[str] = []
        self.watch = BrokerWatch([Access(self.address)], self.notes.append, self.clock)

    def look(self, seconds: int = 1) -> list[str]:
        """Look once a second; what was said."""
        self.notes.clear()
        for _ in range(seconds):
            self.clock.advance_ns(NS_PER_S)
            self.watch.check()
        return list(self.notes)

    def leave(self) -> None:
        connected, _ = self._listening.accept()
        connected.close()
        self.close()

    def close(self) -> None:
        self._listening.close()

    def come_back(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", self._port))


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.watch.close()
    made.close()


def test_lost_broker_is_reported_periodically_until_back(scene: Scene) -> None:
    assert scene.look(10) == []
    scene.leave()
    assert scene.look() == [f"{scene.refused}; waiting for it"]
    assert scene.watch.away == {scene.address}
    assert scene.look(10) == [f"{scene.refused}; away for 5 s", f"{scene.refused}; away for 10 s"]
    scene.come_back()
    assert scene.look(10) == [f"{scene.address} is back after 11 s"]
    assert scene.watch.away == frozenset()
    assert scene.watch.was_away_lately
    scene.look(120)
    assert not scene.watch.was_away_lately


def run_of(scene: Scene, tmp_path: Path, *, keeps_trying: bool) -> tuple[runner.PipelineRun, Any]:
    """A run with a query that failed while its broker was away."""
    run = runner.PipelineRun(
        parse_spec(SPEC, tmp_path / "p.toml", Outside(bootstrap=scene.address)),
        SimpleNamespace(print_note=scene.notes.append, refresh=lambda _figures: None),  # type: ignore[arg-type]
        {},
        keeps_trying=keeps_trying,
    )
    run._brokers = scene.watch
    failed = SimpleNamespace(isActive=False, exception=lambda: RuntimeError("no broker answered"))
    entry = RunningQuery(SimpleNamespace(name="screen"), None, failed, SimpleNamespace(state=""))  # type: ignore[arg-type]
    run._queries = [entry]
    scene.look()
    scene.leave()
    scene.look()
    return run, entry


def test_query_failed_by_absent_broker_ends_run_with_hint(
    scene: Scene, tmp_path: Path
) -> None:
    run, _ = run_of(scene, tmp_path, keeps_trying=False)
    with pytest.raises(PipelineError, match="no broker answered; --keep-trying waits for it"):
        run._raise_failure(SimpleNamespace(count=0))  # type: ignore[arg-type]


def test_query_restarts_with_broker_if_configured(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, entry = run_of(scene, tmp_path, keeps_trying=True)
    again = SimpleNamespace(isActive=True, status={"message": "Waiting for data"})
    monkeypatch.setattr(run, "_started", lambda _sink, _frame: again)
    signals: Any = SimpleNamespace(count=0)
    for _ in range(3):
        run._raise_failure(signals)
    said = "screen failed: no broker answered; it restarts when the broker is back"
    assert [note for note in scene.notes if "failed" in note] == [said]
    assert entry.waits_for_broker
    scene.come_back()
    scene.look()
    run._raise_failure(signals)
    assert (entry.query, entry.waits_for_broker) == (again, False)
