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
