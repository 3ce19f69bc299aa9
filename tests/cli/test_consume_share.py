"""`kproc consume --share` with a broker: records that are given back, rejected and accepted."""

from __future__ import annotations

import json
from typing import Any

from tests.support.broker import BrokerUnderTest, run_kproc
from tests.support.topics import fresh_name
from tests.support.wait import wait_until


def test_share_member_releases_rejects_and_accepts(broker: BrokerUnderTest) -> None:
    topic, group, where = fresh_name("jobs"), fresh_name("workers"), ("-b", broker.bootstrap)
    run_kproc("topic", "create", topic, *where)
    run_kproc("config", "set", "--group", group, "share.auto.offset.reset=earliest", *where)
    run_kproc("produce", topic, *where, stdin="1\n2\n3\n")
    share = ("consume", topic, "--share", group, *where)
    done = run_kproc(*share, "--release")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n2\n3\n", "kproc: released 3 records\n")
    done = run_kproc(*share, "--reject", "-n", "1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "kproc: rejected 1 record\n")
    done = run_kproc(*share, "-n", "2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n3\n", "")


def test_description_counts_in_flight_records_and_letters(broker: BrokerUnderTest) -> None:
    topic, letters, group = fresh_name("jobs"), fresh_name("dlq.jobs"), fresh_name("workers")
    where = ("-b", broker.bootstrap)
    run_kproc("topic", "create", topic, *where)
    run_kproc("topic", "create", letters, "--config", "errors.deadletterqueue.group.enable=true", *where)
    settings = ("share.auto.offset.reset=earliest", f"errors.deadletterqueue.topic.name={letters}")
    run_kproc("config", "set", "--group", group, *settings, *where)
    run_kproc("produce", topic, *where, stdin="1\n2\n3\n")
    share = ("consume", topic, "--share", group, *where)
    assert run_kproc(*share, "--release").returncode == 0
    assert run_kproc(*share, "--reject", "-n", "1").returncode == 0

    def description() -> dict[str, Any]:
        done = run_kproc("group", "describe", group, "--format", "json", *where)
        assert (done.returncode, done.stderr) == (0, "")
        (found,) = json.loads(done.stdout)
        return dict(found)

    found = wait_until(lambda: (each := description())["dead_letters"] == 1 and each, seconds=30, what="a letter")
    (row,) = found["partitions"]
    assert (found["lag"], row["start_offset"], found["dead_letter_topic"]) == (2, 1, letters)
    assert (row["in_flight"], row["acquired"]) == (2, 0)
    # The records that the second member got without printing them count one more delivery.
    assert sum(row["deliveries"].values()) == 2
