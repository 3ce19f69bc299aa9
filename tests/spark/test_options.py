"""Options of the source: each one is read, each mistake is named with the way out. No broker, no Spark."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.common.reading import EARLIEST, LATEST, READ_COMMITTED
from kproc.spark.offsets import TopicPartition
from kproc.spark.option_values import OptionError
from kproc.spark.options import FETCH_BYTES, SourceOptions, parse_source
from kproc.spark.positions import SubscriptionKind
from tests.support.cases import in_one_test

BROKER = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def stream(**options: str) -> SourceOptions:
    return parse_source({**BROKER, "subscribe": "clicks", **options}, is_stream=True)


def batch(**options: str) -> SourceOptions:
    return parse_source({**BROKER, "subscribe": "clicks", **options}, is_stream=False)


def test_source_defaults_equal_spark_kafka_connector() -> None:
    options = stream()
    assert options.bootstrap == "127.0.0.1:9092"
    assert (options.subscription.kind, options.subscription.topics) == (SubscriptionKind.TOPICS, ("clicks",))
    assert (options.starting.everywhere, options.starting.by_time) == (LATEST, False)
    assert batch().starting.everywhere == EARLIEST
    assert batch().ending.everywhere == LATEST
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.fetch_bytes == FETCH_BYTES
    assert options.max_delay_ms == 15 * 60 * 1000
    assert options.look_up == options.connecting


def test_source_option_names_are_case_insensitive() -> None:
    options = parse_source(
        {
            "kafka.Bootstrap.SERVERS": "a:1, [::1]:2",
            "SubscribePattern": "click.*",
            "startingOffsets": " Earliest ",
            "maxOffsetsPerTrigger": "100",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "2 min",
            "maxBytesPerTrigger": "64m",
            "minPartitions": "8",
            "maxRecordsPerPartition": "5000",
            "failOnDataLoss": "FALSE",
            "includeHeaders": "true",
            "kafka.isolation.level": "read_committed",
            "kafka.fetch.max.bytes": "2000000",
            "kafka.max.partition.fetch.bytes": "1m",
            "kafka.fetch.min.bytes": "2",
            "kafka.fetch.max.wait.ms": "7",
            "kafkaConsumer.pollTimeoutMs": "9",
            "fetchOffset.numRetries": "5",
            "fetchOffset.retryIntervalMs": "20",
            "partition.metadata.cache.ttl.ms": "30",
            "commitGroup": "lag",
            "checkpointState": "/tmp/x",
            "sourceName": "s",
            "groupIdPrefix": "p",
            "kafka.group.id": "g",
            "kafka.client.id": "me",
            "kafka.request.timeout.ms": "11",
            "kafka.default.api.timeout.ms": "12",
            "kafka.retry.backoff.ms": "13",
            "kafka.retry.backoff.max.ms": "14",
            "kafka.socket.connection.setup.timeout.ms": "15",
            "kafka.security.protocol": "plaintext",
        },
        is_stream=True,
    )
    assert options.bootstrap == "a:1, [::1]:2"
    assert (options.subscription.kind, options.subscription.pattern) == (SubscriptionKind.PATTERN, "click.*")
    assert options.starting.everywhere == EARLIEST
    assert (options.max_offsets, options.min_offsets, options.max_delay_ms) == (100, 10, 120_000)
    assert (options.max_bytes, options.min_partitions, options.max_records) == (64 << 20, 8, 5000)
    assert (options.fail_on_data_loss, options.include_headers) == (False, True)
    assert options.isolation == READ_COMMITTED
    assert (options.fetch_bytes, options.fetch_min_bytes, options.fetch_wait_ms) == (1 << 20, 2, 7)
    assert (options.poll_ms, options.metadata_ms) == (9, 30)
    assert (options.commit_group, options.checkpoint_state, options.source_name) == ("lag", "/tmp/x", "s")
    connecting = options.connecting
    assert (connecting.client_id, connecting.request_ms, connecting.retry_ms) == ("me", 11, 12)
    assert (connecting.backoff_ms, connecting.backoff_ms_max, connecting.connect_ms) == (13, 14, 15)
    # Retries of offsets are the driver's: a task still rides over a restart.
    assert connecting.attempts_max is None
    assert (options.look_up.attempts_max, options.look_up.backoff_ms) == (6, 20)


def test_positions_by_offset_and_by_time_and_their_order() -> None:
    parts = {TopicPartition("clicks", 0): 23, TopicPartition("clicks", 1): -2}
    options = stream(startingOffsets='{"clicks": {"1": -2, "0": 23}}')
    assert (dict(options.starting.each), options.starting.by_time) == (parts, False)
    by_time = stream(startingOffsetsByTimestamp='{"clicks": {"0": 1000}}', startingOffsets="earliest")
    assert (dict(by_time.starting.each), by_time.starting.by_time) == (
        {TopicPartition("clicks", 0): 1000},
        True,
    )
    first = stream(startingTimestamp="77", startingOffsetsByTimestamp='{"clicks": {"0": 1000}}')
    assert (first.starting.everywhere, first.starting.by_time) == (77, True)
    assert not first.latest_if_too_late
    assert stream(startingOffsetsByTimestampStrategy="latest").latest_if_too_late
    assert batch(endingTimestamp="5").ending.everywhere == 5
    assert dict(batch(endingOffsets='{"clicks": {"0": -1}}').ending.each) == {
        TopicPartition("clicks", 0): LATEST
    }
    assigned = parse_source({**BROKER, "assign": '{"b": [1, 0], "a": [2]}'}, is_stream=True)
    assert assigned.subscription.partitions == (("a", 2), ("b", 0), ("b", 1))


@in_one_test(
    ("options", "words"),
    [
        ({"subscribe": None}, ["subscribe, subscribePattern, assign", "no topic to read"]),
        ({"subscribe": None, "assign": f'{{"clicks": [{2**31}]}}'}, ["2147483648 is not a partition's number"]),
        ({"assign": '{"clicks": [0]}'}, ["only one of", "subscribe and assign"]),
        ({"subscribe": " , "}, ["subscribe is empty"]),
        ({"startingOffset": "earliest"}, ["startingoffset", "did you mean startingOffsets?"]),
        ({"kafka.isolation.levle": "x"}, ["did you mean kafka.isolation.level?"]),
        ({"wholly-unheard-of": "1"}, ["there is no option", "SPARK.md"]),
        ({"kafka.security.protocol": "TLS"}, ["kafka.security.protocol", "SASL_SSL"]),
        ({"kafka.security.protocl": "SSL"}, ["did you mean kafka.security.protocol?"]),
        ({"kafka.security.protocol": "SASL_SSL"}, ["kafka.sasl.mechanism", "is missing"]),
        ({"kafka.sasl.username": "alice"}, ["PLAINTEXT has no login"]),
        (
            {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/none"},
            ["cannot read /none"],
        ),
        ({"kproc.client.config": "/none"}, ["cannot read /none"]),
        ({"kafka.key.deserializer": "x"}, ["cast(key as string)"]),
        ({"kafka.auto.offset.reset": "latest"}, ["startingOffsets"]),
        ({"kafka.enable.auto.commit": "true"}, ["commitGroup"]),
        ({"path": "/x"}, ["subscribe=<topic>"]),
        ({"filterPushdown": "true"}, ["shares one plan", "startingTimestamp"]),
        ({"bootstrap.servers": "x:1"}, ["kafka.bootstrap.servers"]),
        ({"kafka.bootstrap.servers": None}, ["kafka.bootstrap.servers must be specified", "Kafka consumer"]),
        ({"kafka.bootstrap.servers": "localhost"}, ["localhost is not an address: expected host:port"]),
        ({"kafka.bootstrap.servers": "h:99999"}, ["h:99999 is not an address: expected host:port"]),
        ({"startingOffsets": "begin"}, ["earliest, latest or like", "'begin'"]),
        ({"startingOffsets": '{"clicks": {"0": -3}}'}, ["clicks-0", "-3"]),
        ({"startingOffsets": '{"clicks": {"zero": 1}}'}, ['"zero"', "not a partition's number"]),
        ({"startingOffsets": '{"clicks": 3}'}, ['"clicks" is not of the form']),
        ({"startingOffsets": "{"}, ["startingOffsets is not JSON"]),
        ({"startingOffsets": '{"other": {"0": 1}}'}, ["same topics", "clicks, other"]),
        ({"startingTimestamp": "yesterday"}, ["startingTimestamp must be a whole number", "'yesterday'"]),
        ({"startingOffsetsByTimestamp": '{"clicks": {"0": -1}}'}, ["ms since 1970"]),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, ["error or latest"]),
        ({"endingOffsets": "latest"}, ["a stream has no end"]),
        ({"endingTimestamp": "1"}, ["a stream has no end"]),
        ({"maxOffsetsPerTrigger": "0"}, ["at least 1"]),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, ["minOffsetsPerTrigger (6) is above"]),
        ({"maxPartitions": "5", "minPartitions": "6"}, ["minPartitions (6) is above maxPartitions (5)"]),
        ({"maxPartitions": "5", "maxRecordsPerPartition": "6"}, ["either maxPartitions"]),
        ({"maxTriggerDelay": "soon"}, ["maxTriggerDelay must be like", "'soon'"]),
        ({"maxBytesPerTrigger": "0"}, ["at least 1"]),
        ({"failOnDataLoss": "yes"}, ["true or false"]),
        ({"kafka.client.id": "x" * 32_001}, ["kafka.client.id is longer than 32000 bytes"]),
        ({"minPartitions": "2147483648"}, ["minPartitions must be at most 2147483647, not 2147483648"]),
        ({"kafka.request.timeout.ms": "9" * 20}, ["kafka.request.timeout.ms must be at most 2147483647"]),
        ({"maxOffsetsPerTrigger": "9" * 20}, ["maxOffsetsPerTrigger must be at most 9223372036854775807"]),
        ({"maxBytesPerTrigger": "9" * 19}, ["maxBytesPerTrigger must be", "at most 9223372036854775807"]),
        ({"startingTimestamp": "9" * 20}, ["startingTimestamp must be at most 9223372036854775807"]),
        ({"startingOffsets": f'{{"clicks": {{"0": {10**19}}}}}'}, ["clicks", "whole number of 64 bits"]),
        ({"startingOffsets": f'{{"clicks": {{"{2**31}": 0}}}}'}, ["is not a partition's number"]),
        ({"kafka.isolation.level": "committed"}, ["read_uncommitted or read_committed"]),
    ],
)
def test_invalid_source_options_are_one_line_errors(options: dict[str, Any], words: list[str]) -> None:
    given = {**BROKER, "subscribe": "clicks", **options}
    with pytest.raises(OptionError) as raised:
        parse_source({name: value for name, value in given.items() if value is not None}, is_stream=True)
    text = str(raised.value)
    assert "\n" not in text
    assert [word for word in words if word not in text] == [], text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "latest"}, "a batch that starts at the latest offset"),
        ({"startingOffsets": '{"clicks": {"0": -1}}'}, "startingOffsets of clicks-0: a batch that starts"),
        ({"endingOffsets": "earliest"}, "a batch that ends at the earliest offset"),
        ({"endingOffsets": '{"clicks": {"0": -2}}'}, "endingOffsets of clicks-0: a batch that ends"),
        ({"commitGroup": "g"}, "commitGroup is an option of spark.readStream"),
        ({"checkpointState": "d"}, "checkpointState is an option of spark.readStream"),
    ],
)
def test_batch_source_rejects_stream_options(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as raised:
        batch(**options)
    assert words in str(raised.value)


def test_offsets_name_the_partitions_that_assign_names() -> None:
    with pytest.raises(OptionError, match=r"the same partitions; only one has t-1, t-2"):
        parse_source(
            {**BROKER, "assign": '{"t": [0, 1]}', "startingOffsets": '{"t": {"0": 1, "2": 1}}'},
            is_stream=True,
        )


def test_source_warns_of_unused_kafka_consumer_options(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream(**{"kafka.max.poll.records": "5", "kafka.receive.buffer.bytes": "1"})
    assert "without effect in this source: kafka.max.poll.records, kafka.receive.buffer.bytes" in caplog.text
