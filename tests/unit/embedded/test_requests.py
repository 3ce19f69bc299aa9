"""RequestRecorder: its thread reads nothing after stop()."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kproc.client import ClientError
from kproc.client.own_operations import OperationFields
from kproc.embedded.requests import RequestRecorder


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


class OtherBroker:
    """A client whose peer answers without the recorded requests."""

    def __init__(self) -> None:
        self.is_closed = False

    def operate(self, _name: str, **_fields: Any) -> OperationFields:
        return OperationFields()

    def close(self) -> None:
        self.is_closed = True


def test_connection_of_a_recording_that_fails_is_closed() -> None:
    client = OtherBroker()
    recorder = RequestRecorder(lambda: client)  # type: ignore[arg-type, return-value]
    with pytest.raises(ClientError, match="has no field 'lines'"):
        recorder.start()
    assert client.is_closed
