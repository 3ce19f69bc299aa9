"""`kproc.Broker` as a user has it: ready when it returns, several at a time, gone at the end."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys

import pytest

import kproc
from kproc import Broker
from kproc.client import Client
from kproc.wire.header import ApiKey
from tests.support.broker import ROOT, forked_broker
from tests.support.proc import living
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.long


def topic_names(broker: Broker) -> list[str]:
    with Client.connect(broker.host, broker.port) as client:
        answer = client.call_latest(ApiKey.METADATA, {"topics": None, "allow_auto_topic_creation": False})
    return sorted(topic["name"] for topic in answer["topics"])


def create(broker: Broker, name: str) -> None:
    fields = {
        "topics": [
            {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []},
        ],
        "timeout": 10_000,
        "validate_only": False,
    }
    with Client.connect(broker.host, broker.port) as client:
        answer = client.call_latest(ApiKey.CREATE_TOPICS, fields)
    assert answer["topics"][0]["error_code"] == 0


@pytest.mark.every_transport
def test_embedded_broker_serves_at_once_and_leaves_nothing(transport):
    with Broker({"num.io.threads": 2}, transport=transport) as broker:
        assert topic_names(broker) == []
        pids = [broker.pid, *(row["pid"] for row in broker.processes)]
        assert living(pids) == pids
        data = broker.data
        assert data.is_dir()
    assert living(pids) == []
    assert not data.exists()


def test_embedded_brokers_are_independent(fork_server):
    with forked_broker()() as one, forked_broker()() as two:
        create(one, "only-here")
        assert (topic_names(one), topic_names(two)) == (["only-here"], [])


def test_embedded_broker_keeps_given_data_directory(fork_server, tmp_path):
    broker = forked_broker()(data=tmp_path / "data")
    with broker:
        create(broker, "kept")
    with broker:
        assert topic_names(broker) == ["kept"]
    assert (tmp_path / "data").is_dir()


def test_restarted_broker_keeps_certificates_users_and_topics(fork_server):
    with forked_broker()(tls=True, users=["alice"]) as broker:
        config = broker.client_config()
        broker.create_topic("kept")
        broker.restart()
        assert broker.client_config() == config
        with pytest.raises(RuntimeError, match="exists"):
            broker.create_topic("kept")


def test_embedded_broker_is_an_async_context_manager(fork_server):
    async def story() -> int:
        async with forked_broker()() as broker:
            return broker.port

    assert asyncio.run(story()) > 0


def test_embedded_broker_whose_supervisor_is_killed(fork_server):
    with forked_broker()() as broker:
        pids = [row["pid"] for row in broker.processes]
        broker.kill()
        wait_until(lambda: not living(pids), seconds=10, what="children have noticed")


PARENT = """
import sys
from kproc import Broker
broker = Broker().start()
print(broker.pid, *(row["pid"] for row in broker.processes), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_embedded_broker_ends_with_its_parent(how, tmp_path):
    environment = {
        **os.environ,
        "TMPDIR": str(tmp_path),
    }  # What a killed parent leaves is not removed by anybody.
    command = [sys.executable, "-W", "ignore", "-c", PARENT]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as parent:
        assert select.select([parent.stdout], [], [], PATIENCE_SECONDS)[0]
        pids = [int(word) for word in parent.stdout.readline().split()]
        if how == "kill":
            parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not living(pids), seconds=20, what="the broker has ended with its parent")


def test_embedded_broker_repr_and_package_exports() -> None:
    assert {"Broker", "__version__"} <= set(dir(kproc))
    broker = kproc.Broker()
    assert repr(broker) == "<kproc.Broker, not running>"
    with broker:
        assert repr(broker) == f"<kproc.Broker at {broker.bootstrap}, pid {broker.pid}, data {broker.data}>"
