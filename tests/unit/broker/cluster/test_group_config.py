"""Bounds of group configs that the broker's settings set."""

from __future__ import annotations

import pytest

from kproc.broker.cluster.describe import describe_group
from kproc.broker.cluster.group_config import by_duration_ms, check_all, clamp_all
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


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"streams.assignor.name": "x"}, "streams.assignor.name 'x' is not a registered task assignor. "),
        ({"errors.deadletterqueue.topic.name": "__x"}, "errors.deadletterqueue.topic.name: DLQ topic name must not"),
        ({"streams.rack.aware.assignment.tags": "a, a"}, "streams.rack.aware.assignment.tags must not contain dup"),
        ({"streams.rack.aware.assignment.tags": ","}, "streams.rack.aware.assignment.tags must not contain dup"),
        ({"streams.rack.aware.assignment.tags": "a,"}, "Configuration 'streams.rack.aware.assignment.tags' values"),
        ({"streams.rack.aware.assignment.tags": "a,a", "none": "1"}, "Unknown group config name: none"),
        ({SESSION: "x", "streams.rack.aware.assignment.tags": "a,a"}, "streams.rack.aware.assignment.tags must not"),
        ({"streams.assignor.name": "x", "streams.num.standby.replicas": "9"}, "streams.num.standby.replicas must"),
        ({"streams.assignor.name": "x", HEARTBEAT: "15000", SESSION: "x"}, "Invalid value x for configuration"),
        ({"errors.deadletterqueue.topic.name": "__x", "streams.assignor.name": "x"}, "streams.assignor.name 'x'"),
        ({"errors.deadletterqueue.topic.name": "__x", SESSION: "50"}, f"{SESSION} must be in the range"),
    ],
)
def test_invalid_group_configs_get_the_error_of_kafka(configs: dict[str, str], message: str) -> None:
    """Neither the assignor nor the dead letter topic has the prefix of other invalid values. The order counts, too."""
    with pytest.raises(KafkaError) as caught:
        check_all(configs, Config.build({}))
    assert str(caught.value.message).startswith(message)


@pytest.mark.parametrize(
    ("duration", "expected_ms"),
    [
        ("PT1H30M", 5_400_000),
        ("p1dt2h", 93_600_000),
        ("PT0,5S", 500),
        ("PT1\u017f", None),  # The long s, whose capital letter is S.
        ("PT1.S", 1_000),
        ("PT+3H", 10_800_000),
        ("+PT3H", 10_800_000),
        ("-PT-1H", 3_600_000),
        ("PT1H-30M", 1_800_000),
        ("P-1DT24H", 0),
        ("PT1S-0.5S", None),
        ("PT1M-0.5S", 59_500),
        ("-PT0S", 0),
        ("PT-0.001S", None),
        ("PT-3H", None),
        ("P", None),
        ("PT", None),
        ("P1DT", None),
        ("P1D1H", None),
        ("PT.5S", None),
        ("PT3.5H", None),
        ("P1W", None),
        ("PT\u0663H", None),
        ("PT0.1234567890S", None),
        ("PT9223372036854775807S", 9_223_372_036_854_775_807_000),
        ("PT9223372036854775808S", None),
        ("P106751991167301D", None),
        (f"PT{'9' * 5_000}H", None),
    ],
)
def test_durations_have_the_format_of_java(duration: str, expected_ms: int | None) -> None:
    assert by_duration_ms(f"by_duration:{duration}") == expected_ms


@pytest.mark.parametrize("reset", ["EARLIEST", "BY_DURATION:PT1H", "by_duration", "by_duration: PT1H", "none"])
def test_invalid_reset_of_a_share_group_is_rejected(reset: str) -> None:
    with pytest.raises(KafkaError, match=r"auto\.offset\.reset"):
        check_all({"share.auto.offset.reset": reset}, Config.build({}))
