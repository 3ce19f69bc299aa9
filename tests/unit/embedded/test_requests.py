"""RequestRecorder without a broker: its thread, its connection, and conditions that no request can meet."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kproc.client import ClientError, ConnectionLost
from kproc.client.own_operations import OperationFields
from kproc.common.clock import NS_PER_S
from kproc.embedded import requests
from kproc.embedded.process import BrokerRestarting
from kproc.embedded.requests import RequestMatch, RequestRecorder, SeenRequest


class StoppedMeanwhile(threading.Event):
    """stop() is called while the thread waits for the lock of the recorder."""

    def wait(self, timeout: float | None = None) -> bool:
        is_set = self.is_set()
        self.set()
        return is_set


class Reads:
    """A client that counts reads."""

    def __init__(self) -> None:
        self.count = 0

    def operate(self, _name: str, **_fields: Any) -> dict[str, Any]:
        self.count += 1
        return {"lines": [], "lost": 0}

    def close(self) -> None:
        pass


def test_recorder_thread_does_not_read_after_a_stop() -> None:
    """Such a read would begin a watch again, which slows the broker's requests down for 5 s."""
    reads = Reads()
    recorder = RequestRecorder(lambda: reads)  # type: ignore[arg-type, return-value]
    recorder._stopping = StoppedMeanwhile()
    recorder.start()
    assert recorder._thread is not None
    recorder._thread.join()
    assert reads.count == 1


def test_list_without_a_recording_is_rejected() -> None:
    """An empty list would let `assert not requests.list(...)` pass."""
    recorder = RequestRecorder(lambda: Reads())  # type: ignore[arg-type, return-value]
    with pytest.raises(RuntimeError, match="no request is recorded: use"):
        recorder.list("Produce")


class FailingClient:
    """A client whose peer answers without the recorded requests, or that Ctrl-C interrupts."""

    def __init__(self, *, is_interrupted: bool) -> None:
        self.is_interrupted = is_interrupted
        self.is_closed = False

    def operate(self, _name: str, **_fields: Any) -> OperationFields:
        if self.is_interrupted:
            raise KeyboardInterrupt
        return OperationFields()

    def close(self) -> None:
        self.is_closed = True


def test_connection_of_a_recording_that_fails_is_closed() -> None:
    for is_interrupted, expected in ((False, ClientError), (True, KeyboardInterrupt)):
        client = FailingClient(is_interrupted=is_interrupted)
        recorder = RequestRecorder(lambda: client)  # type: ignore[arg-type, return-value] # noqa: B023 - used at once
        with pytest.raises(expected):
            recorder.start()
        assert client.is_closed


class SteppingClock:
    """A clock that advances by 100 ms with each reading."""

    now = 0

    def now_ns(self) -> int:
        self.now += NS_PER_S // 10
        return self.now


def test_wait_goes_on_during_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_clock", SteppingClock())
    reads = Reads()
    failures: list[ClientError] = []

    def connect() -> Any:
        if failures:
            raise failures.pop(0)
        return reads

    recorder = RequestRecorder(connect)
    recorder._stopping = StoppedMeanwhile()  # No thread reads.
    recorder.start()
    recorder._disconnect()
    failures += [BrokerRestarting("restarting")]
    assert recorder.list() == []
    failures += [ConnectionLost("lost")] * 3
    with pytest.raises(AssertionError, match="0 of 1 awaited requests matched request within 1 s"):
        recorder.wait_for(timeout_s=1)
    assert failures == []


def seen(api: str, topics: tuple[str, ...], fields: dict[str, Any] | None) -> SeenRequest:
    return SeenRequest(0, api, 0, "c", "User:u", "::1", topics, ("g",), fields, 1, 1, 0.1, "ok")


def test_request_matches_by_every_name_in_its_fields() -> None:
    """The broker records the first three names of a request, and none of some APIs."""
    many = {"topics": [{"name": name} for name in "abcd"]}
    transaction = {"v3_and_below_transactional_id": "x"}
    assert seen("Metadata", ("a", "b", "c"), many).matches("Metadata", {"topic": "d"})
    assert not seen("Metadata", ("a", "b", "c"), many).matches("Metadata", {"topic": "e*"})
    assert seen("Produce", ("by-id",), {"topic_data": [{"topic_id": "0f"}]}).matches(None, {"topic": "by-*"})
    assert seen("AddPartitionsToTxn", (), transaction).matches(None, {"transactional_id": "x", "group": "g"})
    assert not seen("Produce", (), None).matches(None, {"topic": "a"})


def test_condition_that_no_request_can_meet_is_an_error() -> None:
    recorder = RequestRecorder(lambda: pytest.fail("connected"))
    cases: list[tuple[str | None, RequestMatch, str]] = [
        ("Heartbeat", {"topic": "t"}, "Heartbeat have no topic, so none can match: use group, client_id, user"),
        ("Metadata", {"group": "g"}, "requests of Metadata have no group, so none can match: use topic, client_id"),
        ("Fetch", {"transactional_id": "x"}, "requests of Fetch have no transactional_id"),
        (None, {"result": "OK"}, "unknown result 'OK': use 'ok', 'no answer', 'closed' or an error"),
        ("heartbeat", {}, "unknown API 'heartbeat'"),
    ]
    for api, match, text in cases:
        with pytest.raises(ValueError, match=text):
            recorder.list(api, **match)
        with pytest.raises(ValueError, match=text):
            recorder.wait_for(api, timeout_s=60, **match)
