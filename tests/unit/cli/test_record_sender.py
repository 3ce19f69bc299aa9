"""`kproc produce` with a broker that is away: what it reports, and when it ends. Restarts: tests/cli/test_topics.py."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from kproc.cli import record_sender
from kproc.cli.failure import Failure
from kproc.cli.record_json import Outgoing
from kproc.cli.record_sender import RecordSender
from kproc.client import AuthenticationFailed, ConnectionFailed


class FakeProducer:
    """librdkafka's producer, which delivers the first record only."""

    def __init__(self, settings: dict[str, Any], **_: Any) -> None:
        self.on_error = settings["error_cb"]
        self.waiting = -1

    def produce(self, *_: Any, on_delivery: Any) -> None:
        self.waiting += 1
        if self.waiting == 0:
            on_delivery(None, None)

    def poll(self, _seconds: float) -> None:
        if self.waiting:
            self.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))

    def flush(self, _seconds: float) -> int:
        return self.waiting


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> RecordSender:
    monkeypatch.setattr(confluent_kafka, "Producer", FakeProducer)
    return RecordSender("b:1", "t", None, {})


def refuse(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def connect(_bootstrap: str) -> None:
        raise error

    monkeypatch.setattr(record_sender, "connect", connect)


def test_interrupt_reports_records_that_wait(
    sender: RecordSender, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(monkeypatch, ConnectionFailed("cannot connect to b:1"))
    sender.send(1, Outgoing(None, b"x", []))
    sender.interrupt()
    assert capsys.readouterr().err == ""
    for number in (2, 3):
        sender.send(number, Outgoing(None, b"x", []))
    sender.interrupt()
    assert capsys.readouterr().err.splitlines() == [
        "kproc: cannot connect to b:1; trying again until a record has taken too long",
        "kproc: 1 record was delivered; not confirmed: 2 records",
    ]


def test_rejected_login_ends_with_the_count_of_records(
    sender: RecordSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, AuthenticationFailed("b:1 rejects the login"))
    sender.send(1, Outgoing(None, b"x", []))
    with pytest.raises(Failure, match=r"b:1 rejects the login \(1 record was delivered\)"):
        sender.send(2, Outgoing(None, b"x", []))
