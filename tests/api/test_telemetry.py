"""Telemetry: what is written to `__kproc_telemetry`, when, and what is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.broker.cluster.internal_topics import TELEMETRY_TOPIC
from kproc.broker.metrics.requests import TIMINGS
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.raw import RawClient, batch, fetch_fields
from tests.support.telemetry import Line, lines, switch
from tests.support.wait import pause, wait_until

pytestmark = pytest.mark.own_broker

Start = Callable[..., BrokerUnderTest]
SETTINGS = {
    "num.io.threads": 2,
    "num.network.threads": 1,
    "kproc.telemetry.interval.ms": 200,
    "kproc.telemetry.requests.per.second": 100,
}


def produces(found: list[Line]) -> int:
    """How many Produce requests the metrics tell of."""
    return sum(line["requests"] for line in found if line["kind"] == "api" and line["api"] == "Produce")


@pytest.mark.long
@pytest.mark.every_transport
def test_switched_on_while_the_broker_runs_it_tells_what_was_done(start_broker: Start) -> None:
    broker = start_broker(SETTINGS)
    with RawClient(broker.bootstrap) as client, RawClient(broker.bootstrap) as reader:
        client.create_topic("t", partitions=2)
        assert client.describe_topic(TELEMETRY_TOPIC)["error_code"], "off by default"
        switch(client, kproc_telemetry="all")
        # The broker's own check that it is ready was a Produce, too, and may be told of in the first interval.
        intervals = lambda: sum(line["kind"] == "broker" for line in lines(reader))  # noqa: E731
        wait_until(lambda: intervals() >= 3, what="it has begun")
        before = produces(lines(reader))
        sent = [batch(*[b"v"] * count) for count in range(1, 21)]
        for number, records in enumerate(sent):
            assert client.produce("t", records, partition=number % 2)["error_code"] == 0
        got = sum(len(client.fetch("t", 0, partition=index)["records"]) for index in (0, 1))
        assert got == sum(map(len, sent))

        def told() -> bool:
            rows = [line for line in lines(reader) if line["kind"] == "partition"]
            assert {(row["topic"], row["partition"]) for row in rows} == {("t", 0), ("t", 1)}
            assert sum(row["records_in"] for row in rows) == sum(range(1, 21))
            assert sum(row["bytes_in"] for row in rows) == sum(row["bytes_out"] for row in rows) == got
            assert sum(row["fetches"] for row in rows) == 2
            assert produces(lines(reader)) - before == len(sent)
            return any(line["kind"] == "request" and line["api"] == "Produce" for line in lines(reader))

        wait_until(told, what="all of it is told, exactly")
        found = lines(reader)
        assert len({(x["role"], x["index"], x["number"]) for x in found}) == len(found), "and once"
        rows = [x for x in found if x["kind"] == "api" and x["api"] == "Produce"]
        stages = next(x["stages"] for x in rows if x["number"] > 3 and "TotalTimeMs" in x["stages"])
        assert set(stages) == set(TIMINGS)
        for stage in stages.values():
            assert sum(count for _, _, count in stage["buckets"]) == stage["count"] > 0
        roles = {x["process"] for x in found if x["kind"] == "process"}
        assert {"acceptor", "processor", "handler", "controller", "cleaner"} <= roles
        busy = [x["busy"] for x in found if x["kind"] == "process" and x["busy"] is not None]
        assert busy
        assert all(0 <= share <= 1 for share in busy)
        request = next(x for x in found if x["kind"] == "request" and x["api"] == "Produce")
        assert request["client_id"] == "raw-test"
        assert request["request"]["topic_data"][0]["name"] == "t"
        # Off: what is on its way may still come, then nothing does.
        switch(client, kproc_telemetry="off")
        pause(1.5)
        count = len(lines(reader))
        client.produce("t", batch(b"v"))
        pause(1.5)
        assert len(lines(reader)) == count


def test_a_reader_is_not_told_of_its_own_reading(start_broker: Start) -> None:
    """Else every batch would wake its reader, whose next Fetch would be the next batch."""
    settings = {**SETTINGS, "kproc.telemetry": "requests"}
    broker = start_broker(settings)
    with RawClient(broker.bootstrap) as client, RawClient(broker.bootstrap) as reader:
        client.create_topic("t")
        wait_until(lambda: lines(client), what="a line")
        topic_id = client.describe_topic(TELEMETRY_TOPIC)["topic_id"]
        # By name, by id, and by a session that names nothing.
        for version, name in ((12, TELEMETRY_TOPIC), (13, "")):
            fields = fetch_fields([(name, topic_id, [(0, 0)])], session=(0, 0))
            session = reader.call(ApiKey.FETCH, version, fields)["session_id"]
            assert session
            for epoch in range(1, 4):
                fields = fetch_fields([], session=(session, epoch), max_wait_ms=30)
                assert reader.call(ApiKey.FETCH, version, fields)["error_code"] == 0
        fields = fetch_fields([("t", bytes(16), [(0, 0)])], max_wait_ms=30)

        def fetches() -> list[list[dict[str, str]]]:
            reader.call(ApiKey.FETCH, 12, fields)
            return [x["request"]["topics"] for x in lines(client) if x["api"] == "Fetch"]

        wait_until(fetches, what="the Fetch of another topic is told of")
        pause(1.2)
        assert {topic["topic"] for topics in fetches() for topic in topics} == {"t"}
        assert all(topics for topics in fetches()), "one that named nothing was of the telemetry's session"


def test_it_is_an_internal_topic(start_broker: Start) -> None:
    broker = start_broker({**SETTINGS, "kproc.telemetry": "metrics"})
    with RawClient(broker.bootstrap) as client:
        wait_until(lambda: lines(client), what="a line")
        assert client.describe_topic(TELEMETRY_TOPIC)["is_internal"]
        refused = client.produce(TELEMETRY_TOPIC, batch(b"v"))
        assert refused["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert not any(x["kind"] == "request" for x in lines(client)), "only metrics were asked for"
        # Deleted, it is made again.
        answer = client.call(ApiKey.DELETE_TOPICS, 5, {"topic_names": [TELEMETRY_TOPIC], "timeout": 1000})
        assert answer["responses"][0]["error_code"] == 0
        wait_until(lambda: lines(client), what="lines again")
