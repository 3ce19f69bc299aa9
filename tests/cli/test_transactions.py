"""`kproc txn` against a running broker."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from kproc.cli import perf, produce
from kproc.common.clock import SystemClock
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import TRANSACTIONAL
from tests.support.broker import ServedBroker
from tests.support.command_line import Kproc, call_kproc, refused
from tests.support.raw import RawClient, batch, produce_fields
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.long, pytest.mark.transports("process")]

@dataclass
class Opened:
    """An open transaction over two partitions of a topic."""

    id: str
    topic: str
    producer: Producer | None  # Its connections are closed when nobody holds it any more.


@pytest.fixture
def opened(broker, topic) -> Iterator[Opened]:
    """An open transaction."""
    name, transactional_id = topic(partitions=2), f"txn-{uuid.uuid4()}"
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 50_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce(name, b"v", partition=partition)
    assert producer.flush(PATIENCE_SECONDS) == 0
    opened = Opened(transactional_id, name, producer)
    del producer
    yield opened
    assert opened.producer is not None
    with suppress(KafkaException):
        opened.producer.abort_transaction(10)
    opened.producer = None
    gc.collect()


def rows(answer: subprocess.CompletedProcess[str]):
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_open_transaction_is_listed_and_described(kproc: Kproc, opened: Opened) -> None:
    name = opened.id
    (row,) = rows(kproc(f"txn list --pattern {name} --format json"))
    assert (row["transactional_id"], row["state"]) == (name, "Ongoing")
    assert rows(kproc(f"txn list --pattern {name} --state empty --format json")) == []
    assert rows(kproc(f"txn list --pattern {name} --longer-than 3600 --format json")) == []
    (described,) = rows(kproc(f"txn describe {name} --format json"))
    assert described["state"] == "Ongoing"
    assert described["timeout_ms"] == 50_000
    assert described["producer_id"] == row["producer_id"]
    assert 0 <= described["age_s"] < 50
    assert described["partitions"] == [{"topic": opened.topic, "partition": number} for number in (0, 1)]
    table = kproc(f"txn describe {name}").stdout
    assert "state Ongoing" in table
    assert kproc(f"txn list --pattern {name}").stdout.endswith("\n\n1 Ongoing\n")
    wait_until(lambda: "Ongoing" in kproc("status").stdout.partition("ROLE")[0])
    assert "timeout 50 s" in table
    assert opened.producer is not None
    opened.producer.commit_transaction(30)

    def is_complete() -> bool:
        (state,) = rows(kproc(f"txn describe {name} --format json"))
        assert (state["age_s"], state["partitions"]) == (None, [])
        return bool(state["state"] == "CompleteCommit")

    wait_until(is_complete, what="the markers are written")


def test_txn_abort_by_id_fences_its_producer(kproc: Kproc, opened: Opened) -> None:
    name = opened.id
    assert kproc(f"txn abort {name} --yes").stdout == f"aborted the transaction of {name}\n"
    (described,) = rows(kproc(f"txn describe {name} --format json"))
    assert described["state"] == "Empty", "as a new producer of that id finds it"
    assert described["timeout_ms"] == 50_000, "it is still its own"
    assert opened.producer is not None
    with pytest.raises(KafkaException, match=r"(?i)fenced|epoch"):
        opened.producer.commit_transaction(30)


def test_unknown_ids_and_half_a_place_are_refused(kproc: Kproc) -> None:
    assert "no-such: unknown transactional id" in refused(kproc("txn describe no-such"))
    assert "no-such: unknown transactional id" in refused(kproc("txn abort no-such --yes"))
    assert "name a transactional id, or --topic" in refused(kproc("txn abort"), code=2)
    assert "--start-offset" in refused(kproc("txn abort --topic t"), code=2)
    assert "--pattern '['" in refused(kproc("txn list --pattern ["), code=2)
    assert "expected one of Empty" in refused(kproc("txn list --state odd"), code=2)


def test_produce_transactional_commits_all_lines_or_none(kproc: Kproc, broker, topic, capsys) -> None:
    name = topic(partitions=1)

    def produce(stdin: str) -> subprocess.CompletedProcess[str]:
        words = ["produce", name, "--transactional-id", f"cli-{name}", "--json", "-v"]
        return call_kproc(capsys, *words, "--bootstrap", broker.bootstrap, stdin=stdin)

    def committed() -> list[str]:
        return kproc(f"consume {name} --isolation read-committed -f %s|").stdout.split("|")[:-1]

    done = produce('{"value": "one"}\n{"value": "two"}\n')
    assert (done.returncode, done.stderr) == (0, f"kproc: sent 2 records to {name}\n")
    assert "the transaction was aborted" in refused(produce('{"value": "three"}\nno json\n'))
    assert committed() == ["one", "two"]
    assert "needs --acks all" in refused(kproc(f"produce {name} --transactional-id i --acks 1"), code=2)


@pytest.mark.own_broker
def test_hanging_transaction_is_found_and_aborted(tmp_path: Path, capsys) -> None:
    settings = {"transaction.partition.verification.enable": False}
    with ServedBroker(tmp_path / "data", settings=settings) as served, RawClient(served.bootstrap) as client:

        def kproc(command: str) -> subprocess.CompletedProcess[str]:
            return call_kproc(capsys, *command.split(), "--bootstrap", served.bootstrap)

        client.create_topic("t", partitions=1)
        producer = client.call(
            ApiKey.INIT_PRODUCER_ID, 1, {"transactional_id": None, "transaction_timeout": 0}
        )
        records = batch(
            b"v",
            timestamp_ms=SystemClock().wall_ms(),
            producer_id=producer["producer_id"],
            producer_epoch=0,
            base_sequence=0,
            flags=TRANSACTIONAL,
        )
        fields = produce_fields([("t", bytes(16), [(0, records)])]) | {"transactional_id": "nobody"}
        (row,) = client.call(ApiKey.PRODUCE, 7, fields)["responses"][0]["partition_responses"]
        assert row["error_code"] == 0
        assert kproc("txn find-hanging --longer-than 60").stdout == "no hanging transaction\n"
        found = kproc("txn find-hanging --longer-than 0 --format json")
        assert found.returncode == 1
        (hanging,) = json.loads(found.stdout)
        assert (hanging["topic"], hanging["partition"], hanging["start_offset"]) == ("t", 0, 0)
        assert "no open transaction begins at offset 7" in refused(
            kproc("txn abort --topic t --partition 0 --start-offset 7 --yes")
        )
        done = kproc("txn abort --topic t --partition 0 --start-offset 0 --yes")
        assert done.stdout == "aborted the transaction at t-0 from offset 0 on\n"
        assert kproc("txn find-hanging --longer-than 0").stdout == "no hanging transaction\n"


def test_sigterm_aborts_the_transaction_of_produce(
    kproc: Kproc, broker, topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open transaction holds readers of committed records back until its timeout."""
    name, transactional_id = topic(), f"txn-{uuid.uuid4()}"

    def state() -> str:
        with RawClient(broker.bootstrap) as client:
            answer = client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [transactional_id]})
        return str(answer["transaction_states"][0]["transaction_state"])

    def lines(_stream: object) -> Iterator[bytes]:
        yield b"a"
        wait_until(lambda: state() == "Ongoing", what="the transaction is open")
        signal.raise_signal(signal.SIGTERM)

    def fail(*_: object) -> None:
        raise AssertionError("SIGTERM is not handled")

    monkeypatch.setattr(produce, "_lines", lines)
    monkeypatch.setattr(perf, "run_load", lambda *_: signal.raise_signal(signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, fail)
    try:
        done = kproc(f"produce {name} --transactional-id {transactional_id}")
        assert (done.returncode, done.stdout, done.stderr) == (143, "", "")
        wait_until(lambda: state() == "CompleteAbort", what="the transaction is aborted")
        assert kproc(f"perf produce {name}").returncode == 143
    finally:
        signal.signal(signal.SIGTERM, before)
