"""Options and columns that the sink rejects, each in one line."""

from __future__ import annotations

import pytest
from pyspark.sql import types

from kproc.spark.sink_options import parse_sink_options
from kproc.spark.writer import batch_writer, stream_writer
from tests.support.cases import in_one_test

pytest.importorskip("pyspark")

ONCE = {"delivery": "exactly-once"}
BROKER = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


STRING, INT, LONG = types.StringType(), types.IntegerType(), types.LongType()
VALUE = {"value": STRING}
TO = {**BROKER, "topic": "t"}


@in_one_test(
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
        (VALUE, {**TO, "kafka.acks": "2"}, "kafka.acks must be all, -1, 1 or 0, not '2'"),
        (VALUE, {**TO, "kafka.batch.size": "many"}, "kafka.batch.size must be a whole number, not 'many'"),
        (VALUE, {**TO, "kafka.partitioner.class": "X"}, "a column named partition"),
        (VALUE, {**TO, "kafka.transactional.id": "x"}, "use delivery=exactly-once"),
        (VALUE, {**TO, "delivery": "often"}, "delivery must be at-least-once or exactly-once, not 'often'"),
        (VALUE, {**TO, **ONCE, "kafka.acks": "1"}, "delivery=exactly-once needs kafka.acks=all"),
        (VALUE, {**TO, **ONCE, "txnAppId": "me"}, "set both txnAppId"),
        (VALUE, {**TO, **ONCE, "txnVersion": "1"}, "set both txnAppId"),
        (VALUE, {**TO, **ONCE, "txnAppId": "me", "txnVersion": "-1"}, "txnVersion must be at least 0, not -1"),
        (VALUE, {**TO, "txnAppId": "me", "txnVersion": "1"}, "txnAppId has an effect only with delivery=exactly-once"),
        (VALUE, {**TO, "kafka.compression.gzip.level": "10"}, "kafka.compression.gzip.level must be at most 9, not 10"),
        (VALUE, {**TO, "kafka.compression.lz4.level": "0"}, "kafka.compression.lz4.level must be at least 1, not 0"),
        (VALUE, {**TO, "kafka.compression.zstd.level": "23"}, "kafka.compression.zstd.level must be at most 22"),
        (VALUE, {**TO, "kafka.transaction.timeout.ms": "2147483648"}, "kafka.transaction.timeout.ms must be at most"),
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


def test_gzip_level_minus_one_is_the_codecs_default() -> None:
    options = parse_sink_options({**TO, "kafka.compression.type": "gzip", "kafka.compression.gzip.level": "-1"})
    assert options.producer.level is None
