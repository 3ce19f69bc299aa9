"""`kproc latency` against a broker."""

from __future__ import annotations

from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.command_line import Kproc, described, refused, told
from tests.support.raw import RawClient


def test_latency_of_requests_has_percentiles_and_our_own_part(kproc: Kproc) -> None:
    for request, name in (("api-versions", "ApiVersions"), ("metadata", "Metadata of the broker")):
        answer = described(kproc(f"latency --request {request} --count 20 --interval 0 --format json"))
        assert (answer["measured"], answer["samples"]) == (name, 20)
        broker, own = answer["latency_ms"], answer["client_alone_ms"]
        assert 0 < broker["min"] <= broker["p50"] <= broker["p999"] <= broker["max"] < 10_000
        assert 0 < own["p50"] < broker["max"]


def test_latency_table_names_what_was_measured(kproc: Kproc) -> None:
    lines = told(kproc("latency --count 5 --interval 0")).splitlines()
    assert ": ApiVersions, in ms, one at a time, every 0 ms for " in lines[0]
    assert lines[2].split()[:3] == ["ROUND", "TRIP", "SAMPLES"]
    assert lines[3].split()[:2] == ["broker", "5"]
    assert lines[4].startswith("client alone")


def test_latency_of_produce_appends_a_record_for_each_sample(kproc: Kproc, broker, topic) -> None:
    name = topic()
    answer = described(kproc(f"latency --produce {name} --count 5 --interval 0 --size 32 --format json"))
    assert answer["measured"] == f"Produce of 32 B to {name}-0 with acks=all"
    with RawClient(broker.bootstrap) as client:
        assert client.end_offset(name) == 5


def test_end_to_end_latency_finds_its_records_among_others(kproc: Kproc, broker, topic) -> None:
    name = topic()
    with RawClient(broker.bootstrap) as client:
        client.produce(name, encode_batch([Record(None, b"other", 1)]))
        answer = described(
            kproc(f"latency --end-to-end {name} --acks 1 --count 5 --interval 1 --format json")
        )
        assert answer["samples"] == 5
        assert client.end_offset(name) == 6


def test_latency_rejects_an_unknown_topic_and_partition(kproc: Kproc, topic) -> None:
    name = topic()
    assert refused(kproc("latency --produce nowhere")) == "kproc: nowhere: unknown topic\n"
    assert "no partition 7" in refused(kproc(f"latency --produce {name} --partition 7"))
