"""Settings of logs that span several names: retention, rolling, flushing, directories."""

from __future__ import annotations

from kproc.broker.config import Config
from tests.support.cases import in_one_test


def build(warnings: list[str] | None = None, **kwargs: object) -> Config:
    sink = warnings if warnings is not None else []
    settings = {name.replace("_", "."): value for name, value in kwargs.items()}
    return Config.build(settings, on_warning=sink.append)


# -- rules that span settings


@in_one_test(
    ("settings", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": 2}, 7_200_000),
        ({"log.retention.hours": 2, "log.retention.minutes": 3}, 180_000),
        ({"log.retention.hours": 2, "log.retention.minutes": 3, "log.retention.ms": 4}, 4),
        ({"log.retention.hours": -1}, -1),
        ({"log.retention.minutes": -5}, -1),
        ({"log.retention.ms": -7}, -1),
        ({"log.retention.hours": 2**31 - 1}, (2**31 - 1) * 3_600_000),
    ],
)
def test_the_finest_unit_of_retention_wins(settings, retention_ms):
    assert Config.build(settings).log_retention_ms == retention_ms


def test_the_finest_unit_of_rolling_wins():
    assert build(log_roll_hours=1).log_roll_ms == 3_600_000
    assert build(log_roll_hours=1, log_roll_ms=5).log_roll_ms == 5
    assert build(log_roll_jitter_hours=1).log_roll_jitter_ms == 3_600_000


def test_the_scheduler_interval_is_the_flush_intervals_default():
    assert build(log_flush_scheduler_interval_ms=9).log_flush_interval_ms == 9
    assert build(log_flush_scheduler_interval_ms=9, log_flush_interval_ms=3).log_flush_interval_ms == 3


def test_log_dir_is_another_name_and_log_dirs_wins():
    assert build(log_dir="/a").log_dirs == "/a"
    assert build(log_dir="/a", log_dirs="/b").log_dirs == "/b"
