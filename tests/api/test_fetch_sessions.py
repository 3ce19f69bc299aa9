"""Fetch sessions (KIP-227) over the wire: errors, deleted topics and the order of partitions."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.raw import Fields, RawClient, batch, fetch_fields, values_of
from tests.support.topics import fresh_name

NEW_SESSION = (0, 0)


class Session:
    """A fetch session over one topic, by name (version 12) or by id (version 17)."""

    def __init__(self, client: RawClient, version: int, *, partitions: int = 3) -> None:
        self.client = client
        self.version = version
        self.name = fresh_name()
        self.topic_id = client.create_topic(self.name, partitions=partitions)
        self.id = 0

    def ask(
        self, offsets: list[tuple[int, int]], *, session: tuple[int, int], forgotten: tuple[int, ...] = ()
    ) -> Fields:
        topics = [(self.name, self.topic_id, offsets)] if offsets else []
        gone = [(self.name, self.topic_id, forgotten)] if forgotten else []
        fields = fetch_fields(topics, session=session, forgotten=gone)
        return self.client.call(ApiKey.FETCH, self.version, fields)

    def start(self, offsets: list[tuple[int, int]]) -> Fields:
        answer = self.ask(offsets, session=NEW_SESSION)
        assert answer["error_code"] == ErrorCode.NONE
        assert answer["session_id"] != 0
        self.id = answer["session_id"]
        return answer

    def produce(self, partition: int, value: bytes) -> None:
        row = self.client.produce(self.name, batch(value), partition=partition)
        assert row["error_code"] == ErrorCode.NONE


def rows(answer: Fields) -> dict[int, list[bytes | None]]:
    """Partition to values, of the partitions that the answer names."""
    return {
        part["partition_index"]: [value for _, value in values_of(part["records"])]
        for row in answer["responses"]
        for part in row["partitions"]
    }


@pytest.fixture(params=[7, 12, 13, 18])
def session(client: RawClient, request: pytest.FixtureRequest) -> Session:
    return Session(client, request.param)


@pytest.mark.every_transport
def test_incremental_fetch_returns_changed_partitions_only(session: Session) -> None:
    session.start([(0, 0), (1, 0), (2, 0)])
    assert rows(session.ask([], session=(session.id, 1))) == {}
    session.produce(2, b"two")
    assert rows(session.ask([], session=(session.id, 2))) == {2: [b"two"]}
    # The consumer now asks for the next offset there: nothing new, so nothing is named.
    assert rows(session.ask([(2, 1)], session=(session.id, 3))) == {}
    session.produce(0, b"zero")
    session.produce(2, b"two again")
    assert rows(session.ask([], session=(session.id, 4))) == {0: [b"zero"], 2: [b"two again"]}


def test_incremental_fetch_repeats_partition_errors(session: Session) -> None:
    session.start([(0, 0)])
    for epoch in (1, 2):
        answer = session.ask([(0, 99)] if epoch == 1 else [], session=(session.id, epoch))
        codes = [part["error_code"] for row in answer["responses"] for part in row["partitions"]]
        assert codes == [ErrorCode.OFFSET_OUT_OF_RANGE]


def test_wrong_session_epoch_is_rejected_and_session_continues(session: Session) -> None:
    session.start([(0, 0)])
    answer = session.ask([], session=(session.id, 5))
    assert answer["error_code"] == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert rows(answer) == {}
    session.produce(0, b"zero")
    assert rows(session.ask([], session=(session.id, 1))) == {0: [b"zero"]}


def test_fetch_sessions_of_two_connections_are_independent(broker: BrokerUnderTest, session: Session) -> None:
    session.start([(0, 0)])
    with RawClient(broker.bootstrap) as client:
        other = Session(client, session.version)
        other.start([(0, 0)])
        assert other.id != session.id
        other.produce(0, b"theirs")
        assert rows(session.ask([], session=(session.id, 1))) == {}
        assert rows(other.ask([], session=(other.id, 1))) == {0: [b"theirs"]}


def test_fetch_session_of_deleted_topic_returns_error(client: RawClient) -> None:
    session = Session(client, 12)
    session.start([(0, 0)])
    client.delete_topic(session.name)
    answer = session.ask([], session=(session.id, 1))
    codes = {part["error_code"] for row in answer["responses"] for part in row["partitions"]}
    assert codes <= {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
    assert codes


def test_fetch_session_by_topic_id_after_topic_recreation(client: RawClient) -> None:
    session = Session(client, 18)
    session.start([(0, 0)])

    def code(epoch: int) -> int:
        (row,) = session.ask([], session=(session.id, epoch))["responses"]
        assert row["topic_id"] == session.topic_id
        return int(row["partitions"][0]["error_code"])

    client.delete_topic(session.name)
    assert code(1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    client.create_topic(session.name)
    assert code(2) == ErrorCode.INCONSISTENT_TOPIC_ID


def test_full_fetch_keeps_partition_order_of_its_session(session: Session) -> None:
    for partition in (0, 1):
        session.produce(partition, b"first")
    assert list(rows(session.start([(1, 0), (0, 1)]))) == [1, 0], "partition 1 brought records"
    for partition in (0, 1):
        session.produce(partition, b"second")
    assert list(rows(session.ask([], session=(session.id, 1)))) == [1, 0]
    assert list(rows(session.ask([], session=(session.id, 2)))) == [1, 0]
    session.ask([(0, 2)], session=(session.id, 3))
    order = list(rows(session.ask([(0, 0)], session=(session.id, 4))))
    assert order == [0, 1], "partition 1 alone was served"
