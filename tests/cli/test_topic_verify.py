"""`kproc topic verify` names unreadable batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from kproc.broker.storage.log_dump import verify_partition
from kproc.broker.storage.os_fs import OsFs
from kproc.common.clock import SystemClock
from tests.support import hostile
from tests.support.broker import BrokerUnderTest, run_kproc
from tests.support.command_line import run_here
from tests.support.groups import find_coordinator
from tests.support.logs import LogRig, append_one
from tests.support.logs import batch as logged
from tests.support.raw import RawClient, batch
from tests.support.topics import fresh_name

PILL = hostile.record(b"\0\0\0\x7e\2v\0")


def test_verify_names_unreadable_batch(broker: BrokerUnderTest, damaged_topic: str) -> None:
    done = run_kproc("topic", "verify", damaged_topic, "--format", "json", "-b", broker.bootstrap)
    assert done.returncode == 1
    assert done.stderr == f"kproc: batches that cannot be read: {damaged_topic}-0\n"
    (row,) = json.loads(done.stdout)
    assert (row["batches"], row["records"], row["unreadable"]) == (3, 3, 1)
    why = "last field runs past the end of its record"
    assert row["first"] == [{"offset": 1, "next_offset": 2, "problem": why}]


def test_verify_of_readable_topic_succeeds(broker: BrokerUnderTest) -> None:
    name = fresh_name("fine")
    with RawClient(broker.bootstrap) as client:
        client.create_topic(name, partitions=2)
        for codec in range(5):
            assert client.produce(name, batch(b"a" * 1000, codec=codec), partition=1)["error_code"] == 0
    done = run_kproc("topic", "verify", f"{name[:-1]}[{name[-1]}]", "-b", broker.bootstrap)
    assert (done.returncode, done.stderr) == (0, "")
    *_, last, total = done.stdout.splitlines()
    assert last.split() == [name, "1", "5", "5", "0"]
    assert total == "2 partitions, 5 records, unreadable batches: 0"


def test_verify_without_names_reads_all_topics(start_broker: Callable[..., BrokerUnderTest]) -> None:
    """The shared broker has the topics of hundreds of other tests."""
    broker = start_broker()
    with RawClient(broker.bootstrap) as client:
        for name in ("fine", "pill"):
            client.create_topic(name)
        find_coordinator(client, "g")
        assert client.produce("pill", bytes(hostile.sealed(PILL, now_ms=SystemClock().wall_ms())))["error_code"] == 0
    done = run_here("topic", "verify", "-b", broker.bootstrap)
    assert done.returncode == 1
    assert "pill-0" in done.stderr
    _, *rows, left_out, count, _ = done.stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["fine", "pill"]
    assert left_out == "(50 empty partitions of internal topics not shown)"
    assert count.startswith("52 partitions, ")
    shown = run_here("topic", "verify", "__consumer_offsets", "-b", broker.bootstrap).stdout
    assert len(shown.splitlines()) == 52, "named topics are shown whole"
    assert run_here("topic", "verify", "-p", "0", "-b", broker.bootstrap).returncode == 2


def test_verify_of_files_names_unreadable_batch(tmp_path: Path) -> None:
    log = LogRig(tmp_path / "t-0").open()
    for each in (logged("one"), hostile.sealed(PILL)):
        assert append_one(log, each).error_code == 0
    log.close()
    batches, _, problems = verify_partition(OsFs(), tmp_path / "t-0")
    assert (batches, len(problems)) == (2, 1)
    assert "(offset 1): INVALID_RECORD: last field runs past the end" in problems[0].what
