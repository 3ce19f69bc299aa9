"""`kproc perf` against a broker."""

from __future__ import annotations

from tests.support.command_line import Kproc, described, refused, told
from tests.support.raw import RawClient
from tests.support.topics import fresh_name


def test_perf_produces_so_many_records_and_consumes_them(kproc: Kproc, broker, topic) -> None:
    name = topic(partitions=3)
    answer = described(
        kproc(f"perf produce {name} --records 1001 --connections 2 --batch-size 1000 --format json")
    )
    assert (answer["records"], answer["records_per_request"], answer["acks"]) == (1001, 10, "all")
    assert answer["latency_ms"]["p50"] > 0
    assert answer["limit"]["stage"]
    with RawClient(broker.bootstrap) as client:
        assert sum(client.end_offset(name, partition=each) for each in range(3)) == 1001
    answer = described(kproc(f"perf consume {name} --once --connections 2 --format json"))
    assert (answer["records"], answer["passes"]) == (1001, 3)


def test_perf_at_a_rate_sends_small_requests(kproc: Kproc, topic) -> None:
    shown = told(kproc(f"perf produce {topic()} -z gzip --keys 9 --rate 200 --seconds 0.5 --acks 1 --connections 1"))
    assert "1 a request, acks=1, 1 connection" in shown
    assert "\nlimit: " in shown


def test_perf_commits_transactions_of_so_many_records(kproc: Kproc, broker, topic) -> None:
    """Each of 2 connections commits transactions of 4 and 1 records. Each transaction leaves a marker."""
    name = topic()
    load = f"perf produce {name} --transaction-records 4 --size 1000 --batch-size 2000"
    answer = described(kproc(f"{load} --records 10 --connections 2 --format json"))
    assert (answer["records"], answer["records_per_request"], answer["requests"]) == (10, 2, 6)
    assert answer["records_per_transaction"] == 4
    assert answer["commits_per_s"] > 0
    assert 0 < answer["commit_ms"]["p50"] <= answer["transaction_ms"]["max"]
    with RawClient(broker.bootstrap) as client:
        assert client.end_offset(name) == 10 + 4
    shown = told(kproc(f"{load} --records 4 --connections 1"))
    assert "2 a request, acks=all, in transactions of 4, 1 connection" in shown
    assert " commits/s\nTIME " in shown
    assert "--acks 1: a transaction needs --acks all" in refused(kproc(f"{load} --acks 1"), code=2)


def test_perf_aborts_the_transaction_that_a_stop_interrupts(kproc: Kproc, broker, topic) -> None:
    name = topic()
    problem = refused(kproc(f"perf produce {name} --transaction-records 100000000 --seconds 0.2 --connections 1"))
    assert "no transaction of 100000000 records was committed in 0." in problem
    with RawClient(broker.bootstrap) as client:
        assert client.end_offset(name) > 1
    # An open transaction would hold consumers back until its timeout.
    assert described(kproc("txn list --state Ongoing --pattern kproc-perf-.* --format json")) == []


def test_perf_creates_a_topic_only_when_told(kproc: Kproc) -> None:
    name = fresh_name("perf")
    assert f"{name}: unknown topic; kproc topic create {name}" in refused(kproc(f"perf produce {name}"))
    assert "unknown topic" in refused(kproc(f"perf consume {name}"))
    answer = described(
        kproc(f"perf produce {name} --create --partitions 2 --records 5 --acks 0 --format json")
    )
    assert (answer["records"], answer["latency_ms"]) == (5, None)


def test_perf_consume_of_an_empty_topic_is_refused(kproc: Kproc, topic) -> None:
    name = topic()
    assert f"{name} has no records; kproc perf produce {name}" in refused(kproc(f"perf consume {name}"))
