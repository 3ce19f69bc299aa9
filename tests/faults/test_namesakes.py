"""A topic that is deleted and created again under its name must not inherit what was known of the old one.

Kafka's checkpoint files name partitions by topic, and are rewritten once a minute. A crash soon after the creation
leaves files that speak of the first topic. kproc's own files beside them have topic ids.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from kproc.broker.storage.checkpoints import read_partition_metadata
from kproc.broker.storage.os_fs import OsFs
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker, run_kproc
from tests.support.raw import Closed, RawClient, batch, create_topics_fields, values_of
from tests.support.status import processes, wait_replaced
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

REQUEST_TIMED_OUT = 7
STORAGE_ERROR = 56
CHECKPOINTS = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint")
EACH_SECOND = {
    "num.io.threads": 1,
    "num.network.threads": 1,
    "log.flush.offset.checkpoint.interval.ms": 1_000,
    "log.flush.start.offset.checkpoint.interval.ms": 1_000,
}



def make_anew(client: RawClient) -> None:
    """Delete `t`, create it again, write one record and have it synced."""
    client.delete_topic("t")
    client.create_topic("t")
    assert client.produce("t", batch(b"precious"), acks=-1)["error_code"] == 0


def kept(bootstrap: str) -> list[tuple[int, bytes | None]]:
    with RawClient(bootstrap) as client:
        return values_of(client.fetch("t", 0)["records"])


def wait_checkpoint(data: Path) -> None:
    """The cleaner writes its files once more."""
    path = data / CHECKPOINTS[1]
    before = path.stat().st_ino
    wait_until(lambda: path.stat().st_ino != before, what="the checkpoints are written")


@pytest.mark.parametrize(("ends", "crashes"), [("handler", 1), ("broker", 2), ("stop", 1)])
def test_new_topic_keeps_its_records_after_an_idle_start(
    tmp_path: Path, transport: str, ends: str, crashes: int
) -> None:
    """Nobody touches the partition after the crash, and the cleaner writes what it inherited with a new time."""
    data = tmp_path / "data"
    with ServedBroker(data, transport=transport) as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("t")
        assert client.produce("t", batch(*[b"old"] * 100), acks=-1)["error_code"] == 0
        client.delete_records("t", 60)
    broker = ServedBroker(data, transport=transport).start()
    try:
        with RawClient(broker.bootstrap) as client:
            make_anew(client)
    finally:
        broker.stop(signal.SIGKILL)
    for _ in range(crashes - 1):
        broker = ServedBroker(data, transport=transport, settings=EACH_SECOND).start()
        try:
            wait_checkpoint(data)
        finally:
            broker.stop(signal.SIGKILL)
    broker = ServedBroker(data, transport=transport, settings=EACH_SECOND).start()
    try:
        wait_checkpoint(data)
        if ends == "handler":
            pid = processes(broker.bootstrap)["handler", 0]
            os.kill(pid, signal.SIGKILL)
            wait_replaced(broker.bootstrap, ("handler", 0), pid)
            wait_until(lambda: kept(broker.bootstrap) == [(0, b"precious")], what="the record is still there")
    finally:
        broker.stop(signal.SIGKILL if ends == "broker" else signal.SIGTERM)
    with ServedBroker(data, transport=transport) as broker:
        assert kept(broker.bootstrap) == [(0, b"precious")]


def test_deleted_records_stay_deleted_after_clock_steps_back(tmp_path: Path, transport: str) -> None:
    """The files of the partition seem to be younger than the checkpoints."""
    data = tmp_path / "data"
    with ServedBroker(data, transport=transport) as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("t")
        assert client.produce("t", batch(b"a", b"b", b"c"))["error_code"] == 0
        client.delete_records("t", 2)
    later = time.time() + 86_400
    for path in (data / "t-0").iterdir():
        os.utime(path, (later, later))
    with ServedBroker(data, transport=transport) as broker, RawClient(broker.bootstrap) as client:
        assert client.list_offset("t", -2)["offset"] == 2
        assert client.end_offset("t") == 3


@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGKILL])
def test_deleted_records_stay_deleted_after_an_upgrade(
    tmp_path: Path, transport: str, ends: signal.Signals
) -> None:
    """An older kproc has written no topic ids: the partition's leader epochs confirm its log start."""
    data = tmp_path / "data"
    broker = ServedBroker(data, transport=transport).start()
    try:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t")
            assert client.produce("t", batch(b"a", b"b", b"c"), acks=-1)["error_code"] == 0
            client.delete_records("t", 2)
    finally:
        broker.stop(ends)
    for path in data.glob("*.by-id"):
        path.unlink()
    for _ in range(2):  # The second start reads what the first one wrote.
        with ServedBroker(data, transport=transport, settings=EACH_SECOND) as broker:
            wait_checkpoint(data)
            with RawClient(broker.bootstrap) as client:
                assert client.list_offset("t", -2)["offset"] == 2
                assert values_of(client.fetch("t", 2)["records"])[-1] == (2, b"c")


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        ("empty", "has 0 bytes, but"),
        ("removed", "no segment from offset 0 on, but one was stored"),
        ("directory", "records below offset 2 were stored"),
    ],
)
def test_log_below_its_recovery_point_is_rejected(
    tmp_path: Path, transport: str, harm: str, reason: str
) -> None:
    """Files of a partition are lost after a clean stop. The others are served, and status names it."""
    data = tmp_path / "data"
    with ServedBroker(data, transport=transport) as broker, RawClient(broker.bootstrap) as client:
        for name in ("t", "u"):
            client.create_topic(name)
            assert client.produce(name, batch(b"a", b"b"), acks=-1)["error_code"] == 0
    newest = data / "t-0" / f"{0:020d}.log"
    if harm == "empty":
        os.truncate(newest, 0)
    elif harm == "removed":
        newest.unlink()
    else:
        shutil.rmtree(data / "t-0")
    with ServedBroker(data, transport=transport) as broker, RawClient(broker.bootstrap) as client:
        assert client.list_offset("t", -1)["error_code"] == STORAGE_ERROR
        assert client.produce("t", batch(b"c"), acks=-1)["error_code"] == STORAGE_ERROR
        assert client.end_offset("u") == 2

        def reported() -> bool:
            shown = run_kproc("status", "--json", "--bootstrap", broker.bootstrap).stdout
            return reason in shown

        wait_until(reported, what="the status names the partition")


@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGKILL])
def test_log_without_first_segment_is_rejected_until_import(
    tmp_path: Path, transport: str, ends: signal.Signals
) -> None:
    """MOVING.md says how to accept the loss."""
    data = tmp_path / "data"
    broker = ServedBroker(data, transport=transport).start()
    try:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t", configs={"segment.bytes": "1048576"})
            for _ in range(5):
                assert client.produce("t", batch(bytes(400_000)), acks=-1)["error_code"] == 0
    finally:
        broker.stop(ends)
    (data / "t-0" / f"{0:020d}.log").unlink()
    with ServedBroker(data, transport=transport) as broker, RawClient(broker.bootstrap) as client:
        assert client.list_offset("t", -2)["error_code"] == STORAGE_ERROR
        assert client.produce("t", batch(b"new"), acks=-1)["error_code"] == STORAGE_ERROR
    assert "begins at offset 2, but its recorded start is 0: files are missing" in broker.last_log
    shutil.move(data / "t-0", tmp_path / "t-0")
    assert run_kproc("import-log", str(tmp_path / "t-0"), "--data", str(data)).returncode == 0
    for _ in range(2):
        with ServedBroker(data, transport=transport) as broker, RawClient(broker.bootstrap) as client:
            assert (client.list_offset("t", -2)["offset"], client.end_offset("t")) == (2, 5)


PARTITIONS = 8
TWO_HANDLERS = {"num.io.threads": 2, "num.network.threads": 1, "kproc.control.listener": "127.0.0.1:0"}


def produce_where_somebody_answers(bootstrap: str) -> set[int]:
    """A record to every partition, by connections of both homes: where it was acknowledged."""
    found: set[int] = set()
    for partition in [*range(PARTITIONS), *range(PARTITIONS)]:
        with RawClient(bootstrap, timeout=0.5) as client:
            try:
                row = client.produce("t", batch(b"early"), partition=partition, acks=-1)
            except (TimeoutError, Closed):
                continue
            found |= set() if row["error_code"] else {partition}
    return found


@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
def test_stopped_owner_of_deleted_topic_spares_recreated_topic(
    tmp_path: Path, transport: str, *, dies: bool
) -> None:
    data = tmp_path / "data"
    with ServedBroker(data, transport=transport, settings=TWO_HANDLERS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t", partitions=PARTITIONS)
            for partition in range(PARTITIONS):
                assert client.produce("t", batch(b"old"), partition=partition, acks=-1)["error_code"] == 0
        pid, early = processes(broker.control)["handler", 1], set[int]()
        with RawClient(broker.control) as admin, RawClient(broker.control) as impatient:
            os.kill(pid, signal.SIGSTOP)
            try:
                admin.delete_topic("t")
                wanted = create_topics_fields("t", partitions=PARTITIONS)
                answer = impatient.call(ApiKey.CREATE_TOPICS, 7, wanted)["topics"][0]
                if answer["error_code"] == 0:  # Whoever owns the new one's partitions is given them at once.
                    early = produce_where_somebody_answers(broker.bootstrap)
                admin.send(ApiKey.CREATE_TOPICS, 7, wanted)
            finally:
                os.kill(pid, signal.SIGKILL if dies else signal.SIGCONT)
            _, made = admin.receive(ApiKey.CREATE_TOPICS, 7)
        with RawClient(broker.bootstrap) as client:
            for partition in range(PARTITIONS):
                wait_until(
                    lambda at=partition: written(broker.bootstrap, at), what="the new topic takes records"
                )
            topic_id = client.topic_id("t")
        for partition in range(PARTITIONS):
            assert read_partition_metadata(OsFs(), data / f"t-{partition}") == topic_id
    with (
        ServedBroker(data, transport=transport, settings=TWO_HANDLERS) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        for partition in range(PARTITIONS):
            found = values_of(client.fetch("t", 0, partition=partition)["records"])
            expected = {b"precious", b"early"} if partition in early else {b"precious"}
            assert expected <= {value for _, value in found}, f"partition {partition}"
            assert b"old" not in {value for _, value in found}
    assert (answer["error_code"], made["topics"][0]["error_code"]) == (REQUEST_TIMED_OUT, 0)


def written(bootstrap: str, partition: int) -> bool:
    """Return True if a record was acknowledged; a connection may end with the Handler that is being replaced."""
    try:
        with RawClient(bootstrap) as client:
            return bool(
                client.produce("t", batch(b"precious"), partition=partition, acks=-1)["error_code"] == 0
            )
    except (Closed, OSError):
        return False
