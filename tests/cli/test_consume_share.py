"""`kproc consume --share` with a broker: records that are given back, rejected and accepted."""

from __future__ import annotations

from tests.support.broker import BrokerUnderTest, run_kproc
from tests.support.topics import fresh_name


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
