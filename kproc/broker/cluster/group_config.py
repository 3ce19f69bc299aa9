"""The table of group configs (resource type 32): every name that Kafka 4.3 knows, one row each.

All are about group protocols that kproc does not have yet (consumer, share, streams): they are stored and shown,
because tools set them before the first member joins, and have no effect. Bounds are Kafka's defaults of the
`group.*.min.*` and `group.*.max.*` broker settings, which it names in its refusals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kproc.broker.cluster.topic_config import TopicConfig
from kproc.broker.config import Kind
from kproc.broker.config.values import at_least
from kproc.common.errors import ErrorCode, KafkaError

_UNUSED: Final = "Stored and shown; groups of this kind are not served yet."


class GroupConfigRow(NamedTuple):
    """A row: the config, and the names of the broker settings that bound it in Kafka."""

    config: TopicConfig
    synonym: str
    lowest: int | None = None
    highest: int | None = None


def _reset(value: str) -> str | None:
    """Return an error unless the value is earliest, latest or by_duration:<ISO-8601 duration of at least 0>."""
    if value in ("earliest", "latest") or _BY_DURATION.fullmatch(value):
        return None
    return (
        f"Invalid value `{value}` for configuration share.auto.offset.reset. The value must be either "
        "'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
    )


def _isolation(value: str) -> str | None:
    words = ("read_committed", "read_uncommitted")
    return None if value in words else f"String must be one of: {', '.join(words)}"


_BY_DURATION: Final = re.compile(
    r"by_duration:P(?=.)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d{1,9})?S)?)?", re.IGNORECASE
)


def _number(name: str, default: int, least: int, lowest: int | None, highest: int | None) -> GroupConfigRow:
    row = TopicConfig(name, Kind.INT, _UNUSED, (), at_least(least), str(default))
    return GroupConfigRow(row, f"group.{name}", lowest, highest)


def _word(name: str, kind: Kind, default: str, check: Any) -> GroupConfigRow:
    return GroupConfigRow(TopicConfig(name, kind, _UNUSED, (), check, default), name)


def _timing(family: str) -> tuple[GroupConfigRow, ...]:
    """Return the rows that consumer, share and streams groups have in common."""
    return (
        _number(f"{family}.session.timeout.ms", 45_000, 1, 45_000, 60_000),
        _number(f"{family}.heartbeat.interval.ms", 5_000, 1, 5_000, 15_000),
        _number(f"{family}.assignment.interval.ms", 1_000, 0, 0, 15_000),
    )


ROWS: Final = (
    *_timing("consumer"),
    *_timing("share"),
    _word("share.auto.offset.reset", Kind.STRING, "latest", _reset),
    _number("share.delivery.count.limit", 5, 2, 2, 10),
    _word("share.isolation.level", Kind.STRING, "read_uncommitted", _isolation),
    _number("share.partition.max.record.locks", 2_000, 100, 100, 4_000),
    _number("share.record.lock.duration.ms", 30_000, 1_000, 15_000, 60_000),
    _word("share.renew.acknowledge.enable", Kind.BOOLEAN, "true", None),
    *_timing("streams"),
    _number("streams.initial.rebalance.delay.ms", 3_000, 0, None, None),
    _number("streams.num.standby.replicas", 0, 0, None, 2),
)
GROUP_CONFIGS: Final[Mapping[str, GroupConfigRow]] = {row.config.name: row for row in ROWS}


def check_all(configs: Mapping[str, str]) -> dict[str, str]:
    """Validate and normalize a group's configs. Raise KafkaError(INVALID_CONFIG) for the first invalid one."""
    normalized: dict[str, str] = {}
    for name, text in configs.items():
        row = GROUP_CONFIGS.get(name)
        if row is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")
        normalized[name] = row.config.normalize(text)
    # Bounds come after the parsing of all configs, so that an unknown or malformed one is reported first, as in
    # GroupConfigManager.
    for name, text in normalized.items():
        _check_bounds(GROUP_CONFIGS[name], text)
    for family in ("consumer", "share", "streams"):
        _check_heartbeat(family, normalized)
    return normalized


def _check_bounds(row: GroupConfigRow, text: str) -> None:
    """Check a value against the broker's bounds; the error names the broker setting, as in Kafka."""
    family, _, rest = row.synonym.removeprefix("group.").partition(".")
    # streams.num.standby.replicas is bounded by group.streams.max.standby.replicas.
    rest = rest.removeprefix("num.")
    if row.lowest is not None and int(text) < row.lowest:
        side, least = "greater", "min"
    elif row.highest is not None and int(text) > row.highest:
        side, least = "less", "max"
    else:
        return
    raise KafkaError(
        ErrorCode.INVALID_CONFIG,
        f"{row.config.name} must be {side} than or equal to group.{family}.{least}.{rest}",
    )


def _check_heartbeat(family: str, configs: Mapping[str, str]) -> None:
    session, heartbeat = (f"{family}.session.timeout.ms", f"{family}.heartbeat.interval.ms")
    times = [
        int(configs.get(name, GROUP_CONFIGS[name].config.fixed_default)) for name in (session, heartbeat)
    ]
    # A member whose heartbeat interval reaches the session timeout would be removed between two heartbeats.
    if times[0] <= times[1]:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{session} must be greater than {heartbeat}")
