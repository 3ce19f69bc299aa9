"""Readiness: asked over a real connection, announced in a file that is whole or not there."""

from __future__ import annotations

import json
import resource
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.config import Config
from kproc.broker.role.listeners import ListenerEndpoint
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.supervisor import ready
from kproc.common.clock import ManualClock
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey, parse_request_header
from tests.support.wait import PATIENCE_SECONDS

Answer = Callable[[ApiKey, int, dict[str, Any]], dict[str, Any] | None]


class ScriptedBroker:
    """Answers one connection as told; closes it for None."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked: list[tuple[ApiKey, dict[str, Any]]] = []
        ours, theirs = socket.socketpair()
        self.probe = ready.Probe(ours)
        self._thread = threading.Thread(target=self._serve, args=(theirs,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.probe.close()
        self._thread.join(PATIENCE_SECONDS)

    def problem(self) -> str | None:
        """What came of it."""
        poll = select.poll()
        poll.register(self.probe, select.POLLIN)
        while not self.probe.is_done():
            assert poll.poll(10_000), "nothing more comes"
        return self.probe.problem

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while head := stream.read(4):
                frame = memoryview(stream.read(int.from_bytes(head, "big")))
                header, at = parse_request_header(frame)
                key, version = ApiKey(header.api_key), header.api_version
                fields = codec.decode_request(key, version, frame[at:])
                self.asked.append((key, fields))
                answer = self._answer(key, version, fields)
                if answer is None:
                    return
                for byte in codec.encode_response(key, version, header.correlation_id, answer):
                    connection.sendall(bytes([byte]))


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], ScriptedBroker]]:
    made: list[ScriptedBroker] = []

    def start(answer: Answer) -> ScriptedBroker:
        made.append(ScriptedBroker(answer))
        return made[-1]

    yield start
    for each in made:
        each.close()


def endpoint(host: str, port: int) -> ListenerEndpoint:
    return ListenerEndpoint("PLAINTEXT", host, port, "advertised.example", 1)


def answers(code: int) -> Answer:
    def answer(key: ApiKey, _version: int, fields: dict[str, Any]) -> dict[str, Any]:
        if key == ApiKey.METADATA:
            return {"brokers": [], "topics": [], "controller_id": 1}
        (topic,) = fields["topic_data"]
        row = {"index": 0, "error_code": code, "base_offset": -1}
        return {"responses": [{"name": topic["name"], "partition_responses": [row]}]}

    return answer


def test_metadata_and_a_produce_to_no_topic_make_it_ready(serve: Callable[[Answer], ScriptedBroker]) -> None:
    scripted = serve(answers(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert scripted.problem() is None
    (first, metadata), (second, produce) = scripted.asked
    assert (first, second) == (ApiKey.METADATA, ApiKey.PRODUCE)
    assert metadata["topics"] == []  # Of version 1: no topic, where null would be all.
    assert "/" in produce["topic_data"][0]["name"], "no topic can have that name"


def test_other_error_is_a_problem(serve: Callable[[Answer], ScriptedBroker]) -> None:
    assert serve(answers(56)).problem() == "a Produce to no topic was answered with error 56"


def test_broker_that_hangs_up_is_a_problem(serve: Callable[[Answer], ScriptedBroker]) -> None:
    assert serve(lambda *_: None).problem() is not None


def test_processor_that_is_not_there_is_a_problem() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with closing(ready.Probe(ours)) as probe:
        assert probe.is_done()
        assert probe.problem is not None


def test_announcement_says_where_and_who(tmp_path: Path) -> None:
    plan = BrokerPlan(
        Config.build({"log.dirs": str(tmp_path)}),
        ManualClock(),
        [endpoint("127.0.0.1", 9092)],
        "cluster",
        was_clean=True,
    )
    rows = [{"role": "handler", "index": 0, "pid": 5, "state": "running", "restarts": 0, "pool": ""}]
    path = tmp_path / "ready.json"
    ready.write(path, ready.describe(plan, rows))
    found = json.loads(path.read_text())
    assert found["bootstrap"] == "advertised.example:1"
    assert found["processes"] == [{"role": "handler", "index": 0, "pid": 5, "pool": ""}]
    assert found["data"] == str(tmp_path)
    assert found["listeners"] == {
        "PLAINTEXT": {"bound": "127.0.0.1:9092", "advertised": "advertised.example:1"}
    }
    assert [each.name for each in tmp_path.iterdir()] == ["ready.json"], "no part of it stays"


def test_ready_file_is_removed_once_and_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text("{}")
    ready.remove(path)
    assert not path.exists()
    ready.remove(path)
    ready.remove(None)


def test_descriptor_limit_is_raised_as_far_as_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        ready.raise_nofile_limit()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert hard == before[1]
        assert soft == min(hard, 1 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
