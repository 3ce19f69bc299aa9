"""Transactions in a topic as users see them: `kproc consume --isolation`, `topic describe`, `dump-log`, Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kproc.broker.storage.log import LastStop, Log, LogConfig, LogIdentity
from kproc.broker.storage.os_fs import OsFs
from kproc.common.clock import SystemClock
from kproc.common.reading import LATEST
from kproc.spark import brokers
from kproc.spark.brokers import cluster_of
from kproc.spark.offsets import Range, TopicPartition
from kproc.spark.options import parse_source
from kproc.spark.task import read_range
from tests.support.broker import ServedBroker
from tests.support.command_line import call_kproc
from tests.support.logs import append_one, batch
from tests.support.raw import RawClient
from tests.support.transactions import in_transaction, marker, put

pytestmark = [pytest.mark.long, pytest.mark.transports("process")]

EVERYTHING = ["one", "aborted", "two", "committed", "open", "three"]
COMMITTED = ["one", "two", "committed"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def served(data: Path) -> Iterator[ServedBroker]:
    """A broker whose topic `t` has two transactions that have ended, and one that is open."""
    with ServedBroker(data) as broker, RawClient(broker.bootstrap) as client:
        topic_id = client.create_topic("t")
        assert client.produce("t", bytes(batch("one")))["error_code"] == 0
    log = Log.open(
        LogIdentity(data / "t-0", "t", topic_id, 0), LogConfig(), leader_epoch=0, clock=SystemClock(), fs=OsFs(),
        last=LastStop(clean=True),
    )  # fmt: skip
    assert log.state.end_offset == 1
    put(log, in_transaction(7, "aborted"))
    append_one(log, batch("two"))
    put(log, marker(7, commit=False))
    put(log, in_transaction(8, "committed"))
    put(log, marker(8, commit=True))
    put(log, in_transaction(9, "open", epoch=4))
    append_one(log, batch("three"))
    log.close()
    with ServedBroker(data) as broker:
        yield broker


@pytest.fixture
def kproc(served: ServedBroker, capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    def call(command: str) -> str:
        done = call_kproc(capsys, *command.split(), "--bootstrap", served.bootstrap)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return call


@pytest.mark.parametrize(
    ("option", "shown"),
    [
        ("", EVERYTHING),
        ("--isolation read-uncommitted", EVERYTHING),
        ("--isolation read-committed", COMMITTED),
        ("--isolation read-committed --from -1", []),  # The marker of a transaction.
        ("--isolation read-committed --from -2", ["committed"]),
    ],
)
def test_consume_obeys_isolation_option(
    kproc: Callable[[str], str], option: str, shown: list[str]
) -> None:
    assert kproc(f"consume t {option}").split() == shown


def test_topic_describe_shows_lso_and_open_transactions(
    kproc: Callable[[str], str],
) -> None:
    [row] = json.loads(kproc("topic describe t -f json"))[0]["partitions"]
    assert (row["start_offset"], row["end_offset"], row["last_stable_offset"]) == (0, 8, 6)
    assert row["open_transactions"] == [{"producer_id": 9, "producer_epoch": 4, "start_offset": 6}]
    header, cells = [line.split() for line in kproc("topic describe t").splitlines()[-2:]]
    assert header[4:7] == ["END", "STABLE", "TXNS"]
    assert cells[4:7] == ["8", "6", "1"]


@pytest.fixture
def _no_cluster_left() -> Iterator[None]:
    """Connections are a process's, for all its tasks."""
    yield
    for cluster in brokers._clusters.values():
        cluster.close()
    brokers._clusters.clear()


@pytest.mark.usefixtures("_no_cluster_left")
@pytest.mark.parametrize("where", ["none", "auto"], ids=["fetched", "from files"])
@pytest.mark.parametrize(("isolation", "shown"), [("uncommitted", EVERYTHING), ("committed", COMMITTED)])
def test_spark_source_obeys_isolation_level(
    served: ServedBroker, where: str, isolation: str, shown: list[str]
) -> None:
    given = {
        "kafka.bootstrap.servers": served.bootstrap,
        "subscribe": "t",
        "kafka.isolation.level": f"read_{isolation}",
        "kproc.data.dir": where,
    }
    options = parse_source(given, is_stream=False)
    partition = TopicPartition("t", 0)
    cluster = cluster_of(options.bootstrap, options.connecting)
    end = cluster.list_offsets({partition: LATEST}, isolation=options.isolation)[partition]
    assert end == (6 if isolation == "committed" else 8)
    tables = read_range(options, ["value"], Range(partition, 0, end))
    assert [value.decode() for each in tables for value in each.column(0).to_pylist()] == shown


def test_dump_log_shows_transactional_batches_and_markers(
    served: ServedBroker, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = call_kproc(capsys, "dump-log", str(data / "t-0"), "-f", "json")
    entries = json.loads(done.stdout)[0]["entries"]
    assert [each["kind"] for each in entries] == [
        "data", "txn", "data", "abort", "txn", "commit", "txn", "data",
    ]  # fmt: skip
    done = call_kproc(capsys, "dump-log", str(data / "t-0"))
    assert [line.split()[-2] for line in done.stdout.splitlines()[1:4]] == ["KIND", "data", "txn"]
