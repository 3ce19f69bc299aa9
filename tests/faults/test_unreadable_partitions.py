"""One partition that cannot be read: commands serve and show the rest, and name it with its reason."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker, run_kproc
from tests.support.raw import NO_TOPIC_ID, RawClient, batch, fetch_fields

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

SETTINGS = {
    "num.network.threads": 1,
    "num.io.threads": 2,
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
}
REASON = "Not a directory"
"""A file in place of the directory: tests may run as root, to whom chmod 000 means nothing."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    """Topic t with partitions 0 and 2 readable and 1 not, topic whole, group g with offsets of t."""
    data = tmp_path_factory.mktemp("unreadable") / "data"
    with ServedBroker(data, settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t", partitions=3)
            client.create_topic("whole")
            for index in range(3):
                assert client.produce("t", batch(b"v%d" % index), partition=index)["error_code"] == 0
            assert client.produce("whole", batch(b"w"))["error_code"] == 0
        done = run_kproc("consume", "t", "--group", "g", "--bootstrap", broker.bootstrap)
        assert sorted(done.stdout.split()) == ["v0", "v1", "v2"], done.stderr
        broker.stop()
        (data / "t-1").rename(data / "elsewhere")
        (data / "t-1").write_text("a file")
        broker.start()
        yield broker


@pytest.mark.transports("process", "thread", "inline")
def test_removed_segment_fails_only_its_own_reads(tmp_path: Path, transport: str) -> None:
    """Another program removes the file of a sealed segment, which the broker may have open."""
    with ServedBroker(tmp_path / "data", transport=transport) as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("t", configs={"segment.bytes": str(1 << 20)})
        client.create_topic("whole")
        for _ in range(10):
            assert client.produce("t", batch(b"x" * 400_000))["error_code"] == 0
        assert client.produce("whole", batch(b"w"))["error_code"] == 0
        files = sorted((tmp_path / "data" / "t-0").glob("*.log"))
        assert len(files) > 3
        gone, after = int(files[1].stem), int(files[2].stem)
        assert client.fetch("t", gone)["records"]
        files[1].unlink()
        asked = [(name, NO_TOPIC_ID, [(0, offset)]) for name, offset in (("t", gone), ("whole", 0))]
        hurt, whole = client.call(ApiKey.FETCH, 12, fetch_fields(asked))["responses"]
        assert hurt["partitions"][0]["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR
        assert b"w" in whole["partitions"][0]["records"]
        before = client.fetch("t", 0)
        assert (before["error_code"], len(before["records"])) == (0, files[0].stat().st_size)
        assert client.fetch("t", after)["error_code"] == 0
        assert client.produce("t", batch(b"more"))["error_code"] == 0
        shown = kproc(broker, "consume", "t", "--format", "%o\\n")
        assert (shown.returncode, len(shown.stdout.split())) == (1, gone)
        reason = (
            f"kproc: t-0: the broker cannot read the partition's files at offset {gone}; "
            "the reason is in the broker's log"
        )
        assert shown.stderr.splitlines()[-1] == reason
        assert f"another program has removed, replaced or truncated {files[1]}" in broker.log()
        verified = kproc(broker, "topic", "verify", "t", "whole", "--format", "json")
        assert [(row["topic"], row["records"]) for row in json.loads(verified.stdout)] == [("whole", 1)]
        assert verified.stderr.splitlines()[-1] == reason.replace("t-0", "partition not read to its end: t-0", 1)


def kproc(broker: ServedBroker, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_kproc(*arguments, "--bootstrap", broker.bootstrap)


def assert_named(text: str) -> None:
    assert "t-1: " in text
    assert REASON in text
    assert "Traceback" not in text


def test_topic_describe_shows_the_other_partitions(broker: ServedBroker) -> None:
    done = kproc(broker, "topic", "describe", "t")
    assert done.returncode == 0
    assert_named(done.stdout)
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert [(row[0], row[4]) for row in rows] == [("0", "1"), ("1", "-"), ("2", "1")]
    shown = json.loads(kproc(broker, "topic", "describe", "t", "--format", "json").stdout)[0]
    assert [row["end_offset"] for row in shown["partitions"]] == [1, None, 1]
    assert [row["error"] is None for row in shown["partitions"]] == [True, False, True]
    assert shown["records"] == 2


@pytest.mark.parametrize("arguments", [(), ("--from", "-1"), ("--group", "new"), ("--from", "@0")])
def test_consume_reads_the_other_partitions(broker: ServedBroker, arguments: tuple[str, ...]) -> None:
    done = kproc(broker, "consume", "t", "whole", *arguments, "--format", "%s\\n")
    assert sorted(done.stdout.split()) == ["v0", "v2", "w"]
    assert done.returncode == 1
    assert_named(done.stderr)


def test_consume_of_the_unreadable_partition_alone_fails_at_once(broker: ServedBroker) -> None:
    done = kproc(broker, "consume", "t", "--partition", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert_named(done.stderr)


def test_topic_verify_reads_the_other_partitions(broker: ServedBroker) -> None:
    done = kproc(broker, "topic", "verify", "t")
    assert done.returncode == 1
    assert len([line for line in done.stdout.splitlines() if line.startswith("t ")]) == 2
    assert_named(done.stderr)


def test_find_hanging_reads_the_other_partitions(broker: ServedBroker) -> None:
    done = kproc(broker, "txn", "find-hanging")
    assert (done.returncode, done.stdout) == (1, "no hanging transaction\n")
    assert_named(done.stderr)


def test_group_describe_shows_the_other_partitions(broker: ServedBroker) -> None:
    done = kproc(broker, "group", "describe", "g")
    assert done.returncode == 0
    assert len([line for line in done.stdout.splitlines() if line.startswith("t ")]) == 3
    assert_named(done.stdout)


def test_group_seek_moves_the_other_partitions(broker: ServedBroker) -> None:
    done = kproc(broker, "group", "seek", "g", "--to", "beginning", "--execute")
    assert done.returncode == 1
    assert_named(done.stderr)
    shown = json.loads(kproc(broker, "group", "describe", "g", "--format", "json").stdout)[0]
    assert [row["committed"] for row in shown["partitions"]] == [0, 1, 0]


def test_log_dirs_have_the_sizes_of_the_other_partitions(broker: ServedBroker) -> None:
    with RawClient(broker.bootstrap) as client:
        answer = client.call(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None})
    (directory,) = answer["results"]
    assert directory["error_code"] == 0
    sizes = {
        (topic["name"], row["partition_index"]): row["partition_size"]
        for topic in directory["topics"]
        for row in topic["partitions"]
    }
    assert [bool(sizes["t", index]) for index in range(3)] == [True, False, True]


def test_status_names_the_partition(broker: ServedBroker) -> None:
    kproc(broker, "consume", "t", "--partition", "1")
    done = kproc(broker, "status")
    assert done.returncode == 0
    assert "offline: t-1 at handler" in done.stdout


def test_unreadable_partition_leaves_others_writable(broker: ServedBroker, tmp_path: Path) -> None:
    with RawClient(broker.bootstrap) as client:
        assert client.produce("t", batch(b"more"))["error_code"] == 0
        client.delete_topic("t")
        assert client.produce("whole", batch(b"alive"))["error_code"] == 0
    assert broker.is_running()
    assert (Path(broker.data) / "t-1").read_text() == "a file"


def test_group_without_coordinator_is_named_with_the_reason(tmp_path: Path) -> None:
    """librdkafka would look for another coordinator for ever."""
    settings = {**SETTINGS, "offsets.topic.num.partitions": 2}
    with ServedBroker(tmp_path, settings=settings) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t")
            assert client.produce("t", batch(b"v"))["error_code"] == 0
        # Java's hash of "a" is odd and that of "b" even: each has a partition of its own.
        for group in ("a", "b"):
            assert kproc(broker, "consume", "t", "--group", group).stdout == "v\n"
        broker.stop()
        (tmp_path / "__consumer_offsets-1").rename(tmp_path / "elsewhere")
        (tmp_path / "__consumer_offsets-1").write_text("a file")
        broker.start()
        done = kproc(broker, "consume", "t", "--group", "a")
        assert (done.returncode, done.stdout) == (1, "")
        assert "group a has no coordinator: __consumer_offsets-1" in done.stderr
        assert REASON in done.stderr
        done = kproc(broker, "group", "describe", "a", "b")
        assert done.returncode == 1
        assert "group b" in done.stdout
        assert "a: no coordinator: __consumer_offsets-1" in done.stderr
