"""Partitions that their Handler refuses are named, with the reason, by `kproc status` and `kproc top`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from kproc.common.errors import ErrorCode
from tests.support.broker import ServedBroker, run_kproc
from tests.support.raw import RawClient, batch
from tests.support.status import processes, wait_replaced
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

COUNT, NAMED = 23, 20


def status(broker: ServedBroker) -> dict[str, Any]:
    done = run_kproc("status", "--json", "--bootstrap", broker.bootstrap)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_offline_partitions_are_listed_until_topic_deletion(tmp_path: Path) -> None:
    settings = {"num.network.threads": 1, "num.io.threads": 2}
    with ServedBroker(tmp_path / "data", transport="process", settings=settings) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("broken", partitions=COUNT)
            client.create_topic("whole")
            for index in range(COUNT):
                assert client.produce("broken", batch(b"x"), partition=index)["error_code"] == 0
        assert status(broker)["offline"] == {"count": 0, "first": []}
        broker.stop()
        for file in (tmp_path / "data").glob("broken-*/partition.metadata"):
            file.write_text(file.read_text().replace("version: 0", "version: 7"))
        broker.start()
        with RawClient(broker.bootstrap) as client:
            for index in range(COUNT):
                answer = client.produce("broken", batch(b"x"), partition=index)
                assert answer["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR
            assert client.produce("whole", batch(b"x"))["error_code"] == 0

        def offline() -> dict[str, Any]:
            return dict(status(broker)["offline"])

        wait_until(lambda: offline()["count"] == COUNT, what="every Handler has told the controller")
        shown = status(broker)
        assert len(shown["offline"]["first"]) == NAMED
        for row in shown["offline"]["first"]:
            assert row["topic"] == "broken"
            assert row["reason"]
        assert f"{COUNT} partitions are offline" in shown["problem"]
        text = run_kproc("status", "--bootstrap", broker.bootstrap).stdout
        assert "offline: broken-0 at handler" in text
        assert f"offline: {COUNT - NAMED} more\n" in text
        top = run_kproc("top", "--once", "--interval", "0.2", "--bootstrap", broker.bootstrap).stdout
        assert "offline: broken-0 at handler" in top
        assert f"offline: {COUNT - 3} more" in top

        old = processes(broker.bootstrap)[("controller", 0)]
        os.kill(old, signal.SIGKILL)
        wait_replaced(broker.bootstrap, ("controller", 0), old)
        wait_until(lambda: offline() == shown["offline"], what="the controller's successor is told")

        with RawClient(broker.bootstrap) as client:
            client.delete_topic("broken")
        wait_until(lambda: offline() == {"count": 0, "first": []}, what="the topic is forgotten")
        assert status(broker)["problem"] is None
