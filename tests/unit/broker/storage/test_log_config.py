"""LogConfig from the broker's settings and a topic's own."""

from __future__ import annotations

from dataclasses import replace

from kproc.broker.config import Config
from kproc.broker.storage.log_config import LogConfig


def test_defaults_are_the_brokers() -> None:
    assert LogConfig.of(Config()) == LogConfig(takes_transactions=False, verifies_transactions=True)


def test_broker_settings_count_where_the_topic_has_none() -> None:
    config = replace(Config(), log_segment_bytes=1 << 20, log_retention_ms=5)
    made = LogConfig.of(config, {"retention.ms": "7", "cleanup.policy": "compact, delete"})
    assert (made.segment_bytes, made.retention_ms) == (1 << 20, 7)
    assert made.cleanup_policy == {"compact", "delete"}


def test_topic_settings_have_kafkas_names() -> None:
    made = LogConfig().with_overrides(
        {
            "segment.bytes": "1000", "segment.ms": "1", "segment.jitter.ms": "2", "retention.bytes": "3",
            "index.interval.bytes": "4", "segment.index.bytes": "5", "max.message.bytes": "6",
            "message.timestamp.type": "LogAppendTime", "message.timestamp.before.max.ms": "7",
            "message.timestamp.after.max.ms": "8", "flush.messages": "9", "flush.ms": "10",
            "file.delete.delay.ms": "11", "compression.type": "producer", "cleanup.policy": "",
        }
    )  # fmt: skip
    assert made == LogConfig(
        segment_bytes=1000, segment_ms=1, segment_jitter_ms=2, retention_bytes=3, index_interval_bytes=4,
        segment_index_bytes=5, max_message_bytes=6, timestamp_type="LogAppendTime", timestamp_before_max_ms=7,
        timestamp_after_max_ms=8, flush_messages=9, flush_ms=10, file_delete_delay_ms=11,
        cleanup_policy=frozenset(),
    )  # fmt: skip
    assert made.is_append_time
    assert not made.is_deleting
