"""Directories that no deletion is recorded for are kept, and named with the way out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kproc.common.errors import ErrorCode
from tests.support.broker import ServedBroker, run_kproc
from tests.support.raw import RawClient, batch, values_of
from tests.support.wait import pause

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

SETTINGS = {
    "num.network.threads": 1,
    "num.io.threads": 1,
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "log.segment.delete.delay.ms": 0,
}


def test_restored_directory_of_deleted_topic_is_set_aside(tmp_path: Path) -> None:
    """A topic was deleted by mistake, and its directory is moved back from a copy before the topic is created again.

    The deletion is recorded, but a clean stop has come since.
    """
    data, copy = tmp_path / "data", tmp_path / "copy"
    with ServedBroker(data, settings=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("orders")
        assert client.produce("orders", batch(b"precious"))["error_code"] == 0
        shutil.copytree(data / "orders-0", copy)
        client.delete_topic("orders")
    assert not (data / "orders-0").exists()
    copy.rename(data / "orders-0")
    with ServedBroker(data, settings=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        status = json.loads(run_kproc("status", "--json", "-b", broker.bootstrap).stdout)
        assert [row["directory"] for row in status["unserved_directories"]["first"]] == ["orders-0"]
        client.create_topic("orders")
        assert client.fetch("orders", 0)["error_code"] == ErrorCode.NONE
        pause(2.5)  # The cleaner removes deleted directories once a second.
    (aside,) = data.glob("orders-0.*-stray")
    assert b"precious" in (aside / f"{0:020d}.log").read_bytes()


def test_older_copy_of_partition_is_rejected_until_import(tmp_path: Path) -> None:
    """OPERATING.md, 'Partitions that are refused': only by the import does an operator accept the loss."""
    data, copy = tmp_path / "data", tmp_path / "orders-0"
    with ServedBroker(data, settings=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("orders")
        assert client.produce("orders", batch(b"old"))["error_code"] == 0
    shutil.copytree(data / "orders-0", copy)
    with ServedBroker(data, settings=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        assert client.produce("orders", batch(b"new"))["error_code"] == 0
    shutil.rmtree(data / "orders-0")
    shutil.copytree(copy, data / "orders-0")
    with ServedBroker(data, settings=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        assert client.fetch("orders", 0)["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR
        assert "files are missing or truncated" in broker.log()
    shutil.rmtree(data / "orders-0")
    done = run_kproc("import-log", str(copy), "--data", str(data))
    assert done.returncode == 0, done.stderr
    with ServedBroker(data, settings=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        assert client.produce("orders", batch(b"again"))["base_offset"] == 1
        row = client.fetch("orders", 0)
        assert [value for _, value in values_of(row["records"])] == [b"old", b"again"]


def test_start_without_metadata_log_sets_records_aside(tmp_path: Path) -> None:
    """Topics are created again by producers, the internal ones first: every old directory is kept aside."""
    data = tmp_path / "data"
    with ServedBroker(data, settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("orders")
            assert client.produce("orders", batch(b"precious"))["error_code"] == 0
        assert run_kproc("consume", "orders", "-g", "g", "-b", broker.bootstrap).stdout == "precious\n"
    shutil.rmtree(data / "__cluster_metadata-0")
    refused = run_kproc("serve", "--data", str(data), "--listeners", "PLAINTEXT://127.0.0.1:0")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "kproc.start.without.metadata=true" in refused.stderr

    settings = {**SETTINGS, "kproc.start.without.metadata": "true"}
    with ServedBroker(data, settings=settings) as broker:
        status = json.loads(run_kproc("status", "--json", "-b", broker.bootstrap).stdout)
        assert {row["directory"] for row in status["unserved_directories"]["first"]} == {
            "orders-0",
            "__consumer_offsets-0",
        }
        with RawClient(broker.bootstrap) as client:
            client.create_topic("orders")
            assert client.produce("orders", batch(b"new"))["error_code"] == 0
        run_kproc("consume", "orders", "-g", "g", "-b", broker.bootstrap)
        pause(2.5)  # The cleaner removes deleted directories once a second.
        names = [path.name for path in data.iterdir() if path.name.endswith("-stray")]
        assert sorted(name.partition(".")[0] for name in names) == ["__consumer_offsets-0", "orders-0"]
        shown = run_kproc("status", "-b", broker.bootstrap).stdout
        for name in names:
            assert f"not served: {name}: a topic of its name was created" in shown
        assert "MOVING.md" in shown
        archive = tmp_path / "report.tar.gz"
        told = run_kproc("doctor", "--output", str(archive), "-b", broker.bootstrap).stdout
        assert f"not served: {names[0]}" in told
        log = broker.log()
        assert all(name in log for name in names)
    (aside,) = data.glob("orders-0.*-stray")
    assert b"precious" in (aside / f"{0:020d}.log").read_bytes()

    # The way out: under a topic without records.
    with ServedBroker(data, settings=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        client.delete_topic("orders")
        client.create_topic("orders")
    done = run_kproc("import-log", str(aside), "--data", str(data))
    assert done.returncode == 0, done.stderr
    with ServedBroker(data, settings=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        row = client.fetch("orders", 0)
        assert row["error_code"] == ErrorCode.NONE
        assert [value for _, value in values_of(row["records"])] == [b"precious"]
