"""Recorded requests of two client libraries, as `kproc.Broker.requests` returns them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("kafka")

from kproc.embedded import Broker
from kproc.wire.header import ApiKey
from tests.support.faulted_clients import LIBRARIES
from tests.support.raw import NO_TOPIC_ID, RawClient, batch, produce_fields
from tests.support.topics import fresh_name

pytestmark = [
    pytest.mark.clients,
    pytest.mark.transports("process", "inline"),
    pytest.mark.no_leak_guard,  # A reset replaces the processes of the file's broker.
]


def test_requests_of_two_libraries_are_recorded(observed: Broker) -> None:
    topic, group = fresh_name("seen"), fresh_name("shop")
    observed.create_topic(topic)
    with observed.requests.recording() as requests:
        for library in LIBRARIES.values():
            assert library.produce(observed.bootstrap, topic, [b"a"]) == [""]
        assert LIBRARIES["confluent"].consume(observed.bootstrap, topic, 2, group=group) == [b"a", b"a"]
        first, second = requests.wait_for("Produce", count=2, topic=topic)
        [commit] = requests.wait_for("OffsetCommit", group=f"{group[:-1]}*", client_id="faulted")
    assert first.time_ms <= second.time_ms
    assert (first.client_id, first.result, first.topics) == ("faulted", "ok", (topic,))
    assert first.request_bytes > 0 < first.took_ms
    assert commit.fields is not None
    assert commit.fields["group_id"] == group
    [row] = commit.fields["topics"][0]["partitions"]
    assert row["committed_offset"] == 2
    # What was recorded stays, and nothing is added.
    count = len(requests.list())
    assert LIBRARIES["confluent"].produce(observed.bootstrap, topic, [b"b"]) == [""]
    assert len(requests.list()) == count
    assert requests.list("CreateTopics") == []  # The broker object's own requests are not recorded.


def test_dropped_answer_is_recorded_once(observed: Broker) -> None:
    topic = fresh_name("dropped")
    observed.create_topic(topic)
    for close in (True, False):
        with observed.requests.recording() as requests:
            with observed.faults.drop_answer("Produce", close=close, topic=topic, times=1) as rule:
                sent = LIBRARIES["confluent"].produce(observed.bootstrap, topic, [b"a"], timeout_ms=1500)
                assert sent == [""]
            assert rule.hits == 1
            # The client has sent it again, because its connection was closed or its timeout was over.
            results = [seen.result for seen in requests.wait_for("Produce", count=2, topic=topic)]
            assert results == ["closed" if close else "no answer", "ok"]
            assert len(requests.list("Produce", topic=topic)) == 2


def test_result_of_a_lost_answer_hides_that_of_the_work(observed: Broker) -> None:
    topic = fresh_name("lost")
    observed.create_topic(topic)
    cases: list[tuple[str, dict[str, Any], str, int | None]] = [
        ("close", {}, "closed", 0),
        ("drop_answer", {"close": True}, "closed", 0),
        ("cut_answer", {"size": 7}, "closed", 7),
        ("drop_answer", {"close": False}, "no answer", 0),
        ("delay_answer", {"ms": 60_000}, "UNKNOWN_TOPIC_OR_PARTITION", None),
    ]
    # The topic has no partition 1, so each answer would have an error.
    request = produce_fields([(topic, NO_TOPIC_ID, [(1, batch(b"v"))])])
    for name, arguments, result, size in cases:
        with (
            observed.requests.recording() as requests,
            getattr(observed.faults, name)("Produce", topic=topic, **arguments),
            RawClient(observed.bootstrap) as client,
        ):
            client.send(ApiKey.PRODUCE, 9, request)
            [seen] = requests.wait_for("Produce", topic=topic)
        assert (name, seen.result) == (name, result)
        assert size in (None, seen.response_bytes)


def test_wait_without_a_match_fails_with_a_timeline(observed: Broker) -> None:
    topic = fresh_name("orders")
    observed.create_topic(topic)
    faults = observed.faults
    with observed.requests.recording() as requests:
        with faults.fail("Produce", topic=topic, error="NOT_LEADER_OR_FOLLOWER", times=1):
            assert LIBRARIES["kafka_python"].produce(observed.bootstrap, topic, [b"a"]) == [""]
        assert len(requests.wait_for("Produce", topic=topic, result="NOT_LEADER_OR_FOLLOWER")) == 1
        with pytest.raises(AssertionError) as failure:
            requests.wait_for("OffsetCommit", group="g", timeout_s=0)
    text = str(failure.value)
    assert text.startswith("0 of 1 awaited requests matched OffsetCommit group='g' within 0 s; ")
    assert f"  {topic}  NOT_LEADER_OR_FOLLOWER  " in text
    assert f"  {topic}  ok  " in text


def test_recording_goes_on_after_a_reset(observed: Broker) -> None:
    with observed.requests.recording() as requests:
        observed.reset()
        observed.create_topic("after")
        assert LIBRARIES["confluent"].produce(observed.bootstrap, "after", [b"a"]) == [""]
        assert len(requests.wait_for("Produce", topic="after")) == 1
    observed.reset()


def test_recording_is_bounded_and_leaves_no_thread(observed: Broker) -> None:
    before = set(threading.enumerate())
    topic = fresh_name("many")
    observed.create_topic(topic)
    with observed.requests.recording(limit=2) as requests:
        with pytest.raises(RuntimeError, match="recorded already"):
            observed.requests.start()
        assert LIBRARIES["confluent"].produce(observed.bootstrap, topic, [b"a"] * 5) == [""] * 5
        assert len(requests.list()) == 2
        assert requests.lost >= 3
        with pytest.raises(TypeError, match="unknown condition 'partition': use topic, group, "):
            requests.list(partition=1)  # type: ignore[call-arg]
        with pytest.raises(
            ValueError, match="unknown result 'OK': use 'ok', 'no answer', 'closed' or an error, "
        ):
            requests.wait_for(result="OK")
    assert {each for each in threading.enumerate() if each.name == "kproc-requests"} <= before
    requests.stop()
    with pytest.raises(
        RuntimeError, match=r"no request is recorded: use `with broker\.requests\.recording\(\):`"
    ):
        requests.wait_for("Heartbeat")
