"""Internal topics of streams groups: one request at a time, none just after a failure, reasons in the response."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kproc.broker.api.streams_internal_topics import create_internal_topics
from kproc.broker.api.topic_creations import BACKOFF_NS, TopicCreations
from kproc.broker.streams.messages import StreamsHeartbeatResult
from kproc.broker.streams.topology import KeyValue, StreamsStatus, StreamsStatusCode, StreamsTopic
from kproc.common.clock import ManualClock
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.api_broker import Broker

TOPICS = (StreamsTopic("a", 2), StreamsTopic("b", 1, 0, (KeyValue("cleanup.policy", "compact"),)))
MISSING = StreamsHeartbeatResult(
    heartbeat_interval_ms=5_000,
    statuses=(StreamsStatus(StreamsStatusCode.MISSING_INTERNAL_TOPICS, "Missing"),),
    missing_topics=TOPICS,
)


class Rig:
    """A Handler and clients whose heartbeats miss internal topics."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.clock = ManualClock()
        self.broker.services.clock = self.clock
        self.broker.services.owner.topic_creations = TopicCreations()
        self.results: list[StreamsHeartbeatResult] = []

    def create(self) -> None:
        context = SimpleNamespace(
            api_key=int(ApiKey.STREAMS_GROUP_HEARTBEAT),
            api_version=1,
            services=self.broker.services,
            ask_controller=self.broker.ask_controller,
            is_allowed=lambda *_, **__: True,
            client_host="/127.0.0.1",
            client_id_bytes=b"",
            principal=self.broker.client.principal,
            identity=self.broker.client,
        )
        create_internal_topics(context, MISSING, self.results.append)  # type: ignore[arg-type]

    def details(self) -> list[str]:
        return [result.statuses[0].detail for result in self.results]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def creations(rig: Rig) -> list[Any]:
    return [[row["name"] for row in body.body["topics"]] for _call, body, _reply in rig.broker.calls]


def test_second_heartbeat_does_not_create_topics_in_creation(rig: Rig) -> None:
    rig.create()
    rig.create()
    assert len(rig.broker.calls) == 1
    assert [result.heartbeat_interval_ms for result in rig.results] == [500]
    rig.broker.run_controller()
    assert len(rig.broker.cluster.image.topics_by_name["a"].partitions) == 2
    assert rig.details() == ["Missing", "Missing"]


def test_failed_creation_is_repeated_after_the_backoff_only(rig: Rig) -> None:
    rig.broker.fail_controller(ErrorCode.POLICY_VIOLATION, "not today")
    rig.create()
    rig.broker.run_controller()
    rig.create()
    assert not rig.broker.calls
    assert rig.details() == ["Missing; Creation failed: a (not today), b (not today)."] * 2
    assert [result.heartbeat_interval_ms for result in rig.results] == [5_000, 5_000]
    rig.clock.advance_ns(BACKOFF_NS)
    rig.create()
    assert len(rig.broker.calls) == 1
