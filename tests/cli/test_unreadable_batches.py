"""Batches that consumers cannot read: `kproc consume` names and skips them, `kproc topic verify` finds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kproc.broker.storage.fs import OsFs
from kproc.broker.storage.log_dump import verify_partition
from kproc.cli.batch_check import check_batches
from kproc.common.clock import SystemClock
from tests.support import hostile
from tests.support.broker import BrokerUnderTest, run_kproc
from tests.support.logs import LogRig, append_one
from tests.support.logs import batch as logged
from tests.support.raw import RawClient, batch
from tests.support.topics import fresh_name

PILL = hostile.record(b"\0\0\0\x7e\2v\0")
WHY = "the batch at offsets 1 to 1 cannot be read: last field runs past the end of its record"


@pytest.fixture
def topic(broker: BrokerUnderTest) -> str:
    """A topic with a batch between two good ones whose only record has a key that runs past its end."""
    name = fresh_name("pill")
    with RawClient(broker.bootstrap) as client:
        client.create_topic(name)
        for each in (
            batch(b"one"),
            bytes(hostile.sealed(PILL, now_ms=SystemClock().wall_ms())),
            batch(b"two"),
        ):
            assert client.produce(name, each)["error_code"] == 0
    return name


def test_consume_names_unreadable_batch_and_ends(broker: BrokerUnderTest, topic: str) -> None:
    done = run_kproc("consume", topic, "-b", broker.bootstrap)
    assert (done.returncode, done.stdout) == (1, "one\n")
    assert done.stderr == f"kproc: {topic}-0: {WHY}; skip it with --skip-unreadable\n"


def test_consume_skips_unreadable_batch(broker: BrokerUnderTest, topic: str) -> None:
    done = run_kproc("consume", topic, "--skip-unreadable", "-b", broker.bootstrap)
    assert (done.returncode, done.stdout) == (0, "one\ntwo\n")
    assert done.stderr == f"kproc: {topic}-0: {WHY}; skipped\n"


def test_consume_in_a_group_commits_behind_skipped_batch(broker: BrokerUnderTest, topic: str) -> None:
    group = ("--group", fresh_name("g"), "-b", broker.bootstrap)
    assert run_kproc("consume", topic, "--skip-unreadable", *group).stdout == "one\ntwo\n"
    again = run_kproc("consume", topic, *group)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_verify_names_unreadable_batch(broker: BrokerUnderTest, topic: str) -> None:
    done = run_kproc("topic", "verify", topic, "--format", "json", "-b", broker.bootstrap)
    assert done.returncode == 1
    assert done.stderr == f"kproc: batches that cannot be read: {topic}-0\n"
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
    done = run_kproc("topic", "verify", name, "-b", broker.bootstrap)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].split() == [name, "1", "5", "5", "0"]


DAMAGED = {
    "damaged": (lambda good: good[:-1] + b"!", "its CRC-32C does not match"),
    "another format": (lambda good: good[:16] + b"\1" + good[17:], "message format 1"),
    "no length": (lambda good: good[:8] + bytes(4) + good[12:], "batch length 0 is invalid"),
}


@pytest.mark.parametrize("story", DAMAGED)
def test_check_batches_names_what_is_wrong(story: str) -> None:
    change, why = DAMAGED[story]
    good = batch(b"x")
    found = list(check_batches(good + change(good), 0))
    assert [each.problem for each in found] == [None, why]


def test_check_batches_leaves_out_the_cut_last_batch() -> None:
    good = batch(b"x")
    assert len(list(check_batches(good + good[:-1], 0))) == 1
    assert list(check_batches(good[:30], 0)) == []


def test_check_batches_reads_a_bomb_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kproc.wire.compression.INFLATED_BYTES_FREE", 10_000)
    monkeypatch.setattr("kproc.wire.compression.INFLATION_RATIO_MAX", 10)
    (found,) = check_batches(bytes(hostile.bomb(4, 100_000)), 0)
    assert found.problem == "records decompress to more than 10000 bytes"


def test_verify_of_files_names_unreadable_batch(tmp_path: Path) -> None:
    log = LogRig(tmp_path / "t-0").open()
    for each in (logged("one"), hostile.sealed(PILL)):
        assert append_one(log, each).error_code == 0
    log.close()
    batches, _, problems = verify_partition(OsFs(), tmp_path / "t-0")
    assert (batches, len(problems)) == (2, 1)
    assert "(offset 1): INVALID_RECORD: last field runs past the end" in problems[0].what
