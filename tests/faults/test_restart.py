"""State that survives a stop, clean or by kill -9: records, offsets, topics, ids, configs, producers' sequences."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.configs import TOPIC, read_configs
from tests.support.idempotence import Producer
from tests.support.raw import RawClient, batch, create_topics_fields, values_of
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]


@pytest.fixture
def served(tmp_path: Path, transport: str) -> Iterator[ServedBroker]:
    with ServedBroker(tmp_path / "data", transport=transport) as running:
        yield running


def restart(served: ServedBroker, how: str) -> None:
    if how == "clean":
        assert served.stop() == 0
    else:
        kill_all(served)
    served.start()


def kill_all(served: ServedBroker) -> None:
    """The power button, as far as processes go: the page cache survives."""
    for pid in served.pids():
        os.kill(pid, signal.SIGKILL)
    served.wait()
    wait_until(lambda: not served.is_running(), what="the supervisor is gone")
    served.stop()


both_ways = pytest.mark.parametrize("how", ["clean", "killed"])


@pytest.mark.transports("process", "thread")  # What is on the disk is the same: one test says so.
@both_ways
def test_restart_keeps_records_topic_ids_and_configs(served: ServedBroker, how: str) -> None:
    with RawClient(served.bootstrap) as client:
        topic_id = client.create_topic("kept", partitions=4, configs={"retention.ms": "123456"})
        for index in range(4):
            for number in range(20):
                row = client.produce("kept", batch(b"%d/%d" % (index, number)), partition=index)
                assert row["error_code"] == ErrorCode.NONE
        cluster_id = client.call(ApiKey.METADATA, 9, {"topics": []})["cluster_id"]
    restart(served, how)
    with RawClient(served.bootstrap) as client:
        assert client.topic_id("kept") == topic_id
        assert client.call(ApiKey.METADATA, 9, {"topics": []})["cluster_id"] == cluster_id
        for index in range(4):
            assert client.end_offset("kept", partition=index) == 20
            stored = values_of(client.fetch("kept", 0, partition=index)["records"])
            assert stored == [(number, b"%d/%d" % (index, number)) for number in range(20)]
        shown = read_configs(client, "retention.ms", kind=TOPIC, resource="kept")
        assert shown["retention.ms"]["value"] == "123456"
        assert client.produce("kept", batch(b"after"))["base_offset"] == 20


@both_ways
def test_restart_keeps_producer_sequences(served: ServedBroker, how: str) -> None:
    with RawClient(served.bootstrap) as client:
        client.create_topic("seq")
        producer = Producer(client, "seq")
        for number in range(8):
            assert producer.send(number) == (ErrorCode.NONE, number)
    restart(served, how)
    with RawClient(served.bootstrap) as client:
        producer.client = client
        assert producer.send(7) == (ErrorCode.NONE, 7), "the retry of a batch acknowledged before the stop"
        # A snapshot has the newest batch only; the others are read from the log.
        assert producer.send(3) == (ErrorCode.NONE, 3), "and of the fifth from the end"
        assert producer.send(9)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert producer.send(8) == (ErrorCode.NONE, 8)
        other = Producer(client, "seq")
        assert other.id != producer.id, "ids given out before the stop are never given again"


@both_ways
def test_restart_bumps_leader_epoch_and_fences_the_old_one(served: ServedBroker, how: str) -> None:
    with RawClient(served.bootstrap) as client:
        client.create_topic("led")
        client.produce("led", batch(b"x"))
        before = client.describe_topic("led")["partitions"][0]["leader_epoch"]
    restart(served, how)
    with RawClient(served.bootstrap) as client:
        after = client.describe_topic("led")["partitions"][0]["leader_epoch"]
        assert after > before
        row = client.fetch("led", 0, current_leader_epoch=before)
        assert row["error_code"] == ErrorCode.FENCED_LEADER_EPOCH


@both_ways
def test_restart_keeps_topic_deleted_and_removes_its_files(served: ServedBroker, how: str) -> None:
    with RawClient(served.bootstrap) as client:
        for name in ("gone", "stays"):
            client.create_topic(name)
            client.produce(name, batch(b"x"))
        client.delete_topic("gone")
    restart(served, how)
    with RawClient(served.bootstrap) as client:
        assert client.describe_topic("gone")["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert client.end_offset("stays") == 1
        assert (
            client.call(ApiKey.CREATE_TOPICS, 7, create_topics_fields("gone"))["topics"][0]["error_code"] == 0
        )
        wait_until(lambda: client.list_offset("gone", -1)["error_code"] == 0, what="made anew")
        assert client.end_offset("gone") == 0
    directories = {path.name for path in Path(served.data).iterdir() if path.is_dir()}
    assert "stays-0" in directories


def test_restart_truncates_torn_tail(served: ServedBroker) -> None:
    with RawClient(served.bootstrap) as client:
        client.create_topic("torn")
        for number in range(10):
            client.produce("torn", batch(b"%d" % number))
    kill_all(served)
    segment = Path(served.data) / "torn-0" / "00000000000000000000.log"
    whole = segment.read_bytes()
    segment.write_bytes(whole + whole[:40])
    served.start()
    with RawClient(served.bootstrap) as client:
        assert values_of(client.fetch("torn", 0)["records"]) == [
            (number, b"%d" % number) for number in range(10)
        ]
        assert client.produce("torn", batch(b"next"))["base_offset"] == 10


def test_damage_in_sealed_segment_takes_only_that_log_offline(served: ServedBroker) -> None:
    with RawClient(served.bootstrap) as client:
        for name in ("hurt", "well"):
            client.create_topic(name)
            for number in range(10):
                client.produce(name, batch(b"%d" % number * 5000))
    kill_all(served)
    segment = Path(served.data) / "hurt-0" / "00000000000000000000.log"
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    segment.write_bytes(damaged)
    served.start()
    with RawClient(served.bootstrap) as client:
        assert client.produce("hurt", batch(b"x"))["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.end_offset("well") == 10
    assert "hurt-0" in served.log()
    assert len(segment.read_bytes()) == len(damaged), "nothing was cut off the evidence"


@both_ways
def test_restart_keeps_log_start_and_group_configs(served: ServedBroker, how: str) -> None:
    group = {"resource_type": 32, "resource_name": "g"}
    change = {"name": "consumer.session.timeout.ms", "config_operation": 0, "value": "50000"}
    with RawClient(served.bootstrap) as client:
        client.create_topic("cut")
        for _ in range(10):
            client.produce("cut", batch(b"v"))
        client.delete_records("cut", 7)
        altered = {"resources": [{**group, "configs": [change]}], "validate_only": False}
        assert client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered)["responses"][0]["error_code"] == 0
    restart(served, how)
    with RawClient(served.bootstrap) as client:
        assert client.list_offset("cut", -2)["offset"] == 7
        assert client.fetch("cut", 6)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
        assert client.end_offset("cut") == 10
        asked = {"resources": [{**group, "configuration_keys": [change["name"]]}]}
        shown = client.call(ApiKey.DESCRIBE_CONFIGS, 4, asked)["results"][0]["configs"]
        assert [one["value"] for one in shown] == ["50000"]
