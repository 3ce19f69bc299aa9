"""The configs of a client-metrics subscription (KIP-714, resource type 16).

Subscriptions are stored and shown. Clients get an empty subscription (api/get_telemetry_subscriptions.py), because
kproc collects no metrics from clients. The checks are Kafka's, with its error codes and messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kproc.broker.cluster.topic_config import TopicConfig
from kproc.broker.config import Kind
from kproc.common.errors import ErrorCode, KafkaError

INTERVAL_MS, MATCH, METRICS = "interval.ms", "match", "metrics"
PUSH_INTERVAL_MS: Final = 300_000
# KIP-714: at least 100 ms, so that no subscription floods a broker, and at most an hour, so that a client notices
# changes.
INTERVAL_MS_MIN, INTERVAL_MS_MAX = 100, 3_600_000
_UNHONOURED: Final = "kproc requests no metrics from clients"
_SELECTORS: Final = frozenset(
    {
        "client_id",
        "client_instance_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)

ROWS: Final = (
    TopicConfig(
        INTERVAL_MS,
        Kind.INT,
        "Interval in ms at which clients send their metrics.",
        fixed_default=str(PUSH_INTERVAL_MS),
        unhonoured=_UNHONOURED,
    ),
    TopicConfig(
        MATCH,
        Kind.LIST,
        "Clients of the subscription, as selector=regular expression. Empty: all.",
        unhonoured=_UNHONOURED,
    ),
    TopicConfig(
        METRICS,
        Kind.LIST,
        "Prefixes of the names of the metrics. *: all.",
        unhonoured=_UNHONOURED,
    ),
)
CLIENT_METRICS_CONFIGS: Final[Mapping[str, TopicConfig]] = {row.name: row for row in ROWS}


def check_all(configs: Mapping[str, str]) -> dict[str, str]:
    """Validate and normalize a subscription's configs. Raise KafkaError for the first invalid one."""
    # KIP-714 names three configs. Kafka's ClientMetricsConfigs.validate rejects any other with INVALID_REQUEST, and not
    # with INVALID_CONFIG as for topics.
    if unknown := [name for name in configs if name not in CLIENT_METRICS_CONFIGS]:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {unknown[0]}")
    if INTERVAL_MS in configs:
        _check_interval(configs[INTERVAL_MS])
    if MATCH in configs:
        _check_match(configs[MATCH])
    return {name: CLIENT_METRICS_CONFIGS[name].normalize(text) for name, text in configs.items()}


def _check_interval(text: str) -> None:
    interval_ms = CLIENT_METRICS_CONFIGS[INTERVAL_MS].parse(text)
    if not INTERVAL_MS_MIN <= interval_ms <= INTERVAL_MS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {text} for interval.ms, interval must be between {INTERVAL_MS_MIN} and "
            f"{INTERVAL_MS_MAX} (1 hour)",
        )


def _check_match(text: str) -> None:
    """Raise KafkaError unless each entry is selector=pattern. The pattern must be a regular expression for Python."""
    for entry in filter(None, (part.strip() for part in text.split(","))):
        selector, equals, pattern = (part.strip() for part in entry.partition("="))
        is_fine = bool(equals) and bool(pattern) and selector in _SELECTORS
        if is_fine:
            try:
                # Kafka compiles the patterns with Java's syntax, which differs in rare constructs. Nothing here
                # executes them.
                re.compile(pattern)
            except re.error:
                is_fine = False
        if not is_fine:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {entry}")
