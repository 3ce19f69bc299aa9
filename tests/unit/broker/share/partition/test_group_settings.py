"""The settings of a share group: its configs, the broker's defaults, and where a new group begins."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.broker.config import Config
from kproc.broker.share.partition import group_settings
from kproc.broker.share.partition.group_settings import ShareSettings, share_settings
from kproc.broker.share.partition.in_flight import Rules
from kproc.common.reading import EARLIEST, LATEST
from tests.support.handler_rig import HandlerRig
from tests.support.share_partition_rig import ShareOwner

NOW_MS = 1_000_000_000
DAY_MS = 86_400_000


def settings(config: Config | None = None, *, allows_dead_letters: bool = True, **configs: str) -> ShareSettings:
    own = {name.replace("_", "."): value for name, value in configs.items()}
    return share_settings(own, config or Config.build({}), allows_dead_letters=allows_dead_letters)


def test_group_without_configs_has_the_defaults_of_the_broker() -> None:
    rules = Rules(delivery_count_max=5, size_max=2_000, has_dead_letters=False, can_renew=True)
    assert settings() == ShareSettings(rules, 30_000, is_committed=False, auto_offset_reset="latest")
    config = Config.build(
        {"group.share.delivery.count.limit": 7, "group.share.partition.max.record.locks": 500}
    )
    assert settings(config).rules == Rules(7, 500)


def test_configs_of_a_group_replace_the_defaults() -> None:
    found = settings(
        share_delivery_count_limit="8",
        share_partition_max_record_locks="4000",
        share_record_lock_duration_ms="15000",
        share_isolation_level="read_committed",
        share_renew_acknowledge_enable="False",
    )
    rules = Rules(delivery_count_max=8, size_max=4_000, has_dead_letters=False, can_renew=False)
    assert found == ShareSettings(rules, 15_000, is_committed=True, auto_offset_reset="latest")


def test_dead_letters_need_the_feature_level() -> None:
    name = {"errors_deadletterqueue_topic_name": "dlq.t"}
    assert settings(**name).rules.has_dead_letters
    assert settings(**name).dead_letter_topic == "dlq.t"
    without = settings(allows_dead_letters=False, **name)
    assert (without.rules.has_dead_letters, without.dead_letter_topic) == (False, "")


@pytest.mark.parametrize(
    ("reset", "timestamp"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("by_duration:PT0S", NOW_MS),
        ("by_duration:PT10.5S", NOW_MS - 10_500),
        ("BY_DURATION:p1dt2h3m4s", NOW_MS - DAY_MS - 7_384_000),
        # Longer ago than the epoch of the clock.
        ("by_duration:P20000D", 0),
    ],
)
def test_new_group_begins_at_this_time(reset: str, timestamp: int) -> None:
    assert settings(share_auto_offset_reset=reset).start_timestamp(NOW_MS) == timestamp


def test_settings_of_made_up_groups_are_bounded(
    start: Callable[..., HandlerRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients choose the names of groups, so the cache limits their number and their length."""
    monkeypatch.setattr(group_settings, "_GROUPS_MAX", 10)
    cache = ShareOwner(start()).shares.settings
    for number in range(100):
        cache.of_group(f"group-{number}")
    assert 0 < len(cache) <= 10
    before = len(cache)
    assert cache.of_group("g" * 250) == cache.of_group("group-99")
    assert len(cache) == before
