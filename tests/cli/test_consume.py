"""`kproc consume` and batches that cannot be read."""

from __future__ import annotations

from tests.support.broker import BrokerUnderTest, run_kproc
from tests.support.topics import fresh_name

WHY = "the batch at offsets 1 to 1 cannot be read: last field runs past the end of its record"


def test_consume_names_unreadable_batch_and_ends(broker: BrokerUnderTest, damaged_topic: str) -> None:
    done = run_kproc("consume", damaged_topic, "-b", broker.bootstrap)
    assert (done.returncode, done.stdout) == (1, "one\n")
    assert done.stderr == f"kproc: {damaged_topic}-0: {WHY}; skip it with --skip-unreadable\n"


def test_consume_skips_unreadable_batch(broker: BrokerUnderTest, damaged_topic: str) -> None:
    done = run_kproc("consume", damaged_topic, "--skip-unreadable", "-b", broker.bootstrap)
    assert (done.returncode, done.stdout) == (0, "one\ntwo\n")
    assert done.stderr == f"kproc: {damaged_topic}-0: {WHY}; skipped\n"


def test_consume_in_a_group_commits_behind_skipped_batch(broker: BrokerUnderTest, damaged_topic: str) -> None:
    group = ("--group", fresh_name("g"), "-b", broker.bootstrap)
    assert run_kproc("consume", damaged_topic, "--skip-unreadable", *group).stdout == "one\ntwo\n"
    again = run_kproc("consume", damaged_topic, *group)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
