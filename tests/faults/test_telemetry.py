"""Telemetry over deaths: of the Handler that owns the topic, of another one, of the controller."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kproc.broker.cluster.internal_topics import TELEMETRY_TOPIC
from tests.support.broker import ServedBroker
from tests.support.raw import Closed, RawClient
from tests.support.status import processes, wait_replaced
from tests.support.telemetry import Line, lines
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

SETTINGS = {
    "num.io.threads": 2,
    "num.network.threads": 1,
    "kproc.telemetry": "metrics",
    "kproc.telemetry.interval.ms": 200,
}


def read(broker: ServedBroker) -> list[Line]:
    try:
        with RawClient(broker.bootstrap) as client:
            return lines(client)
    except (Closed, OSError, KeyError, IndexError) as problem:
        raise AssertionError(f"not yet: {problem!r}") from problem


def test_it_goes_on_after_kill_9_of_every_role_that_writes(tmp_path: Path, transport: str) -> None:
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        wait_until(lambda: read(broker), what="a line")
        for role in (("handler", 0), ("handler", 1), ("controller", 0), ("handler", 0), ("handler", 1)):
            before = len(read(broker))
            pid = processes(broker.bootstrap)[role]
            os.kill(pid, signal.SIGKILL)
            wait_replaced(broker.bootstrap, role, pid)
            wait_until(lambda count=before: len(read(broker)) > count + 20, seconds=30, what="it goes on")
        found = read(broker)
        # Nothing that was stored is lost: each writer's numbers have no gap.
        numbers: dict[tuple[str, int, int], set[int]] = {}
        for line in found:
            numbers.setdefault((line["role"], line["index"], line["started_ms"]), set()).add(line["number"])
        for writer, seen in numbers.items():
            missing = set(range(1, max(seen) + 1)) - seen
            assert not missing, (writer, sorted(missing)[:10])
        handlers = {
            line["process_index"]
            for line in found
            if line["kind"] == "process" and line["process"] == "handler"
        }
        assert handlers == {0, 1}
        assert any(line.get("restarts") for line in found if line["kind"] == "process")
        with RawClient(broker.bootstrap) as client:
            assert client.describe_topic(TELEMETRY_TOPIC)["is_internal"]
