"""`kproc consume` and batches that cannot be read."""

from __future__ import annotations

import pytest

from kproc.common.clock import SystemClock
from tests.support import hostile
from tests.support.broker import BrokerUnderTest, run_kproc
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
