from __future__ import annotations

import pytest

from kproc.broker.cluster.dynamic_settings import log_overrides
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.topic_config import ROWS, TOPIC_CONFIGS, check_all
from kproc.broker.config import SETTINGS, Config
from kproc.broker.storage.log_config import LogConfig
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.cases import in_one_test
from tests.support.in_memory_controller import InMemoryController, changes, topic


@in_one_test(
    ("name", "text", "stored"),
    [
        ("retention.ms", " 100 ", "100"),
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "+5", "5"),
        ("retention.bytes", "-7", "-7"),
        ("cleanup.policy", " compact , delete ", "compact,delete"),
        ("cleanup.policy", "", ""),
        ("preallocate", "TRUE", "true"),
        ("min.cleanable.dirty.ratio", "0.75", "0.75"),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
        ("leader.replication.throttled.replicas", "0:1,2:3", "0:1,2:3"),
        ("leader.replication.throttled.replicas", "*", "*"),
        ("compression.gzip.level", "-1", "-1"),
        ("remote.storage.enable", "false", "false"),
    ],
)
def test_a_value_is_stored_in_one_spelling(name, text, stored):
    assert check_all({name: text}) == {name: stored}


@in_one_test("name", ["cleanup.policy", "leader.replication.throttled.replicas"])
@in_one_test(
    ("text", "why"),
    [
        ("{},", "empty"), (",", "empty"), ("{},,{}", "empty"), (",{}", "empty"), ("{}, ,{}", "empty"),
        ("{0},{0}", "duplicated"), ("{0}, {0}", "duplicated"),
    ],
)  # fmt: skip
def test_list_with_empty_or_repeated_element_is_rejected(name: str, text: str, why: str) -> None:
    first, second = ("compact", "delete") if name == "cleanup.policy" else ("0:1", "1:1")
    with pytest.raises(KafkaError) as caught:
        check_all({name: text.format(first, second)})
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert caught.value.message == f"Configuration '{name}' values must not be {why}."


@in_one_test(
    ("name", "text", "why"),
    [
        ("retention.ms", "1_000", "Not a number of type LONG"),
        ("retention.ms", "10s", "Not a number of type LONG"),
        ("retention.ms", "", "Not a number of type LONG"),
        ("max.message.bytes", "3000000000", "Not a number of type INT"),
        ("preallocate", "maybe", "Expected value to be either true or false"),
        ("segment.bytes", "5", "Value must be at least 1048576"),
        ("min.cleanable.dirty.ratio", "7", "Value must be from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
        ("cleanup.policy", "compact,foo", "String must be one of: compact, delete"),
        ("message.timestamp.type", "createtime", "Value must be one of CreateTime, LogAppendTime"),
        ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
        ("remote.storage.enable", "true", "Tiered Storage functionality is disabled in the broker."),
        ("follower.replication.throttled.replicas", "foo", "Value must be the literal '*' or a list"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_the_reason(name, text, why):
    with pytest.raises(KafkaError) as caught:
        check_all({name: text})
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert caught.value.message.startswith(f"Invalid value {text} for configuration {name}: {why}")


def test_configs_that_contradict_each_other_are_refused():
    with pytest.raises(KafkaError, match=r"min.compaction.lag.ms \(200\) > max.compaction.lag.ms \(100\)"):
        check_all({"min.compaction.lag.ms": "200", "max.compaction.lag.ms": "100"})


def test_every_default_passes_its_own_check():
    config = Config.build()
    for row in ROWS:
        assert row.normalize(row.default(config)) == row.default(config), row.name


def test_topic_config_has_type_of_its_default_setting():
    for row in ROWS:
        if row.settings:
            assert row.kind.kafka_name == SETTINGS[row.settings[0]].kind.kafka_name, row.name


def test_the_table_is_kafkas():
    assert len(ROWS) == len(TOPIC_CONFIGS) == 37
    assert [row.name for row in ROWS] == sorted(TOPIC_CONFIGS)


def test_log_config_prefers_topic_then_dynamic_then_static():
    cluster = InMemoryController({"log.retention.hours": "1", "log.flush.interval.ms": "9"})
    cluster.create(topic("plain"), topic("own", configs={"segment.bytes": "2097152"}))

    def log_config(name: str) -> LogConfig:
        image: ClusterImage = cluster.image
        return LogConfig.of(cluster.config, log_overrides(image, image.topic(name), cluster.config.node_id))

    assert log_config("plain").retention_ms == 3_600_000
    cluster.alter(changes(4, "", ("log.retention.ms", 0, "7000"), ("log.segment.bytes", 0, "3145728")))
    assert (log_config("plain").retention_ms, log_config("plain").segment_bytes) == (7000, 3_145_728)
    cluster.alter(changes(4, "1", ("log.retention.ms", 0, "8000")))
    assert (log_config("plain").retention_ms, log_config("own").segment_bytes) == (8000, 2_097_152)
    assert log_config("own").flush_ms == 9
