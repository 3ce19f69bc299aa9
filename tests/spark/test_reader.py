"""The readers against a broker, asked as Spark asks them, without Spark: all that is not Spark's own part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from kproc.client import Client
from kproc.common.reading import EARLIEST
from kproc.spark import brokers, look_up
from kproc.spark import reader as reader_module
from kproc.spark.brokers import Unreachable
from kproc.spark.look_up import DataLoss
from kproc.spark.offsets import TopicPartition
from kproc.spark.option_values import OptionError
from kproc.wire.header import ApiKey
from tests.spark.streams import numbered, recreate_topic, send
from tests.support.broker import BrokerUnderTest, ServedBroker
from tests.support.spark_readers import batch, between, stream, trim, values
from tests.support.topics import TopicFactory, fresh_name
from tests.support.wait import PATIENCE_SECONDS

pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs the spark extra")
pytest.importorskip("pyarrow", reason="needs the spark extra")

pytestmark = [pytest.mark.transports("process"), pytest.mark.usefixtures("own_connections")]


def without_notes(document: dict[str, Any]) -> dict[str, Any]:
    """The offsets of a document."""
    return {topic: rows for topic, rows in document.items() if not topic.startswith("@")}


@pytest.mark.usefixtures("short_looks")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "is-not-there"}, "there is no topic is-not-there on"),
        ({"assign": '{"TOPIC": [0, 7]}'}, "there is no partition TOPIC-7 on"),
        (
            {"subscribe": "TOPIC", "startingOffsets": '{"TOPIC": {"0": 0}}'},
            "must name every partition.*TOPIC-1",
        ),
        (
            {"subscribe": "TOPIC", "startingOffsets": '{"TOPIC": {"0": 3, "1": 0}}'},
            "of TOPIC-0 is 3, its log has 0 up to 0",
        ),
        ({"subscribe": "TOPIC", "startingTimestamp": "5"}, "has no record at or after 5 ms; .*Strategy=latest"),
    ],
)
def test_reader_errors_are_one_line(
    broker: BrokerUnderTest, topic: TopicFactory, options: dict[str, str], words: str
) -> None:
    name = topic(partitions=2)
    given = {key: value.replace("TOPIC", name) for key, value in options.items()}
    for reader in (
        batch(broker.bootstrap, **given).partitions,
        stream(broker.bootstrap, **given).initialOffset,
    ):
        if "assign" in given and reader.__name__ == "initialOffset":
            continue  # The last offsets of what is not there are asked for all the same.
        with pytest.raises((OptionError, DataLoss, brokers.UnknownTopic), match=words.replace("TOPIC", name)):
            reader()


def test_a_schema_that_a_topic_has_not_is_refused(broker: BrokerUnderTest) -> None:
    from pyspark.sql.types import DoubleType, StringType, StructField

    with pytest.raises(OptionError, match=r"a topic has no column amount, only key, value"):
        batch(broker.bootstrap, StructType([StructField("amount", DoubleType())]), subscribe="t")
    with pytest.raises(OptionError, match=r"column value is binary, not string: cast it after load"):
        batch(broker.bootstrap, StructType([StructField("value", StringType())]), subscribe="t")
    required = StructType([StructField("topic", StringType(), nullable=False)])
    with pytest.raises(OptionError, match=r"column topic and what is in it can be null: leave out `not null`"):
        batch(broker.bootstrap, required, subscribe="t")
    twice = StructType([StructField("topic", StringType())] * 2)
    with pytest.raises(OptionError, match="the schema has a column twice: topic, topic"):
        batch(broker.bootstrap, twice, subscribe="t")


def offsets_of(reader: Any) -> list[tuple[str, int, int, int]]:
    """(topic, partition, start, end) of a batch's tasks."""
    return [(*task.wanted.partition, task.wanted.start, task.wanted.end) for task in reader.partitions()]


def test_reader_positions_by_offsets_timestamps_and_patterns(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    name, other = topic(partitions=3), topic(stem="other")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 20})
    for partition in range(3):
        for offset in range(100):
            producer.produce(name, value=b"v", partition=partition, timestamp=1000 * partition + offset + 1)
    producer.produce(other, value=b"v", partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0

    def asked(**options: str) -> list[tuple[str, int, int, int]]:
        return offsets_of(batch(broker.bootstrap, **options))

    whole = [(name, partition, 0, 100) for partition in range(3)]
    assert asked(subscribe=name) == whole
    assert asked(
        subscribe=name,
        startingOffsets=f'{{"{name}": {{"0": 10, "1": -2, "2": 100}}}}',
        endingOffsets=f'{{"{name}": {{"0": 61, "1": 3, "2": -1}}}}',
    ) == [(name, 0, 10, 61), (name, 1, 0, 3)]
    assert asked(
        subscribe=name,
        startingTimestamp="1051",
        endingTimestamp="2021",
        startingOffsetsByTimestampStrategy="latest",
    ) == [(name, 1, 50, 100), (name, 2, 0, 20)]
    assert asked(
        subscribe=name,
        startingOffsetsByTimestamp=f'{{"{name}": {{"0": 0, "1": 1100, "2": 2051}}}}',
        endingOffsetsByTimestamp=f'{{"{name}": {{"0": 11, "1": 99999, "2": 2061}}}}',
    ) == [(name, 0, 0, 10), (name, 1, 99, 100), (name, 2, 50, 60)]
    assert asked(assign=f'{{"{name}": [1]}}') == [(name, 1, 0, 100)]
    assert asked(subscribe=f"{other}, {name}") == sorted([*whole, (other, 0, 0, 1)])
    assert asked(subscribePattern=f"{name[2:]}$|^{other}$") == sorted([*whole, (other, 0, 0, 1)])
    assert asked(subscribe=name, minPartitions="6", maxRecordsPerPartition="80") == [
        (name, partition, low, low + 50) for partition in range(3) for low in (0, 50)
    ]
    # Beside the log: a slip, unless losses are to be taken.
    beyond = {"subscribe": other, "startingOffsets": f'{{"{other}": {{"0": 0}}}}'}
    beyond["endingOffsets"] = f'{{"{other}": {{"0": 9}}}}'
    with pytest.raises(DataLoss, match=rf"endingOffsets of {other}-0 is 9, its log has 0 up to 1"):
        asked(**beyond)
    assert asked(**beyond, failOnDataLoss="false") == [(other, 0, 0, 1)]


@pytest.fixture
def requests_sent(monkeypatch: pytest.MonkeyPatch) -> list[ApiKey]:
    """The requests that the readers of this process send, in their order."""
    sent: list[ApiKey] = []
    call = Client.call_latest

    def counted(self: Client, api_key: ApiKey, *given: Any, **more: Any) -> dict[str, Any]:
        sent.append(api_key)
        return call(self, api_key, *given, **more)

    monkeypatch.setattr(Client, "call_latest", counted)
    return sent


@pytest.mark.parametrize("kind", ["subscribe", "subscribePattern", "assign"])
def test_plan_requests_metadata_once(
    broker: BrokerUnderTest, topic: TopicFactory, requests_sent: list[ApiKey], kind: str
) -> None:
    """Every plan sends one Metadata request, and one ListOffsets for each kind of offset that it needs."""
    names = [topic(stem="planned", partitions=2) for _ in range(2)]
    for name in names:
        send(broker.bootstrap, name, numbered(0, 5))
    listed = {
        "subscribe": ",".join(names),
        "subscribePattern": "^({})$".format("|".join(names)),
        "assign": json.dumps({name: [0, 1] for name in names}),
    }
    options = {kind: listed[kind], "startingOffsets": "earliest"}
    one_look = [ApiKey.METADATA, ApiKey.LIST_OFFSETS]

    table = batch(broker.bootstrap, **options)
    tasks = table.partitions()
    assert requests_sent == [*one_look, ApiKey.LIST_OFFSETS]
    assert values(table, tasks) == numbered(0, 5) * 2

    reader = stream(broker.bootstrap, **options)
    requests_sent.clear()
    start = reader.initialOffset()
    assert requests_sent == one_look
    requests_sent.clear()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert requests_sent == one_look
    requests_sent.clear()
    assert len(reader.partitions(start, end)) == 2
    assert requests_sent == [*one_look, ApiKey.LIST_OFFSETS]


def test_unreachable_broker_is_an_error_after_retries() -> None:
    options = {"subscribe": "t", "fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "1"}
    with pytest.raises(Unreachable, match=r"cannot connect to 127.0.0.1:9: connection refused"):
        batch("127.0.0.1:9", **options).partitions()


def test_planned_batch_keeps_start_of_latest(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    name = topic()
    send(broker.bootstrap, name, numbered(0, 5))
    first = stream(broker.bootstrap, subscribe=name)
    start = first.initialOffset()
    assert start == first.initialOffset()
    assert without_notes(start) == {name: {"0": 5}}
    send(broker.bootstrap, name, numbered(5, 3))
    planned = first.latestOffset(start, ReadAllAvailable())
    # The driver dies here. Records go on to arrive, and another process is asked where it all began.
    send(broker.bootstrap, name, numbered(8, 4))
    second = stream(broker.bootstrap, subscribe=name)
    assert without_notes(second.initialOffset()) == {name: {"0": 12}}
    assert between(second, second.initialOffset(), planned) == numbered(5, 3)
    end = second.latestOffset(planned, ReadAllAvailable())
    assert without_notes(end) == {name: {"0": 12}}
    assert between(second, planned, end) == numbered(8, 4)
    # Nothing new: the very same offsets, or Spark runs empty batches for ever.
    assert second.latestOffset(end, ReadAllAvailable()) == end
    assert second.latestOffset(planned, ReadMaxRows(1)) != planned

    # A first batch without records has its start in it, too.
    third = stream(broker.bootstrap, subscribe=name)
    empty = third.latestOffset(third.initialOffset(), ReadAllAvailable())
    send(broker.bootstrap, name, numbered(12, 1))
    fourth = stream(broker.bootstrap, subscribe=name)
    assert between(fourth, fourth.initialOffset(), empty) == []
    assert without_notes(third.latestOffset(empty, ReadAllAvailable())) == {name: {"0": 13}}


def test_first_batch_of_new_topic_keeps_its_start(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    """The query began when no topic matched. After a crash the topic's start must not be its present end."""
    name = fresh_name("awaited")
    options = {"subscribePattern": f"^{name}"}
    first = stream(broker.bootstrap, **options)
    start = first.initialOffset()
    assert start == {}
    created = topic(stem=name)
    send(broker.bootstrap, created, numbered(0, 5))
    planned = first.latestOffset(start, ReadAllAvailable())
    send(broker.bootstrap, created, numbered(5, 2))
    second = stream(broker.bootstrap, **options)
    assert between(second, second.initialOffset(), planned) == numbered(0, 5)
    assert between(second, planned, second.latestOffset(planned, ReadAllAvailable())) == numbered(5, 2)

    # Without a topic the start is stored, too, by one batch without records.
    nothing = stream(broker.bootstrap, subscribePattern="^no-topic-has-this-name")
    empty = nothing.latestOffset(nothing.initialOffset(), ReadAllAvailable())
    assert empty == {"@start": {}}
    assert nothing.partitions({}, empty) == []
    assert nothing.latestOffset(empty, ReadAllAvailable()) is empty


@pytest.mark.usefixtures("short_looks")
def test_topic_recreated_before_first_batch_is_read_whole(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    name = topic()
    send(broker.bootstrap, name, numbered(0, 5))
    lax = stream(broker.bootstrap, subscribe=name, failOnDataLoss="false")
    start = lax.initialOffset()
    recreate_topic(broker.bootstrap, name)
    send(broker.bootstrap, name, numbered(100, 7))
    planned = lax.latestOffset(start, ReadAllAvailable())
    assert between(lax, start, planned) == numbered(100, 7)


def test_limits_of_a_batch(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    send(broker.bootstrap, name, numbered(0, 300), partition=0, **{"batch.num.messages": 10})
    send(broker.bootstrap, name, numbered(300, 100), partition=1, **{"batch.num.messages": 10})
    start = {name: {"0": 0, "1": 0}}

    rows = stream(broker.bootstrap, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger=40)
    assert rows.getDefaultReadLimit() == ReadMaxRows(40)
    assert without_notes(rows.latestOffset(start, ReadMaxRows(40))) == {name: {"0": 30, "1": 10}}
    assert without_notes(rows.latestOffset(start, ReadAllAvailable())) == {name: {"0": 300, "1": 100}}

    low = stream(broker.bootstrap, subscribe=name, minOffsetsPerTrigger=500, maxTriggerDelay="1h")
    assert low.getDefaultReadLimit() == ReadMinRows(500)
    # The first batch does not wait; then 400 are too few until the delay is over.
    assert without_notes(low.latestOffset(start, ReadMinRows(500))) == {name: {"0": 300, "1": 100}}
    assert low.latestOffset(start, ReadMinRows(500)) is start
    send(broker.bootstrap, name, numbered(400, 100), partition=1)
    assert without_notes(low.latestOffset(start, ReadMinRows(500))) == {name: {"0": 300, "1": 200}}
    hasty = stream(broker.bootstrap, subscribe=name, minOffsetsPerTrigger=5000, maxTriggerDelay="0")
    assert (
        hasty.latestOffset(start, ReadMinRows(5000)) == hasty.latestOffset(start, ReadMinRows(5000)) != start
    )

    # About 200 bytes for a batch of ten: whole batches, both partitions, and in the end everything.
    sized = stream(broker.bootstrap, subscribe=name, maxBytesPerTrigger=1000)
    assert sized.getDefaultReadLimit() == ReadMaxBytes(1000)
    seen, begin, turns = [], start, 0
    while (end := sized.latestOffset(begin, ReadMaxBytes(1000))) != begin:
        got = between(sized, begin, end)
        seen += got
        begin, turns = end, turns + 1
        assert turns > 3 or 20 <= len(got) <= 60
    assert sorted(seen) == numbered(0, 500)


def test_available_now_reads_offsets_of_its_start_only(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    name = topic()
    send(broker.bootstrap, name, numbered(0, 50))
    reader = stream(
        broker.bootstrap, subscribePattern=f"^{name}$", startingOffsets="earliest", maxOffsetsPerTrigger=30
    )
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    send(broker.bootstrap, name, numbered(50, 10))
    first = reader.latestOffset(start, ReadMaxRows(30))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(name, 2)])[name].result(PATIENCE_SECONDS)
    second = reader.latestOffset(first, ReadMaxRows(30))
    assert without_notes(second) == {name: {"0": 50}}
    assert reader.latestOffset(second, ReadMaxRows(30)) is second
    assert between(reader, start, first) + between(reader, first, second) == numbered(0, 50)
    # What the progress shows is what is there, so that the lag is true.
    assert reader.reportLatestOffset() == {name: {"0": 60, "1": 0}}

    # The next run begins the new partition at its beginning, whatever startingOffsets says.
    send(broker.bootstrap, name, numbered(60, 5), partition=1)
    later = stream(broker.bootstrap, subscribePattern=f"^{name}$")
    end = later.latestOffset(second, ReadAllAvailable())
    assert without_notes(end) == {name: {"0": 60, "1": 5}}
    assert between(later, second, end) == numbered(50, 15)


def test_latest_offset_backs_off_while_no_record_arrives(
    broker: BrokerUnderTest, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    send(broker.bootstrap, name, numbered(0, 1))
    now_ns, pauses_ms = 10**15, []

    def pause(duration_ms: int) -> None:
        nonlocal now_ns
        pauses_ms.append(duration_ms)
        now_ns += duration_ms * 10**6

    monkeypatch.setattr(reader_module, "pause", pause)
    clock = type("Clock", (), {"now_ns": staticmethod(lambda: now_ns)})
    monkeypatch.setattr(reader_module, "SystemClock", clock)
    reader = stream(broker.bootstrap, subscribe=name, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert pauses_ms == []
    for _ in range(8):
        assert reader.latestOffset(end, ReadAllAvailable()) is end
        now_ns += 10 * 10**6  # Spark's own pause
    assert pauses_ms == [0, 10, 20, 40, 80, 160, 200, 200]

    # Something comes: at once again. A trigger of a second is never held up.
    send(broker.bootstrap, name, numbered(1, 1))
    end = reader.latestOffset(end, ReadAllAvailable())
    assert without_notes(end) == {name: {"0": 2}}
    pauses_ms.clear()
    for _ in range(3):
        now_ns += 10**9
        reader.latestOffset(end, ReadAllAvailable())
    assert pauses_ms == [0, 0, 0]


def test_a_partition_that_appears_a_little_later_is_waited_for(
    broker: BrokerUnderTest, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    cluster = brokers.Cluster(broker.bootstrap)
    before, asked = cluster.metadata, []

    def metadata(topics: Any = None) -> dict[str, brokers.TopicMetadata]:
        asked.append(topics)
        return before(topics) if len(asked) > 2 else {}

    monkeypatch.setattr(cluster, "metadata", metadata)
    assert cluster.list_offsets({TopicPartition(name, 0): EARLIEST}) == {TopicPartition(name, 0): 0}
    assert len(asked) == 3
    cluster.close()


@pytest.mark.usefixtures("short_looks")
def test_a_loss_is_an_error_or_a_warning(
    broker: BrokerUnderTest, topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    send(broker.bootstrap, name, numbered(0, 20))
    strict = stream(broker.bootstrap, subscribe=name, startingOffsets="earliest")
    lax = stream(broker.bootstrap, subscribe=name, startingOffsets="earliest", failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    planned = strict.partitions(start, end)
    trim(broker.bootstrap, name, 0, 12)

    # Retention took records away: before the batch is planned, and while its task waits for its turn.
    with pytest.raises(DataLoss, match=rf"{name}-0 is to be read from offset 0, its log starts at 12"):
        strict.partitions(start, end)
    with pytest.raises(DataLoss, match=rf"offset 0 of {name}-0 is gone, its log starts at 12"):
        values(strict, planned)
    assert between(lax, start, end) == numbered(12, 8)
    assert "its log starts at 12" in caplog.text

    # The log is shorter than a checkpoint without topic ids says: there is no telling what was missed.
    recreate_topic(broker.bootstrap, name)
    send(broker.bootstrap, name, numbered(100, 4))
    fresh = stream(broker.bootstrap, subscribe=name)
    with pytest.raises(DataLoss, match=rf"{name}-0 was read up to offset 20 and ends at 4 now"):
        fresh.latestOffset({name: {"0": 20}}, ReadAllAvailable())
    shorter = lax.latestOffset({name: {"0": 20}}, ReadAllAvailable())
    assert without_notes(shorter) == {name: {"0": 4}}
    assert lax.partitions({name: {"0": 20}}, shorter) == []
    # A batch that was planned before ends at once, not after the task's 120 s.
    with pytest.raises(DataLoss, match=rf"{name}-0 is to be read up to offset 20, and its log ends at 4"):
        strict.partitions({name: {"0": 12}}, {name: {"0": 20}})

    # Gone altogether. Its offset is kept, and its loss is reported once.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([name])[name].result(PATIENCE_SECONDS)
    with pytest.raises(DataLoss, match=rf"{name}-0 does not exist or is not subscribed any more.*up to offset 4"):
        fresh.latestOffset({name: {"0": 4}}, ReadAllAvailable())
    caplog.clear()
    start = {name: {"0": 4}}
    for _ in range(2):
        assert without_notes(lax.latestOffset(start, ReadAllAvailable())) == start
    assert caplog.text.count(f"{name}-0 does not exist or is not subscribed") == 1


@pytest.mark.usefixtures("short_looks")
def test_restart_with_read_committed_waits_for_transaction(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    """The query had read uncommitted records. The last stable offset is below its own: no loss, and nothing twice."""
    name = topic()
    send(broker.bootstrap, name, numbered(0, 5))
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce(name, b"open", partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    first = stream(broker.bootstrap, subscribe=name, startingOffsets="earliest")
    start = first.initialOffset()
    end = first.latestOffset(start, ReadAllAvailable())
    assert without_notes(end) == {name: {"0": 6}}

    committed = {"subscribe": name, "kafka.isolation.level": "read_committed"}
    for prepares in (False, True):
        reader = stream(broker.bootstrap, **committed)
        # A batch that was planned before and runs again does not report a loss.
        assert len(reader.partitions(start, end)) == 1
        if prepares:
            reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset(end, ReadAllAvailable()) is end
    producer.commit_transaction(PATIENCE_SECONDS)
    send(broker.bootstrap, name, ["later"])
    reader = stream(broker.bootstrap, **committed)
    assert between(reader, end, reader.latestOffset(end, ReadAllAvailable())) == ["later"]


@pytest.mark.usefixtures("short_looks")
def test_latest_offset_of_recreated_topic_reports_loss(
    broker: BrokerUnderTest, topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic that was deleted and created again has another id, however many records it has."""
    name = topic(partitions=2)
    send(broker.bootstrap, name, numbered(0, 5))
    first = stream(broker.bootstrap, subscribe=name, startingOffsets="earliest")
    end = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    # Fewer partitions and as many records: nothing but the id tells.
    recreate_topic(broker.bootstrap, name)
    send(broker.bootstrap, name, numbered(100, 5))
    # By the process that read the former topic, and by one that has its checkpoint.
    for reader in (first, stream(broker.bootstrap, subscribe=name)):
        with pytest.raises(
            DataLoss, match=rf"topic {name} was deleted and created again, and was read before, partition 0 to"
        ):
            reader.latestOffset(end, ReadAllAvailable())
    lax = stream(broker.bootstrap, subscribe=name, failOnDataLoss="false")
    after = lax.latestOffset(end, ReadAllAvailable())
    assert between(lax, end, after) == numbered(100, 5)
    assert caplog.text.count(f"topic {name} was deleted and created again") == 1
    assert lax.latestOffset(after, ReadAllAvailable()) is after
    # The same batch after a crash of the driver.
    assert between(stream(broker.bootstrap, subscribe=name), end, after) == numbered(100, 5)


@pytest.mark.usefixtures("short_looks")
@pytest.mark.parametrize("count", [3, 10, 40])
def test_available_now_notices_recreated_topic(
    broker: BrokerUnderTest, topic: TopicFactory, count: int
) -> None:
    """The target of the trigger is of the former topic, whether the new one is shorter, as long or longer."""
    name = topic()
    send(broker.bootstrap, name, numbered(0, 10))
    options = {"subscribe": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 4}
    strict = stream(broker.bootstrap, **options)
    lax = stream(broker.bootstrap, **options, failOnDataLoss="false")
    for reader in (strict, lax):
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(start, ReadMaxRows(4))
    recreate_topic(broker.bootstrap, name)
    send(broker.bootstrap, name, numbered(100, count))
    with pytest.raises(DataLoss, match=f"topic {name} was deleted and created again"):
        strict.latestOffset(end, ReadMaxRows(4))
    seen = []
    while (after := lax.latestOffset(end, ReadMaxRows(4))) is not end:
        seen += between(lax, end, after)
        end = after
    assert seen == numbered(100, count)


@pytest.mark.usefixtures("short_looks")
def test_task_of_recreated_topic_reads_nothing_of_the_new_one(
    broker: BrokerUnderTest, topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic is created again between the plan and the task: a stream's and a batch's, by Fetch and by files."""
    name = topic()
    send(broker.bootstrap, name, numbered(0, 10))
    planned = []
    for directory in ("auto", "none"):
        options = {"subscribe": name, "startingOffsets": "earliest", "kproc.data.dir": directory}
        for lax in ("true", "false"):
            table = batch(broker.bootstrap, **options, failOnDataLoss=lax)
            flow = stream(broker.bootstrap, **options, failOnDataLoss=lax)
            start = flow.initialOffset()
            end = flow.latestOffset(start, ReadAllAvailable())
            planned += [(lax, table, table.partitions()), (lax, flow, flow.partitions(start, end))]
    recreate_topic(broker.bootstrap, name)
    send(broker.bootstrap, name, numbered(100, 10))
    for is_strict, reader, tasks in planned:
        if is_strict == "true":
            with pytest.raises(DataLoss, match=f"{name}-0"):
                values(reader, tasks)
        else:
            assert values(reader, tasks) == []
    # And one that is planned again by a driver that comes back.
    with pytest.raises(DataLoss, match=f"topic {name} was deleted and created again after the batch was planned"):
        stream(broker.bootstrap, subscribe=name).partitions(start, end)


def test_planned_batch_waits_for_topic_of_a_starting_broker(
    broker: BrokerUnderTest, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is planned again while a broker starts is no loss: the broker names the topic a little later."""
    name = topic()
    send(broker.bootstrap, name, numbered(0, 5))
    reader = stream(broker.bootstrap, subscribe=name, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    cluster = reader._look_up.cluster
    metadata, looks = cluster.metadata, []

    def later(topics: Any = None) -> dict[str, brokers.TopicMetadata]:
        looks.append(topics)
        return metadata(topics) if len(looks) > 2 else {}

    monkeypatch.setattr(cluster, "metadata", later)
    tasks = reader.partitions(start, end)
    assert len(looks) == 3
    assert values(reader, tasks) == numbered(0, 5)


def test_reader_continues_topic_that_returns_with_same_id(
    broker: BrokerUnderTest, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just started may not name a topic for a while: its offset must not become 0."""
    name = topic()
    send(broker.bootstrap, name, numbered(0, 5))
    reader = stream(broker.bootstrap, subscribe=name, startingOffsets="earliest", failOnDataLoss="false")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    monkeypatch.setattr(look_up, "SETTLE_MS", 0)
    cluster = reader._look_up.cluster
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "metadata", lambda topics=None: {})
        assert reader.latestOffset(end, ReadAllAvailable()) == end
    send(broker.bootstrap, name, numbered(5, 2))
    after = reader.latestOffset(end, ReadAllAvailable())
    assert between(reader, end, after) == numbered(5, 2)


@pytest.mark.usefixtures("short_looks")
@pytest.mark.parametrize("kind", ["subscribe", "assign"])
def test_planned_batch_loses_only_records_of_deleted_topic(
    broker: BrokerUnderTest,
    topic: TopicFactory,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    kept, gone = topic(), topic(stem="gone")
    for name in (kept, gone):
        send(broker.bootstrap, name, numbered(0, 10))
    subscription = f"{kept},{gone}" if kind == "subscribe" else json.dumps({kept: [0], gone: [0]})
    given: dict[str, Any] = {kind: subscription, "startingOffsets": "earliest"}
    strict, lax = (stream(broker.bootstrap, **given, failOnDataLoss=word) for word in ("true", "false"))
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    tasks = [repr(each) for each in strict.partitions(start, end)]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([gone])[gone].result(PATIENCE_SECONDS)

    # As after a restart, which runs the batch that was planned once more.
    with pytest.raises(DataLoss, match=rf"{gone}-0 is to be read up to offset 10, and does not exist any more"):
        strict.partitions(start, end)
    planned = lax.partitions(start, end)
    assert [repr(each) for each in planned] == tasks, "the same tasks as before"
    assert values(lax, planned) == numbered(0, 10)
    assert f"{gone}-0 is to be read up to offset 10, and does not exist any more" in caplog.text

    send(broker.bootstrap, kept, numbered(10, 5))
    with pytest.raises(DataLoss, match=rf"{gone}-0 does not exist or is not subscribed any more.*up to offset 10"):
        strict.latestOffset(end, ReadAllAvailable())
    following = lax.latestOffset(end, ReadAllAvailable())
    assert without_notes(following) == {gone: {"0": 10}, kept: {"0": 15}}
    assert between(lax, end, following) == numbered(10, 5)
    # The two share a limit, whichever of them is still there when the backlog is sampled.
    limited = stream(broker.bootstrap, **given, failOnDataLoss="false", maxBytesPerTrigger="1g")
    limited._target = {TopicPartition(kept, 0): 15, TopicPartition(gone, 0): 10}
    assert limited.latestOffset({kept: {"0": 10}}, ReadMaxBytes(1 << 30))[kept] == {"0": 15}


def test_a_range_begins_and_ends_inside_batches(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    name = topic()
    send(broker.bootstrap, name, numbered(0, 100), **{"batch.num.messages": 100, "linger.ms": 100})
    reader = stream(broker.bootstrap, subscribe=name)
    assert between(reader, {name: {"0": 37}}, {name: {"0": 61}}) == numbered(37, 24)
    assert between(reader, {name: {"0": 61}}, {name: {"0": 61}}) == []


def test_offsets_are_committed_for_lag_tools(broker: BrokerUnderTest, topic: TopicFactory) -> None:
    name, group = topic(partitions=2), fresh_name("lag")
    reader = stream(broker.bootstrap, subscribe=name, commitGroup=group)
    reader.commit({"@start": {name: {"0": 0}}, name: {"0": 0, "1": 7}})
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        found = consumer.committed([ConfluentPartition(name, 0), ConfluentPartition(name, 1)], timeout=PATIENCE_SECONDS)
    finally:
        consumer.close()
    assert [each.offset for each in found] == [0, 7]


@pytest.mark.usefixtures("short_looks")
def test_commit_leaves_out_offsets_of_missing_topics(
    broker: BrokerUnderTest,
    topic: TopicFactory,
    requests_sent: list[ApiKey],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With failOnDataLoss=false a missing topic keeps its offset, which a broker would not commit."""
    kept, gone = topic(), topic(stem="gone")
    reader = stream(broker.bootstrap, subscribe=f"{kept},{gone}", commitGroup="left", failOnDataLoss="false")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([gone])[gone].result(PATIENCE_SECONDS)
    end = reader.latestOffset(end, ReadAllAvailable())
    assert without_notes(end) == {gone: {"0": 0}, kept: {"0": 0}}
    reader.commit(end)
    assert requests_sent.count(ApiKey.OFFSET_COMMIT) == 1
    assert "are not committed" not in caplog.text


@contextmanager
def restarting(tmp_path: Path) -> Iterator[ServedBroker]:
    from bench.peers.base import free_ports

    with ServedBroker(tmp_path / "data", port=free_ports(1)[0]) as served:
        yield served


@pytest.mark.long
def test_a_restart_of_the_broker_is_ridden_over(tmp_path: Path) -> None:
    with restarting(tmp_path) as served:
        name = TopicFactory(served.bootstrap)()
        send(served.bootstrap, name, numbered(0, 2000), **{"batch.num.messages": 100})
        reader = stream(
            served.bootstrap, subscribe=name, startingOffsets="earliest", **{"kafka.fetch.max.bytes": "4k"}
        )
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        (task,) = reader.partitions(start, end)
        rows = reader.read(task)
        served.stop()
        served.start()
        # Connections of driver and task are dead; neither is told.
        seen = [bytes(value).decode() for each in rows for value in each.column("value").to_pylist()]
        assert seen == numbered(0, 2000)
        send(served.bootstrap, name, numbered(2000, 3))
        after = reader.latestOffset(end, ReadAllAvailable())
        assert between(reader, end, after) == numbered(2000, 3)
