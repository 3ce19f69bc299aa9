"""The directory of a deleted topic is removed, whichever role dies in between."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.raw import RawClient, batch
from tests.support.status import Role, processes, wait_replaced
from tests.support.wait import pause, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

SETTINGS = {"num.io.threads": 1, "num.network.threads": 1, "log.segment.delete.delay.ms": 1_000}


def delete(bootstrap: str, topic: str) -> None:
    with RawClient(bootstrap) as client:
        client.delete_topic(topic)


def make(bootstrap: str, *topics: str) -> None:
    with RawClient(bootstrap) as client:
        for topic in topics:
            client.create_topic(topic)
            assert client.produce(topic, batch(b"x"))["error_code"] == 0


def partition_directories(data: Path) -> list[str]:
    return sorted(path.name for path in data.iterdir() if path.is_dir() and not path.name.startswith("__"))


@pytest.mark.parametrize("role", [("handler", 0), ("cleaner", 0)], ids=lambda role: role[0])
def test_deleted_directory_is_removed_though_a_role_dies(
    tmp_path: Path, transport: str, role: Role
) -> None:
    data = tmp_path / "data"
    with ServedBroker(data, transport=transport, settings=SETTINGS) as broker:
        make(broker.bootstrap, "gone", "stays")
        delete(broker.bootstrap, "gone")
        pid = processes(broker.bootstrap)[role]
        os.kill(pid, signal.SIGKILL)
        wait_replaced(broker.bootstrap, role, pid)
        wait_until(
            lambda: partition_directories(data) == ["stays-0"], seconds=6, what="only the other is left"
        )


def test_deleted_directory_stays_for_the_delay_or_until_stop(tmp_path: Path, transport: str) -> None:
    data = tmp_path / "data"
    settings = {**SETTINGS, "log.segment.delete.delay.ms": 60_000}
    with ServedBroker(data, transport=transport, settings=settings) as broker:
        make(broker.bootstrap, "gone", "stays")
        delete(broker.bootstrap, "gone")
        pause(1.5)
        (left, stays) = partition_directories(data)
        assert left.startswith("gone-0.")
        assert left.endswith("-delete")
        assert stays == "stays-0"
    assert partition_directories(data) == ["stays-0"]


def test_deleted_directory_is_removed_after_its_owner_died(
    tmp_path: Path, transport: str
) -> None:
    data = tmp_path / "data"
    with ServedBroker(data, transport=transport, settings={**SETTINGS, "num.io.threads": 2}) as broker:
        with RawClient(broker.bootstrap) as client:
            for topic in ("gone", "stays"):
                client.create_topic(topic, partitions=2)
                for partition in (0, 1):
                    assert client.produce(topic, batch(b"x"), partition=partition)["error_code"] == 0
        pid = processes(broker.bootstrap)["handler", 1]
        # A connection whose home is the other Handler: it has to be found, so there are two.
        clients = [RawClient(broker.bootstrap) for _ in range(2)]
        os.kill(pid, signal.SIGSTOP)
        for client in clients:
            client.send(ApiKey.DELETE_TOPICS, 4, {"topic_names": ["gone"], "timeout": 5_000})
        pause(0.5)  # The deletion is written down and waits for the stopped Handler, which dies of it.
        os.kill(pid, signal.SIGKILL)
        wait_replaced(broker.bootstrap, ("handler", 1), pid)
        for client in clients:
            client.close()
        wait_until(
            lambda: partition_directories(data) == ["stays-0", "stays-1"],
            seconds=8,
            what="only the other is left",
        )
