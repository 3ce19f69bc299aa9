"""Bounds of group configs that the broker's settings set."""

from __future__ import annotations

import pytest

from kproc.broker.cluster.describe import describe_group
from kproc.broker.cluster.group_config import check_all, clamp_all
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.config import Config
from kproc.common.errors import KafkaError

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def test_bounds_of_group_configs_are_settings_of_the_broker() -> None:
    config = Config(group_consumer_min_session_timeout_ms=6_000, group_consumer_max_session_timeout_ms=50_000)
    assert check_all({SESSION: "6000"}, config) == {SESSION: "6000"}
    for text in ("5999", "50001"):
        with pytest.raises(KafkaError, match=r"must be in the range 6000 to 50000 inclusive\.$"):
            check_all({SESSION: text}, config)


def test_session_timeout_is_compared_with_the_brokers_heartbeat() -> None:
    config = Config(group_consumer_min_session_timeout_ms=6_000, group_consumer_heartbeat_interval_ms=7_000)
    with pytest.raises(KafkaError, match=f"{SESSION} must be greater than {HEARTBEAT}"):
        check_all({SESSION: "7000"}, config)
    assert check_all({SESSION: "7001"}, config)


def test_stored_values_outside_of_new_bounds_are_clamped() -> None:
    config = Config(
        group_consumer_max_session_timeout_ms=50_000, group_consumer_min_heartbeat_interval_ms=5_500
    )
    stored = {SESSION: "60000", HEARTBEAT: "5000", "share.isolation.level": "read_committed", "unknown": "x"}
    assert clamp_all(stored, config) == stored | {SESSION: "50000", HEARTBEAT: "5500"}


def test_described_group_has_the_brokers_value() -> None:
    config = Config.build({f"group.{SESSION}": "50000"})
    (row,) = describe_group("g", ClusterImage(), config, [SESSION])
    assert (row["value"], row["config_source"]) == ("50000", 4)
    assert [(each["value"], each["source"]) for each in row["synonyms"]] == [("50000", 4), ("45000", 5)]
