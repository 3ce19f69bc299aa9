"""The sink's producer against refusals, hang-ups and restarts: every record once, in order, or a clear error."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")

from kproc.common.errors import ErrorCode  # noqa: E402
from kproc.spark.brokers import Cluster, Connecting  # noqa: E402
from kproc.spark.encode import Draft, RecordEncoder, RowColumns  # noqa: E402
from kproc.spark.lane import ProducerIdentity  # noqa: E402
from kproc.spark.offsets import TopicPartition  # noqa: E402
from kproc.spark.producer import BatchProducer, ProduceFailed  # noqa: E402
from kproc.spark.sink_options import ProducerSettings  # noqa: E402
from kproc.wire.record_batch import parse_header  # noqa: E402
from tests.support.broker import BrokerUnderTest, ServedBroker  # noqa: E402
from tests.support.raw import RawClient, values_of  # noqa: E402
from tests.support.scripted_broker import HANG_UP_AFTER, HANG_UP_BEFORE, SILENCE, ScriptedBroker, Verdict  # noqa: E402
from tests.support.topics import TopicFactory  # noqa: E402
from tests.support.wait import stretched  # noqa: E402

TOPIC = "t"
QUICK: dict[str, Any] = {"backoff_ms": 5, "backoff_ms_max": 20}


class Running:
    """A producer, and the values that it was given, by partition."""

    def __init__(self, bootstrap: str, *, retry_ms: int = 60_000, **settings: Any) -> None:
        self.settings = ProducerSettings(**{**QUICK, **settings})
        self.cluster = Cluster(bootstrap, Connecting(backoff_ms=5, backoff_ms_max=50, retry_ms=retry_ms))
        self.producer = BatchProducer(self.cluster, self.settings)
        self.given: dict[int, list[bytes]] = {}

    def close(self) -> None:
        self.producer.close()
        self.cluster.close()

    def draft(self, partition: int, count: int, *, value_bytes: int = 20) -> Draft:
        values = self.given.setdefault(partition, [])
        new = [b"%d:%d:" % (partition, len(values) + at) for at in range(count)]
        new = [value.ljust(value_bytes, b".") for value in new]
        values += new
        rows = RowColumns(pa.array(new, pa.binary()), None, None, np.full(count, 1_700_000_000_000, np.int64))
        encoder = RecordEncoder(batch_bytes=1 << 26, bytes_max=1 << 26)
        (draft,) = encoder.encode(rows, np.full(count, partition, np.int32))
        return draft

    def send(self, partition: int, count: int = 10, topic: str = TOPIC, **more: Any) -> None:
        self.producer.partition_count(topic)
        self.producer.send(topic, self.draft(partition, count, **more))


def running(bootstrap: str, **settings: Any) -> closing[Running]:
    return closing(Running(bootstrap, **settings))


def check(broker: ScriptedBroker, run: Running) -> None:
    for partition, log in enumerate(broker.logs):
        assert [record.value for record in log.records] == run.given.get(partition, [])


def scripted(verdicts: Iterator[Verdict]):
    return lambda topic, partition, batch: next(verdicts, None)


@pytest.mark.parametrize("seed", range(8))
def test_producer_keeps_order_through_random_errors(seed: int) -> None:
    source = random.Random(seed)
    misfortunes = [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        HANG_UP_BEFORE,
        HANG_UP_AFTER,
    ]

    def verdict(topic: str, partition: int, batch: bytes) -> Verdict:
        return source.choice(misfortunes) if source.random() < 0.25 else None

    with ScriptedBroker(TOPIC, 3, verdict) as broker, running(broker.bootstrap) as run:
        for _ in range(150):
            run.send(source.randrange(3), source.randrange(1, 30))
            if source.random() < 0.5:
                run.producer.poll()
            if source.random() < 0.05:
                run.producer.flush()
        run.producer.flush()
        check(broker, run)
        written = run.producer.drain_totals()
        assert {key[1]: row.records for key, row in written.items()} == {
            partition: len(values) for partition, values in run.given.items()
        }
        assert run.producer.drain_totals() == {}


def test_producer_pipelines_after_first_acknowledgement() -> None:
    with ScriptedBroker(TOPIC, 1, scripted(iter(()))) as broker, running(broker.bootstrap) as run:
        for _ in range(20):
            run.send(0)
        most = 0
        while run.producer._busy:
            run.producer._turn(wait_ms=1_000)
            most = max(most, len(run.producer._lanes[TOPIC, 0].under_way))
        check(broker, run)
        assert 1 < most <= 5


def test_producer_resends_batch_with_same_sequence() -> None:
    verdicts = iter([None, HANG_UP_AFTER, ErrorCode.NOT_LEADER_OR_FOLLOWER])
    with ScriptedBroker(TOPIC, 1, scripted(verdicts)) as broker, running(broker.bootstrap) as run:
        for _ in range(3):
            run.send(0, 7)
            run.producer.flush()
        check(broker, run)
        sequences = [parse_header(batch).base_sequence for request in broker.requests for _, batch in request]
        assert sequences == [0, 7, 7, 7, 14]


def test_sequences_wrap_after_the_largest_one() -> None:
    with ScriptedBroker(TOPIC, 1, scripted(iter(()))) as broker, running(broker.bootstrap) as run:
        run.send(0, 10)
        run.producer.flush()
        run.producer._lanes[TOPIC, 0].next_sequence = 2**31 - 5
        for known in broker.logs[0].producers.values():
            known[-1] = (0, 2**31 - 6, 0)
        run.send(0, 10)
        run.producer.flush()
        broker.logs[0].producers.clear()
        run.send(0, 3)
        run.producer.flush()
        check(broker, run)
        assert parse_header(broker.requests[-1][0][1]).base_sequence == 5


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_producer_gets_new_id_if_broker_forgot_it(code: ErrorCode) -> None:
    verdicts = iter([None, None, code])
    with ScriptedBroker(TOPIC, 2, scripted(verdicts)) as broker, running(broker.bootstrap) as run:
        for _ in range(2):
            run.send(0)
            run.send(1)
            run.producer.flush()
        run.send(0)
        run.producer.flush()
        check(broker, run)
        assert broker.producer_ids == 2
        last = parse_header(broker.requests[-1][0][1])
        assert last.producer_id == 2


def test_new_producer_id_does_not_resend_uncertain_batches() -> None:
    """Partition 1 stored its batch and nobody heard; then partition 0 wants a new producer."""
    forgotten, moved = ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.NOT_LEADER_OR_FOLLOWER
    verdicts = {0: iter([None, moved, forgotten]), 1: iter([None, HANG_UP_AFTER, moved])}
    by_partition = lambda topic, partition, batch: next(verdicts[partition], None)  # noqa: E731
    with ScriptedBroker(TOPIC, 2, by_partition) as broker, running(broker.bootstrap) as run:
        for _ in range(3):
            run.send(0)
            run.send(1)
            run.producer.flush()
        check(broker, run)
        assert broker.producer_ids == 2
        last = [parse_header(batch) for _, batch in broker.requests[-1]]
        assert [header.producer_id for header in last] == [2, 2]


def test_producer_reconnects_after_invalid_response() -> None:
    class Confused(ScriptedBroker):
        def _produce(self, fields: dict[str, Any]) -> dict[str, Any] | None:
            answer = super()._produce(fields)
            if answer is not None and len(self.requests) == 1:
                answer["responses"][0]["partition_responses"][0]["index"] = 7
            return answer

    # Without it the batches wait until the delivery timeout.
    settings = {"delivery_timeout_ms": 20_000}
    with Confused(TOPIC, 2, lambda *_: None) as broker, running(broker.bootstrap, **settings) as run:
        run.send(0)
        run.send(1)
        run.producer.flush()
        check(broker, run)
        assert len(broker.requests) == 2


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, r"t-1: .*\(TOPIC_AUTHORIZATION_FAILED\)"),
        (
            ErrorCode.INVALID_RECORD,
            r"t-1: .*\(INVALID_RECORD\); a compacted topic takes no record without a key",
        ),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, r"t-1: .*\(OUT_OF_ORDER_SEQUENCE_NUMBER\); .*missing on the broker"),
        (ErrorCode.INVALID_REQUIRED_ACKS, r"t-1: .*\(INVALID_REQUIRED_ACKS\)"),
    ],
)
def test_producer_fails_at_once_on_fatal_error(code: ErrorCode, words: str) -> None:
    with ScriptedBroker(TOPIC, 2, lambda *_: code) as broker, running(broker.bootstrap) as run:
        run.send(1)
        with pytest.raises(ProduceFailed, match=words) as caught:
            run.producer.flush()
        assert "\n" not in str(caught.value)
        assert len(broker.requests) == 1


def test_producer_delivery_timeout_names_the_last_error() -> None:
    refuse = lambda *_: ErrorCode.NOT_ENOUGH_REPLICAS  # noqa: E731
    with ScriptedBroker(TOPIC, 1, refuse) as broker:
        with running(broker.bootstrap, delivery_timeout_ms=1_000) as run:
            run.send(0)
            with pytest.raises(
                ProduceFailed, match=r"t-0: not acknowledged .*\(1 s\); last: .*\(NOT_ENOUGH_REPLICAS\)"
            ):
                run.producer.flush()
        with running(broker.bootstrap, retries=2) as run:
            before = len(broker.requests)
            run.send(0)
            with pytest.raises(ProduceFailed, match=r"\(NOT_ENOUGH_REPLICAS\); gave up after kafka.retries=2 retries"):
                run.producer.flush()
            assert len(broker.requests) - before == 3


def test_producer_treats_missing_response_as_lost_connection() -> None:
    settings = {"request_timeout_ms": stretched(250)}
    with (
        ScriptedBroker(TOPIC, 1, scripted(iter([SILENCE]))) as broker,
        running(broker.bootstrap, **settings) as run,
    ):
        run.send(0)
        run.producer.flush()
        check(broker, run)
        assert len(broker.requests) == 2


def test_producer_without_idempotence_and_with_acks_0(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {"is_idempotent": False}
    with ScriptedBroker(TOPIC, 1, scripted(iter(()))) as broker:
        with running(broker.bootstrap, acks=0, **plain) as run:
            for _ in range(50):
                run.send(0, 100, value_bytes=500)
            waits, select = [], run.producer._nodes._selector.select
            monkeypatch.setattr(
                run.producer._nodes._selector, "select", lambda seconds: waits.append(seconds) or select(seconds)
            )
            run.producer.flush()
            assert waits[-1] == 0, "no response is waited for"
            assert run.producer.drain_totals()[TOPIC, 0].records == 5_000
        with running(broker.bootstrap, acks=1, **plain) as run:
            run.send(0)
            run.producer.flush()
        assert broker.producer_ids == 0
        sequences = {parse_header(batch).base_sequence for rows in broker.requests for _, batch in rows}
        assert sequences == {-1}


@pytest.mark.long
def test_producer_splits_batches_by_max_message_bytes(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    name = topic(configs={"max.message.bytes": "3000"})
    with running(broker.bootstrap) as run:
        for _ in range(4):
            run.send(0, 100, topic=name, value_bytes=100)
        run.producer.flush()
        assert run.producer.batch_bytes[name] <= 3_000
        run.send(0, 1, topic=name, value_bytes=5_000)
        with pytest.raises(ProduceFailed, match=rf"{name}-0: .*\(MESSAGE_TOO_LARGE\).*one record is larger"):
            run.producer.flush()
    with RawClient(broker.bootstrap) as client:
        got = [value for _, value in values_of(client.fetch(name, 0)["records"])]
    assert got == run.given[0][:-1]


def test_producer_with_unknown_topic_and_auto_creation(
    start_broker: Any,
) -> None:
    making = start_broker({"num.partitions": "3"})
    with running(making.bootstrap) as run:
        assert run.producer.partition_count("made") == 3
    with running(making.bootstrap, creates_topics=False) as run:
        with pytest.raises(ProduceFailed, match=r"topic other does not exist on .*kproc topic create other"):
            run.producer.partition_count("other")
        with pytest.raises(ProduceFailed, match=r"topic a b: .*\(INVALID_TOPIC_EXCEPTION\)"):
            run.producer.partition_count("a b")


@pytest.mark.faults
@pytest.mark.transports("process")
def test_producer_survives_broker_restart(tmp_path: Path, transport: str) -> None:
    with ServedBroker(tmp_path / "data", transport=transport) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic(TOPIC, partitions=2)
        port = int(broker.bootstrap.rpartition(":")[2])
        # Each poll without a broker lasts as long as a request is tried again.
        with running(broker.bootstrap, retry_ms=200) as run:
            for number in range(40):
                run.send(number % 2, 200)
            run.producer.poll()
            broker.stop()
            for _ in range(3):
                run.producer.poll()  # While nobody is there, longer than one question is tried.
            with ServedBroker(tmp_path / "data", transport=transport, port=port) as again:
                for number in range(40):
                    run.send(number % 2, 200)
                run.producer.flush()
                with RawClient(again.bootstrap) as client:
                    for partition in (0, 1):
                        fetched = client.fetch(TOPIC, 0, partition=partition, partition_max_bytes=1 << 24)
                        assert [value for _, value in values_of(fetched["records"])] == run.given[partition]


class Joined:
    """A transaction that remembers what was added to it, and when: after how many requests."""

    identity = ProducerIdentity(77, 5, "query-0")

    def __init__(self, broker: ScriptedBroker) -> None:
        self.added: list[tuple[int, TopicPartition]] = []
        self._broker = broker

    def add(self, places: Iterable[TopicPartition]) -> None:
        self.added += [(len(self._broker.requests), place) for place in places]


def test_producer_adds_partitions_before_transactional_batch() -> None:
    verdicts = iter([HANG_UP_AFTER, ErrorCode.NOT_LEADER_OR_FOLLOWER])
    with ScriptedBroker(TOPIC, 2, scripted(verdicts)) as broker, running(broker.bootstrap) as run:
        for identity in (Joined.identity, ProducerIdentity(77, 6, "query-0")):
            transaction = Joined(broker)
            transaction.identity = identity
            run.producer.start_transaction(transaction)
            before = len(broker.requests)
            for partition in (0, 1, 0):
                run.send(partition, 7)
            run.producer.flush()
            assert set(transaction.added[:2]) == {(before, TopicPartition(TOPIC, each)) for each in (0, 1)}
            headers = [parse_header(batch) for request in broker.requests[before:] for _, batch in request]
            assert all(header.is_transactional for header in headers)
            assert {(header.producer_id, header.producer_epoch) for header in headers} == {identity[:2]}
            assert {header.base_sequence for header in headers} == {0, 7}
        assert set(broker.transactional_ids) == {"query-0"}
        assert broker.producer_ids == 0
        check(broker, run)


def test_fenced_producer_does_not_take_a_new_producer_id() -> None:
    fenced = scripted(iter([ErrorCode.INVALID_PRODUCER_EPOCH]))
    with ScriptedBroker(TOPIC, 1, fenced) as broker, running(broker.bootstrap) as run:
        run.producer.start_transaction(Joined(broker))
        run.send(0)
        with pytest.raises(ProduceFailed, match="INVALID_PRODUCER_EPOCH"):
            run.producer.flush()
        assert broker.producer_ids == 0
