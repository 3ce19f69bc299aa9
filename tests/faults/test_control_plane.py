"""The control listener answers while the data plane is saturated, and after the death of each of its own roles."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.command_line import run_here
from tests.support.raw import Closed, RawClient, batch, create_topics_fields, produce_fields
from tests.support.status import connect, processes, rows, status, wait_replaced
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

SETTINGS = {"num.network.threads": 1, "num.io.threads": 1, "kproc.control.listener": "127.0.0.1:0"}
CONNECTIONS, CALLS = 64, 200


@contextmanager
def saturated(broker: ServedBroker) -> Iterator[None]:
    """64 connections that send as much as the broker takes; nobody reads their answers but the kernel."""
    stop = threading.Event()
    with RawClient(broker.bootstrap) as client:
        client.create_topic("busy", partitions=4)
    from kproc.wire import codec

    fields = produce_fields([("busy", bytes(16), [(0, batch(b"x" * 100))])], acks=1)
    frames = codec.encode_request(ApiKey.PRODUCE, 9, 1, "busy", fields) * 50

    def send(client: RawClient) -> None:
        client.socket.settimeout(0.2)
        while not stop.is_set():
            try:
                client.socket.sendall(frames)
            except (TimeoutError, Closed):
                continue
            except OSError:
                return

    clients = [RawClient(broker.bootstrap) for _ in range(CONNECTIONS)]
    threads = [threading.Thread(target=send, args=(each,)) for each in clients]
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        stop.set()
        for each in clients:
            each.close()
        for thread in threads:
            thread.join()


def test_control_calls_are_answered_while_rings_are_full(
    tmp_path: Path, transport: str
) -> None:
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker, saturated(broker):
        handler = processes(broker.control)["handler", 0]
        os.kill(handler, signal.SIGSTOP)  # Nothing is taken out of the rings: they fill up and stay full.
        try:
            wait_until(lambda: _stalled(broker.control) > 0, what="the data plane is saturated")
            with connect(broker.control) as operator, RawClient(broker.control) as admin:
                for number in range(CALLS // 2):
                    assert operator.operate("status")["topics"] >= 1
                    fields = create_topics_fields(f"made-{number}")
                    assert admin.call(ApiKey.CREATE_TOPICS, 7, fields)["topics"][0]["error_code"] == 0
            shown = run_here("monitor", "--seconds", "0.1", "--bootstrap", broker.control)
            assert "kproc: no answer from Handler 0: the requests of its clients are missing" in shown.stderr
        finally:
            os.kill(handler, signal.SIGCONT)
        wait_until(lambda: _topics(broker.control) >= CALLS // 2, what="all of them are there")


def _stalled(control: str) -> int:
    return sum(row["counters"]["reads_stalled"] for row in rows(control) if row["role"] == "processor")


def _topics(control: str) -> int:
    return int(status(control)["topics"])


def test_control_plane_roles_are_restarted_after_kill(tmp_path: Path, transport: str) -> None:
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        alive = processes(broker.bootstrap)
        own = [role for role in alive if role in (("processor", 447), ("acceptor", 111))]
        assert len(own) == 2
        for role in [*own, ("controller", 0)]:
            os.kill(alive[role], signal.SIGKILL)
            wait_replaced(broker.bootstrap, role, alive[role])
            wait_until(lambda: _answers(broker.control), what=f"it answers after the death of {role}")


def _answers(control: str) -> bool:
    try:
        return _topics(control) >= 0
    except Exception as problem:
        raise AssertionError(repr(problem)) from problem


def test_scale_over_the_control_listener(tmp_path: Path, transport: str) -> None:
    with (
        ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker,
        connect(broker.control) as client,
    ):
        assert client.scale(processors=3, handlers=2)["counts"] == {"processors": 3, "handlers": 2}
        assert client.scale(processors=1, handlers=1)["counts"] == {"processors": 1, "handlers": 1}
    with ServedBroker(
        tmp_path / "data", transport=transport, settings={**SETTINGS, "num.io.threads": 3}
    ) as again:
        assert ("handler", 1) not in processes(again.bootstrap), (
            "what was chosen beats what it is started with"
        )
