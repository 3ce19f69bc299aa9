"""The monitor: requests of all Handlers' clients during a watch, bounded, and none otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import orjson
import pytest

from kproc.broker.handler.request_monitor import LINES_MAX
from kproc.broker.observe.request_lines import IDLE_NS, WATCHES_MAX
from kproc.broker.request.own_requests import PRIVATE_API_KEY
from kproc.broker.security.principal import Principal
from kproc.broker.transport.envelope import FLAG_LOOPBACK
from kproc.wire.header import ApiKey
from tests.support.handler_logins import AUTHENTICATE, HANDSHAKE, SETTINGS, WORD, gated, shake
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.raw import batch, fetch_fields, produce_fields
from tests.support.request_log import lines as logged_lines
from tests.support.request_log import switch

Start = Callable[..., HandlerRig]
NO_ID = bytes(16)
ADMIN = 99


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda **more: stack.enter_context(HandlerRig(tmp_path, **more))


def operate(rig: HandlerRig, watch: str = "w", **filters: Any) -> dict[str, Any]:
    """The answer to one `monitor` operation."""
    body = orjson.dumps({"op": "monitor", "watch": watch, **filters})
    head = PRIVATE_API_KEY.to_bytes(2, "big") + bytes(2) + (7).to_bytes(4, "big") + b"\0\1c"
    frame = (len(head) + len(body)).to_bytes(4, "big") + head + body
    rig.processors[0].send_frames([frame], connection=ADMIN, flags=FLAG_LOOPBACK)
    (answer,) = rig.processors[0].answers()
    return dict(orjson.loads(answer.frame[8:]))


def watched(rig: HandlerRig, watch: str = "w", **filters: Any) -> list[dict[str, Any]]:
    """The lines since the last call."""
    return list(operate(rig, watch, **filters)["result"]["lines"])


def produce(
    rig: HandlerRig, topic: str = "t", *, index: int = 0, partition: int = 0, size: int = 100
) -> None:
    fields = produce_fields([(topic, NO_ID, [(partition, batch(b"x" * size))])])
    rig.processors[index].ask(ApiKey.PRODUCE, 9, fields)


def end_watches(rig: HandlerRig) -> None:
    rig.advance_ms(IDLE_NS // 1_000_000 + 1)
    produce(rig)


def test_watched_requests_have_topic_client_sizes_and_result(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    rig.processors[0].introduce("10.1.2.3")
    assert watched(rig) == []
    produce(rig)
    produce(rig, "missing", size=30_000)
    first, second = watched(rig)
    assert (first["api"], first["version"], first["topics"], first["client"]) == ("Produce", 9, ["t"], "test")
    assert (first["user"], first["address"], first["error"]) == ("User:ANONYMOUS", "10.1.2.3", "")
    assert first["request_bytes"] > 100
    assert first["response_bytes"] > 20
    assert (second["topics"], second["error"]) == (["missing"], "UNKNOWN_TOPIC_OR_PARTITION")
    assert watched(rig) == [], "each line is read once, and a monitor does not see itself"


def test_closed_connection_has_the_error_that_closed_it(start: Start) -> None:
    """Only the log of requests tells a test why its Produce with acks=0 has ended the connection."""
    rig = start()
    rig.create_topic("t")
    watched(rig)
    for connection, partition in ((2, 7), (3, 0)):
        fields = produce_fields([("t", NO_ID, [(partition, batch(b"v"))])], acks=0)
        rig.processors[0].send(ApiKey.PRODUCE, 9, fields, connection=connection)
    rig.processors[0].send_frames([b"\0\0\0\x05\0\x03\0\x09x"], connection=4)
    rig.settle()
    rig.processors[0].answers()
    # The first Produce waits for its append, so its line comes last.
    assert sorted((line["outcome"], line["error"]) for line in watched(rig)) == [
        ("CloseConnection", ""),
        ("CloseConnection", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("NoOp", ""),
    ]


def test_time_of_a_parked_fetch_counts_its_wait(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    watched(rig)
    rig.processors[0].send(ApiKey.FETCH, 12, fetch_fields([("t", NO_ID, [(0, 0)])], max_wait_ms=500))
    rig.settle()
    assert watched(rig) == []
    rig.advance_ms(500)
    rig.processors[0].answers()
    (line,) = watched(rig)
    assert (line["api"], line["took_us"]) == ("Fetch", pytest.approx(500_000, abs=2000))


def test_fetch_in_a_session_names_the_topics_of_the_session(start: Start) -> None:
    rig = start()
    for name in ("t", "u"):
        rig.create_topic(name)
    topics = [(name, NO_ID, [(0, 0)]) for name in ("t", "u")]
    answer = rig.processors[0].ask(ApiKey.FETCH, 12, fetch_fields(topics, session=(0, 0)))
    watched(rig, topic="u")
    rig.processors[0].ask(ApiKey.FETCH, 12, fetch_fields([], session=(answer["session_id"], 1)))
    (line,) = watched(rig, topic="u")
    assert (line["api"], line["topics"]) == ("Fetch", ["t", "u"])


def test_steps_of_logins_have_mechanism_user_and_result(start: Start) -> None:
    rig = start(settings=SETTINGS)
    rig.processors[0].introduce("10.0.0.7")
    watched(rig)
    shake(rig)
    gated(rig, AUTHENTICATE, 2, auth_bytes=b"\0alice\0" + WORD.encode())
    shake(rig)
    gated(rig, AUTHENTICATE, 2, auth_bytes=b"\0alice\0wrong-word")
    lines = watched(rig)
    shown = [(line["api"], line["others"], line["user"], line["error"]) for line in lines]
    assert shown == [
        ("SaslHandshake", ["PLAIN"], "", ""),
        ("SaslAuthenticate", ["PLAIN"], "User:alice", ""),
        ("SaslHandshake", ["PLAIN"], "", ""),
        ("SaslAuthenticate", ["PLAIN"], "", "SASL_AUTHENTICATION_FAILED"),
    ]
    assert {line["address"] for line in lines} == {"10.0.0.7"}
    assert WORD not in str(lines)
    assert "wrong-word" not in str(lines)


def test_failed_reauthentication_has_a_line_with_its_error(start: Start) -> None:
    """A prolonged session's requests are no steps of a login. They have lines of their own."""
    rig = start(settings={**SETTINGS, "connections.max.reauth.ms": 60_000})
    watched(rig)
    processor = rig.processors[0]
    processor.introduce("10.0.0.7", principal=Principal("User", "alice"), mechanism="PLAIN", ends_ns=5)
    processor.send(HANDSHAKE, 1, {"mechanism": "PLAIN"})
    processor.answers()
    processor.send(AUTHENTICATE, 1, {"auth_bytes": b"\0alice\0wrong-word"})
    rig.settle()
    rig.advance_ms(100)
    (answer,) = processor.answers()
    lines = [(line["api"], line["outcome"], line["error"], line["response_bytes"]) for line in watched(rig)]
    assert lines == [
        ("SaslHandshake", "Send", "", ANY),
        ("SaslAuthenticate", "Send", "SASL_AUTHENTICATION_FAILED", len(answer.frame)),
    ]


def test_fast_paths_are_used_again_after_the_last_watch(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    requests = parts_of(rig.handler()).requests
    produce(rig)
    assert rig.fast_paths()
    watched(rig)
    produce(rig)
    assert not rig.fast_paths()
    assert requests.log is not None
    end_watches(rig)
    produce(rig)
    assert requests.log is None
    assert rig.fast_paths()
    assert watched(rig) == [], "a watch that has ended begins anew"


def test_lines_of_all_handlers_are_joined(start: Start) -> None:
    rig = start(handlers=2)
    rig.create_topic("t", partitions=2)
    watched(rig)
    for index in (0, 1):
        produce(rig, index=index, partition=index)
    assert [line["api"] for line in watched(rig)] == ["Produce", "Produce"]


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({}, 3),
        ({"apis": ["Produce"]}, 2),
        ({"apis": ["Metadata", "Heartbeat"]}, 1),
        ({"topic": "t"}, 1),
        ({"topic": "t*"}, 2),
        ({"topic": "x*"}, 0),
        ({"client": "test"}, 3),
        ({"client": "tes"}, 0),
        ({"user": "ANONYMOUS", "topic": "*"}, 2),
        ({"user": "User:AN*"}, 3),
    ],
)
def test_filters_choose_requests(start: Start, filters: dict[str, Any], count: int) -> None:
    rig = start()
    for name in ("t", "tt"):
        rig.create_topic(name)
    watched(rig, **filters)
    produce(rig, "t")
    produce(rig, "tt")
    rig.processors[0].ask(ApiKey.METADATA, 9, {"topics": []})
    assert len(watched(rig)) == count


def test_watch_that_is_full_counts_the_rest(start: Start) -> None:
    rig = start()
    watched(rig)
    for _ in range(LINES_MAX + 7):
        rig.processors[0].send(ApiKey.API_VERSIONS, 0, {})
    rig.processors[0].answers()
    result = operate(rig)["result"]
    assert (len(result["lines"]), result["lost"]) == (LINES_MAX, 7)
    assert operate(rig)["result"] == {"lines": [], "lost": 0}


def test_number_of_watches_is_bounded(start: Start) -> None:
    rig = start()
    for number in range(WATCHES_MAX):
        assert operate(rig, f"w{number}")["error"] is None
    refused = operate(rig, "one more")
    assert refused["error"] == f"{WATCHES_MAX} monitors run already, which is the limit"
    assert refused["is_retriable"]
    assert operate(rig, "w0")["error"] is None
    end_watches(rig)
    assert operate(rig, "one more")["error"] is None


def test_last_call_ends_a_watch_at_once(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    for number in range(WATCHES_MAX + 1):
        assert operate(rig, f"w{number}")["error"] is None
        produce(rig)
        assert len(watched(rig, f"w{number}", is_last=True)) == 1
    assert watched(rig, "never begun", is_last=True) == []
    assert parts_of(rig.handler()).requests.log is None
    produce(rig)
    assert rig.fast_paths()


def test_request_log_gets_every_request_during_a_watch(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    watched(rig, topic="other")
    switch(rig, "all")
    produce(rig)
    end_watches(rig)
    produce(rig)
    names = [line["requestHeader"]["requestApiKeyName"] for line in logged_lines(rig)]
    assert names == ["PRODUCE"] * 3
    switch(rig, "off")
    assert parts_of(rig.handler()).requests.log is None
