"""A topic that is deleted and made anew under its name must not inherit what was noted of the old one.

The checkpoint files name partitions by topic. They are rewritten once a minute, so a crash soon after the
second creation leaves files that speak of the first topic.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kproc.storage.checkpoints import read_partition_metadata
from kproc.storage.fs import OsFs
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.raw import Closed, RawClient, batch, create_topics_fields, values_of
from tests.support.status import processes, wait_replaced
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

REQUEST_TIMED_OUT = 7
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
def test_an_owner_that_was_stopped_when_its_topic_was_made_anew_takes_nothing_from_the_new_one(
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
                fields = {"topic_names": ["t"], "timeout": 5_000}
                assert admin.call(ApiKey.DELETE_TOPICS, 4, fields)["responses"][0]["error_code"] == 0
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
    """Whether a record was acknowledged; a connection may end with the Handler that is being replaced."""
    try:
        with RawClient(bootstrap) as client:
            return bool(
                client.produce("t", batch(b"precious"), partition=partition, acks=-1)["error_code"] == 0
            )
    except (Closed, OSError):
        return False
