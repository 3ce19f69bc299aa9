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

    def init_transactions(self, _seconds: float) -> None:
        pass

    def begin_transaction(self) -> None:
        pass

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
    monkeypatch.setattr(FakeProducer, "flush", lambda *_: 0)  # Their timeout ends while they are flushed.
    sender.interrupt()
    assert capsys.readouterr().err.splitlines() == [
        "kproc: cannot connect to b:1; trying again until a record's --timeout is over",
        "kproc: 1 record was delivered; not confirmed: 2 records",
    ]


def test_rejected_login_ends_with_the_count_of_records(
    sender: RecordSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, AuthenticationFailed("b:1 rejects the login"))
    sender.send(1, Outgoing(None, b"x", []))
    with pytest.raises(Failure, match=r"b:1 rejects the login \(1 record was delivered\)"):
        sender.send(2, Outgoing(None, b"x", []))
    sender = RecordSender("b:1", "t", None, {"transactional.id": "x"})
    sender.send(1, Outgoing(None, b"x", []))
    with pytest.raises(Failure, match=r"b:1 rejects the login \(the transaction ends by its timeout\)"):
        sender.send(2, Outgoing(None, b"x", []))


def test_lost_connection_is_the_reason_of_timeouts_only(
    sender: RecordSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that was back rejected a record, and the message said that nobody could connect to it."""
    refuse(monkeypatch, ConnectionFailed("cannot connect to b:1"))
    for code, reason in ((KafkaError._MSG_TIMED_OUT, "; cannot connect to b:1"), (KafkaError.MSG_SIZE_TOO_LARGE, "")):
        sender = RecordSender("b:1", "t", None, {})
        for number in (1, 2):
            sender.send(number, Outgoing(None, b"x", []))
        sender._on_delivery(2, KafkaError(code), None)
        with pytest.raises(Failure) as failure:
            sender.finish()
        assert str(failure.value).endswith(f"{reason} (1 record was delivered)")
        assert ("cannot connect" in str(failure.value)) == bool(reason)
