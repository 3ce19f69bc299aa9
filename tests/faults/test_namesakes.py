"""A topic that is deleted and made anew under its name must not inherit what was noted of the old one.

The checkpoint files name partitions by topic. They are rewritten once a minute, so a crash soon after the
second creation leaves files that speak of the first topic.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.raw import RawClient, batch, values_of
from tests.support.status import processes, wait_replaced
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

CHECKPOINTS = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint")


def note_far_ahead(data: Path) -> None:
    """The checkpoints of a topic `t` whose log began at 408, as retention leaves them."""
    for name in CHECKPOINTS:
        (data / name).write_text("0\n1\nt 0 408\n")


def make_anew(client: RawClient) -> None:
    """Delete `t`, create it again, write one record and have it synced."""
    answer = client.call(ApiKey.DELETE_TOPICS, 4, {"topic_names": ["t"], "timeout": 5_000})
    assert answer["responses"][0]["error_code"] == 0
    client.create_topic("t")
    assert client.produce("t", batch(b"precious"), acks=-1)["error_code"] == 0


def kept(bootstrap: str) -> list[tuple[int, bytes | None]]:
    with RawClient(bootstrap) as client:
        return values_of(client.fetch("t", 0)["records"])


def test_a_namesakes_checkpoint_costs_no_record_when_the_broker_dies(tmp_path: Path, transport: str) -> None:
    data = tmp_path / "data"
    with ServedBroker(data, transport=transport) as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("t")
    note_far_ahead(data)
    broker = ServedBroker(data, transport=transport).start()
    try:
        with RawClient(broker.bootstrap) as client:
            make_anew(client)
    finally:
        broker.stop(signal.SIGKILL)
    with ServedBroker(data, transport=transport) as broker:
        assert kept(broker.bootstrap) == [(0, b"precious")]


def test_a_namesakes_checkpoint_costs_no_record_when_the_handler_dies(tmp_path: Path, transport: str) -> None:
    data = tmp_path / "data"
    settings = {"num.io.threads": 1, "num.network.threads": 1}
    with ServedBroker(data, transport=transport) as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("t")
    note_far_ahead(data)
    with ServedBroker(data, transport=transport, settings=settings) as broker:
        with RawClient(broker.bootstrap) as client:
            make_anew(client)
        pid = processes(broker.bootstrap)["handler", 0]
        os.kill(pid, signal.SIGKILL)
        wait_replaced(broker.bootstrap, ("handler", 0), pid)
        wait_until(lambda: kept(broker.bootstrap) == [(0, b"precious")], what="the record is still there")


def test_a_topic_that_stayed_keeps_its_checkpoint(tmp_path: Path, transport: str) -> None:
    data = tmp_path / "data"
    with ServedBroker(data, transport=transport) as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("t")
        for value in (b"a", b"b", b"c"):
            assert client.produce("t", batch(value))["error_code"] == 0
    for name in CHECKPOINTS:
        (data / name).write_text("0\n1\nt 0 2\n")
    with ServedBroker(data, transport=transport) as broker, RawClient(broker.bootstrap) as client:
        assert client.list_offset("t", -2)["offset"] == 2
        assert client.end_offset("t") == 3
