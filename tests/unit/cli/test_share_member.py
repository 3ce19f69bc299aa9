"""`kproc consume --share`: which records are printed, and how they are acknowledged."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import AcknowledgeType, KafkaError

from kproc.cli import record_reader, share_member
from kproc.cli.failure import Failure
from kproc.cli.share_member import IDLE_S, Acknowledgement, ShareReader
from kproc.client import AuthenticationFailed, ConnectionFailed

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


class Message:
    def __init__(self, offset: int, error: Any = None) -> None:
        self._offset, self._error = offset, error

    def error(self) -> Any:
        return self._error

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 2

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes:
        return b"%d" % self._offset

    def headers(self) -> None:
        return None


class FakeConsumer:
    """confluent-kafka's ShareConsumer, with the polls that a test gives."""

    def __init__(self, polls: list[list[int]]) -> None:
        self.polls = polls
        self.kinds: dict[int, AcknowledgeType] = {}
        self.commits = 0
        self.settings: dict[str, Any] = {}
        self.is_closed = False

    def __call__(self, settings: dict[str, Any]) -> FakeConsumer:
        self.settings = settings
        return self

    def subscribe(self, topics: list[str]) -> None:
        self.topics = topics

    def poll(self, _timeout: float) -> list[Message]:
        return [Message(offset) for offset in self.polls.pop(0)] if self.polls else []

    def acknowledge(self, message: Message, kind: AcknowledgeType) -> None:
        self.kinds[message.offset()] = kind

    def acknowledge_offset(self, _topic: str, _partition: int, offset: int, kind: AcknowledgeType) -> None:
        self.kinds[offset] = kind

    def commit_sync(self, _timeout: float) -> dict[Any, Any]:
        self.commits += 1
        return {}

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_member, "_check_group", lambda *_: None)
    monkeypatch.setattr(share_member, "librdkafka_security", dict)


def reader_of(
    monkeypatch: pytest.MonkeyPatch,
    *polls: list[int],
    acknowledgement: Acknowledgement = Acknowledgement.ACCEPT,
    follow: bool = False,
    limit: int | None = None,
) -> tuple[ShareReader, FakeConsumer]:
    consumer = FakeConsumer(list(polls))
    monkeypatch.setattr(confluent_kafka, "ShareConsumer", consumer, raising=False)
    return ShareReader("b:1", "g", ["t"], acknowledgement, follow=follow, limit=limit), consumer


def run(reader: ShareReader, limit: int = 1000) -> list[int]:
    """The offsets that are printed until the reader is done."""
    shown: list[int] = []
    while not reader.is_done and len(shown) < limit:
        records = reader.read(limit - len(shown))
        shown += [record.offset for record in records]
        if records:
            reader.printed(records)
    reader.close()
    return shown


@pytest.mark.parametrize(
    ("acknowledgement", "kind"),
    [(Acknowledgement.ACCEPT, ACCEPT), (Acknowledgement.REJECT, REJECT), (Acknowledgement.RELEASE, RELEASE)],
)
def test_printed_records_get_the_acknowledgement(
    monkeypatch: pytest.MonkeyPatch, acknowledgement: Acknowledgement, kind: AcknowledgeType
) -> None:
    reader, consumer = reader_of(monkeypatch, [0, 1], [], [2], acknowledgement=acknowledgement)
    assert run(reader) == [0, 1, 2]
    assert consumer.kinds == {0: kind, 1: kind, 2: kind}
    assert consumer.commits == 2
    assert consumer.is_closed


def test_records_beyond_the_count_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, consumer = reader_of(monkeypatch, [0, 1, 2], limit=2)
    assert run(reader, 2) == [0, 1]
    assert consumer.kinds == {0: ACCEPT, 1: ACCEPT, 2: RELEASE}
    assert consumer.settings["max.poll.records"] == 2


def test_released_records_are_printed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, consumer = reader_of(monkeypatch, [0, 1], [0, 2], [5], acknowledgement=Acknowledgement.RELEASE)
    assert run(reader) == [0, 1, 2]
    assert set(consumer.kinds.values()) == {RELEASE}


def test_reader_is_done_when_nothing_has_come_for_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, consumer = reader_of(monkeypatch, *[[] for _ in range(200)])
    assert run(reader) == []
    assert (200 - len(consumer.polls)) * share_member.WAIT_S == pytest.approx(IDLE_S, abs=share_member.WAIT_S)


def test_note_about_no_records_needs_a_full_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the right to read, the command first advised to set share.auto.offset.reset."""
    reader, consumer = reader_of(monkeypatch)
    reader.read(1)
    reader.close()
    assert consumer.is_closed
    assert capsys.readouterr().err == ""
    run(reader_of(monkeypatch)[0])
    assert "group g delivered no records; a new share group starts at the end" in capsys.readouterr().err


def test_follower_is_never_done(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, _ = reader_of(monkeypatch, follow=True)
    for _ in range(100):
        reader.read(1)
    assert not reader.is_done


def connected(error: Exception | None) -> BytesIO:
    """Return something to close, or raise the error."""
    if error is not None:
        raise error
    return BytesIO()


@pytest.mark.parametrize("code", [KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT])
def test_follower_survives_a_broker_that_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    reader, consumer = reader_of(monkeypatch, [], [], [], [7], follow=True)
    connections = [ConnectionFailed("cannot connect to b:1"), ConnectionFailed("again"), None]
    monkeypatch.setattr(record_reader, "connect", lambda _bootstrap: connected(connections.pop(0)))
    consumer.settings["error_cb"](KafkaError(code))
    assert [reader.read(1) for _ in range(3)] == [[], [], []]
    assert capsys.readouterr().err.splitlines() == [
        "kproc: cannot connect to b:1; trying again until it is back",
        "kproc: b:1 is back",
    ]
    assert [record.offset for record in reader.read(1)] == [7]
    reader, consumer = reader_of(monkeypatch)
    consumer.settings["error_cb"](KafkaError(code))
    with pytest.raises(Failure, match="group g: "):
        reader.read(1)


def test_follower_ends_when_its_login_is_rejected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, consumer = reader_of(monkeypatch, [], [], follow=True)
    connections = [ConnectionFailed("cannot connect to b:1"), AuthenticationFailed("b:1 refuses the login")]
    monkeypatch.setattr(record_reader, "connect", lambda _bootstrap: connected(connections.pop(0)))
    consumer.settings["error_cb"](KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert reader.read(1) == []
    with pytest.raises(AuthenticationFailed, match="b:1 refuses the login"):
        reader.read(1)
    assert capsys.readouterr().err.count("\n") == 1


def test_old_confluent_kafka_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(confluent_kafka, "ShareConsumer", raising=False)
    with pytest.raises(Failure, match=r"has no share consumer: install version 2\.15 or later"):
        ShareReader("b:1", "g", ["t"], Acknowledgement.ACCEPT, follow=False, limit=None)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"group": None, "reject": True}, "--reject and --release need --share GROUP"),
        ({"group": ""}, "--share: must not be empty"),
        ({"excluded": ["--grep"]}, "--share and --grep exclude each other"),
        ({"reject": True, "release": True}, "--reject and --release exclude each other"),
        ({"release": True, "follow": True}, "--release and --follow exclude each other"),
    ],
)
def test_options_that_exclude_each_other(
    capsys: pytest.CaptureFixture[str], options: dict[str, Any], problem: str
) -> None:
    given = {"group": "g", "excluded": [], "follow": False, "reject": False, "release": False, **options}
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - typer's own exit, or a failure
        share_member.choose_acknowledgement(given.pop("group"), given.pop("excluded"), **given)
    assert problem in capsys.readouterr().err + str(raised.value)
