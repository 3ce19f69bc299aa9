"""DescribeConfigs: values, sources and synonyms as Kafka shows them."""

from __future__ import annotations

from typing import Any

import pytest

import kproc.broker.api.alter_configs
import kproc.broker.api.describe_configs
import kproc.broker.api.incremental_alter_configs  # noqa: F401 - the imports register the handlers
from kproc.broker.config import SETTINGS
from kproc.wire.header import ApiKey
from tests.support.api_broker import Broker
from tests.support.in_memory_controller import changes, topic

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
OF_TOPIC, DYNAMIC, DYNAMIC_DEFAULT, STATIC, DEFAULT = 1, 2, 3, 4, 5
UNKNOWN, INVALID_TOPIC, INVALID_REQUEST = 3, 17, 42


@pytest.fixture
def broker() -> Broker:
    broker = Broker({"log.retention.hours": "100", "num.partitions": "3"})
    broker.cluster.create(topic("t", configs={"flush.ms": "5000"}))
    return broker


def described(
    broker: Broker, kind: int, name: str, keys: list[str] | None, version: int = 4, **more: Any
) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    fields = broker.ask(
        ApiKey.DESCRIBE_CONFIGS, version, resources=[resource], **{"include_synonyms": True, **more}
    )
    (result,) = fields["results"]
    assert (result["resource_type"], result["resource_name"]) == (kind, name)
    return result


def rows_of(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    assert result["error_code"] == 0
    return {row["name"]: row for row in result["configs"]}


def synonyms_of(row: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(synonym["name"], synonym["value"], synonym["source"]) for synonym in row["synonyms"]]


@pytest.mark.parametrize("version", range(1, 5))
def test_a_topic_is_described_in_every_version(broker, version):
    more = {"include_documentation": True} if version >= 3 else {}
    rows = rows_of(described(broker, TOPIC, "t", None, version, **more))
    assert len(rows) == 37
    flush = rows["flush.ms"]
    assert (flush["value"], flush["config_source"], flush["read_only"], flush["is_sensitive"]) == (
        "5000",
        OF_TOPIC,
        False,
        False,
    )
    assert synonyms_of(rows["segment.bytes"]) == [("log.segment.bytes", "1073741824", DEFAULT)]
    if version >= 3:
        types = {name: rows[name]["config_type"] for name in ("preallocate", "segment.bytes", "retention.ms")}
        assert types == {"preallocate": 1, "segment.bytes": 3, "retention.ms": 5}
        assert rows["cleanup.policy"]["config_type"] == 7
        assert all(row["documentation"] for row in rows.values())


def test_config_value_has_kafkas_source_and_synonyms(broker):
    def retention() -> tuple[str, int, list[tuple[str, str, int]]]:
        row = rows_of(described(broker, TOPIC, "t", ["retention.ms"]))["retention.ms"]
        return row["value"], row["config_source"], synonyms_of(row)

    static = [("log.retention.hours", "100", STATIC), ("log.retention.hours", "168", DEFAULT)]
    assert retention() == ("360000000", DEFAULT, []), "another unit is no synonym of what is not set itself"
    broker.cluster.alter(changes(BROKER, "", ("log.retention.ms", 0, "123456")))
    cluster_wide = [("log.retention.ms", "123456", DYNAMIC_DEFAULT), *static]
    assert retention() == ("123456", DYNAMIC_DEFAULT, cluster_wide)
    broker.cluster.alter(changes(BROKER, "1", ("log.retention.ms", 0, "7")))
    of_broker = [("log.retention.ms", "7", DYNAMIC), *cluster_wide]
    assert retention() == ("7", DYNAMIC, of_broker)
    broker.cluster.alter(changes(TOPIC, "t", ("retention.ms", 0, "55")))
    assert retention() == ("55", OF_TOPIC, [("retention.ms", "55", OF_TOPIC), *of_broker])


def test_setting_without_kafkas_unit_has_no_synonym(broker):
    rows = rows_of(described(broker, TOPIC, "t", None))
    for name in ("segment.ms", "segment.jitter.ms"):
        assert (rows[name]["config_source"], synonyms_of(rows[name])) == (DEFAULT, []), name
    for name in ("local.retention.ms", "local.retention.bytes"):
        assert synonyms_of(rows[name]) == [(f"log.{name}", "-2", DEFAULT)]


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "t"), (BROKER, "1"), (GROUP, "g"), (METRICS, "m")])
def test_rows_come_by_name(broker, kind, name):
    names = list(rows_of(described(broker, kind, name, None)))
    assert names == sorted(names)


def test_names_select_and_unknown_ones_are_left_out(broker):
    assert list(rows_of(described(broker, TOPIC, "t", ["retention.ms", "nope"]))) == ["retention.ms"]
    assert len(rows_of(described(broker, TOPIC, "t", []))) == 37


def test_synonyms_and_documentation_come_only_when_asked_for(broker):
    rows = rows_of(described(broker, TOPIC, "t", None, include_synonyms=False))
    assert all(row["synonyms"] == [] and row["documentation"] is None for row in rows.values())


def test_documentation_of_loggers_is_empty_as_in_kafka(broker):
    for include in (False, True):
        rows = rows_of(described(broker, LOGGER, "1", None, include_documentation=include))
        assert rows
        assert {row["documentation"] for row in rows.values()} == {""}, include


@pytest.mark.parametrize("version", range(1, 5))
def test_the_broker_is_described_in_every_version(broker, version):
    rows = rows_of(described(broker, BROKER, "1", None, version))
    assert rows.keys() == {name for name, row in SETTINGS.items() if not row.is_internal}
    assert (rows["num.partitions"]["value"], rows["num.partitions"]["config_source"]) == ("3", STATIC)
    assert synonyms_of(rows["num.partitions"]) == [
        ("num.partitions", "3", STATIC),
        ("num.partitions", "1", DEFAULT),
    ]
    assert rows["num.partitions"]["read_only"]
    assert rows["kproc.flush"]["value"] == "group"
    assert not rows["log.retention.ms"]["read_only"]
    # What is shown as changeable can be changed, and nothing else can.
    for name, row in rows.items():
        (answer,) = broker.cluster.alter(changes(BROKER, "1", (name, 0, row["value"])), validate_only=True)
        assert (answer["error_code"] == 0) is (not row["read_only"]), (name, answer)


def test_the_broker_without_a_name_is_the_cluster_wide_default(broker):
    assert list(rows_of(described(broker, BROKER, "", None))) == ["min.insync.replicas"]
    broker.cluster.alter(
        changes(BROKER, "", ("log.retention.ms", 0, "9")),
        changes(BROKER, "1", ("log.flush.interval.ms", 0, "8")),
    )
    rows = rows_of(described(broker, BROKER, "", None))
    assert {name: (row["value"], row["config_source"]) for name, row in rows.items()} == {
        "log.retention.ms": ("9", DYNAMIC_DEFAULT),
        "min.insync.replicas": ("1", DYNAMIC_DEFAULT),
    }


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "nope", UNKNOWN, ""),
        (TOPIC, "", INVALID_TOPIC, "Topic name is invalid: the empty string is not allowed"),
        (BROKER, "2", INVALID_REQUEST, "Unexpected broker id, expected 1 or empty string, but received 2"),
        (BROKER, "x", INVALID_REQUEST, "Broker id must be an integer, but it is: x"),
        (LOGGER, "x", INVALID_REQUEST, "Broker id must be an integer, but it is: x"),
        (METRICS, "", INVALID_REQUEST, "Client metrics subscription name must not be empty"),
        (GROUP, "", INVALID_REQUEST, "Group name must not be empty"),
        (1, "q", INVALID_REQUEST, "Unexpected resource type"),
    ],
)
def test_resource_without_configs_is_answered_like_kafka(broker, kind, name, code, message):
    result = described(broker, kind, name, None)
    assert (result["error_code"], result["error_message"], result["configs"]) == (code, message, [])


def test_unknown_resource_type_rejects_whole_request(broker):
    resources = [
        {"resource_type": kind, "resource_name": "1", "configuration_keys": None} for kind in (BROKER, 3)
    ]
    results = broker.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources)["results"]
    assert [(row["error_code"], row["configs"]) for row in results] == [(INVALID_REQUEST, [])] * 2
