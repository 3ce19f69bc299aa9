"""The sink without Spark and without a broker: what it refuses, and what a task holds in memory while it writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")

from pyspark.sql import types  # noqa: E402

from kproc.spark import writer as writer_module  # noqa: E402
from kproc.spark.encode import Draft  # noqa: E402
from kproc.spark.sink_options import parse_sink_options  # noqa: E402
from kproc.spark.task_writer import GATHER_ALL_BYTES_MAX, TaskWriter  # noqa: E402
from kproc.spark.writer import MicroBatch, batch_writer, stream_writer  # noqa: E402

MiB = 1024 * 1024
ONCE = {"delivery": "exactly-once"}
BROKER = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


class Sent:
    """In the place of a Producer: counts what it is given."""

    def __init__(self) -> None:
        self.batch_bytes: dict[str, int] = {}
        self.bytes = 0
        self.records: Counter[str] = Counter()

    def partition_count(self, topic: str) -> int:
        return 100

    def send(self, topic: str, draft: Draft) -> None:
        self.bytes += draft.total_bytes
        self.records[topic] += draft.count

    def poll(self) -> None: ...

    def flush(self) -> None: ...


def test_writer_bounds_buffered_rows_over_all_topics() -> None:
    sent: Any = Sent()
    given = 0
    most = 0

    def batches() -> Iterator[Any]:
        nonlocal given, most
        value = b"x" * 10_000
        for number in range(120):
            yield pa.record_batch(
                {"value": pa.array([value] * 105), "topic": pa.array([f"t{number % 40}"] * 105)}
            )
            given += 105 * len(value)
            most = max(most, given - sent.bytes)

    TaskWriter(parse_sink_options(BROKER), sent, 0).write(batches())
    assert given > 3 * GATHER_ALL_BYTES_MAX
    assert 20 * MiB < most < GATHER_ALL_BYTES_MAX + 2 * MiB
    assert sent.records == {f"t{number}": 3 * 105 for number in range(40)}


def test_writer_counts_unused_columns_that_share_a_buffer() -> None:
    sent: Any = Sent()
    sent_when: list[int] = []

    def batches() -> Iterator[Any]:
        for number in range(40):
            yield pa.record_batch({"value": pa.array(["v"] * 1_000), "more": pa.array(["x" * 2_000] * 1_000)})
            if sum(sent.records.values()) == 1_000 * (number + 1):
                sent_when.append(number + 1)

    TaskWriter(parse_sink_options({**BROKER, "topic": "t"}), sent, 0).write(batches())
    assert sent_when == [17, 34]  # 2 MB each, 32 MiB in all.
    assert sent.records == {"t": 40_000}


STRING, INT, LONG = types.StringType(), types.IntegerType(), types.LongType()
VALUE = {"value": STRING}
TO = {**BROKER, "topic": "t"}


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (VALUE, {"topic": "t"}, "must be specified for configuring Kafka producer"),
        ({"key": STRING}, TO, "Required attribute 'value' not found: the columns are key"),
        (VALUE, BROKER, "topic option required when no 'topic' attribute is present"),
        ({"value": LONG}, TO, "value attribute type must be a string or binary, not bigint"),
        ({"key": INT, **VALUE}, TO, "key attribute type must be a string or binary, not int"),
        ({**VALUE, "topic": INT}, BROKER, "topic attribute type must be a string, not int"),
        ({**VALUE, "partition": LONG}, TO, "partition attribute type must be a int, not bigint"),
        ({**VALUE, "timestamp": LONG}, TO, "timestamp attribute type must be a timestamp, not bigint"),
        ({**VALUE, "headers": types.ArrayType(STRING)}, TO, "headers attribute type must be a array<struct<"),
        (VALUE, {**TO, "acks": "1"}, "there is no option acks: did you mean kafka.acks"),
        (VALUE, {**TO, "kafka.akcs": "1"}, "did you mean kafka.acks"),
        (VALUE, {**TO, "kafka.acks": "2"}, "kafka.acks is all, -1, 1 or 0, not '2'"),
        (VALUE, {**TO, "kafka.batch.size": "many"}, "kafka.batch.size is a whole number, not 'many'"),
        (VALUE, {**TO, "kafka.partitioner.class": "X"}, "a column named partition"),
        (VALUE, {**TO, "kafka.transactional.id": "x"}, "use delivery=exactly-once"),
        (VALUE, {**TO, "delivery": "often"}, "delivery is at-least-once or exactly-once, not 'often'"),
        (VALUE, {**TO, **ONCE, "kafka.acks": "1"}, "delivery=exactly-once needs kafka.acks=all"),
        (VALUE, {**TO, **ONCE, "txnAppId": "me"}, "txnAppId and txnVersion go together"),
        (VALUE, {**TO, **ONCE, "txnVersion": "1"}, "txnAppId and txnVersion go together"),
        (VALUE, {**TO, **ONCE, "txnAppId": "me", "txnVersion": "-1"}, "txnVersion is at least 0, not -1"),
        (VALUE, {**TO, "txnAppId": "me", "txnVersion": "1"}, "txnAppId goes with delivery=exactly-once"),
        (VALUE, {**TO, "kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism: is missing"),
        (VALUE, {**TO, "kproc.client.config": "/none"}, "cannot read /none"),
    ],
)
def test_writer_rejects_invalid_schema_in_one_line(
    columns: dict[str, types.DataType], options: dict[str, str], words: str
) -> None:
    schema = types.StructType([types.StructField(name, kind) for name, kind in columns.items()])
    for writer in (batch_writer, stream_writer):
        with pytest.raises(ValueError, match=words) as caught:
            writer(options, schema, False)
        assert "\n" not in str(caught.value)


def test_batch_writer_rejects_overwrite_and_stream_appends() -> None:
    """Overwriting is the save mode of a batch, and the output mode complete of a stream."""
    schema = types.StructType([types.StructField("value", STRING)])
    with pytest.raises(ValueError, match="a topic is only appended to"):
        batch_writer(TO, schema, True)
    assert stream_writer(TO, schema, True).options == stream_writer(TO, schema, False).options


class Done:
    """A commit that finds the rows of its task committed already: at once, or when it has fenced the others."""

    is_decided = True

    def __init__(self, *, at_once: bool) -> None:
        self._at_once = at_once

    def is_done(self, task: int) -> bool:
        return self._at_once

    def start(self, task: int) -> None:
        return None


@pytest.mark.parametrize("at_once", [True, False])
def test_committed_batch_is_read_to_its_end_but_not_written(
    at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its end an operator before the sink would not keep its state for the next batch."""
    monkeypatch.setattr(writer_module, "BatchCommit", lambda *_, **__: Done(at_once=at_once))
    monkeypatch.setattr(writer_module, "_transactions", lambda _options: None)
    monkeypatch.setattr(writer_module, "current_micro_batch", lambda: MicroBatch("query", 3))
    schema = types.StructType([types.StructField("value", STRING)])
    for make, is_read in ((stream_writer, True), (batch_writer, False)):
        batches = (pa.record_batch({"value": [text]}) for text in ("one", "two", "three"))
        message: Any = make({**TO, **ONCE}, schema, False).write(batches)
        assert message.is_done
        assert message.is_decided
        assert not message.written
        assert (next(batches, None) is None) is is_read
