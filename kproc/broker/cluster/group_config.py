"""The table of group configs (resource type 32): every name that Kafka 4.4 documents, one row each.

Those of consumer, share and streams groups (KIP-848, KIP-932, KIP-1071) take effect at the next heartbeat or fetch.
The broker settings `group.*.min.*` and `group.*.max.*` are bounds. Kafka's defaults replace those that kproc lacks.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from typing import Final, NamedTuple

from kproc.broker.cluster.topic_config import TopicConfig
from kproc.broker.config import SETTINGS, Config, Kind
from kproc.broker.config.values import Check, at_least
from kproc.common.errors import ErrorCode, KafkaError


class GroupConfigRow(NamedTuple):
    """A row of the table of group configs: the config, the name of its default, and Kafka's defaults of its bounds.

    synonym: the broker setting that has the default, or the config's own name.
    rule: a check that comes before or after the other checks of all configs, as in Kafka. Its error is the whole
    message.
    """

    config: TopicConfig
    synonym: str
    lowest: int | None = None
    highest: int | None = None
    rule: Check | None = None

    def bounds(self, config: Config) -> tuple[int | None, int | None]:
        """Return the least and the largest value that the broker's settings allow. None: no bound."""
        return self._bound("min", self.lowest, config), self._bound("max", self.highest, config)

    def default(self, config: Config) -> str:
        """Return the value for a group that has not set this config, from the static settings."""
        setting = SETTINGS.get(self.synonym)
        return self.config.fixed_default if setting is None else config.wire_value(setting.name) or ""

    def clamp(self, text: str, config: Config) -> str:
        """Return `text`, or the nearer bound if its number is outside of the broker's bounds."""
        lowest, highest = self.bounds(config)
        if lowest is not None and int(text) < lowest:
            return str(lowest)
        return str(highest) if highest is not None and int(text) > highest else text

    def _bound(self, side: str, default: int | None, config: Config) -> int | None:
        family, _, rest = self.config.name.partition(".")
        # group.streams.max.standby.replicas is the only bound whose name lacks a part of its config's name, `num.`.
        setting = SETTINGS.get(f"group.{family}.{side}.{rest.removeprefix('num.')}")
        return default if setting is None else int(getattr(config, setting.field_name))


def _reset(value: str) -> str | None:
    """Return an error for an invalid share.auto.offset.reset.

    Valid are earliest, latest and by_duration:<ISO-8601 duration of at least 0>.
    """
    if value in ("earliest", "latest"):
        return None
    # As in Kafka, only the duration itself can have capital and small letters.
    if value.startswith("by_duration:") and by_duration_ms(value) is not None:
        return None
    return (
        f"Invalid value `{value}` for configuration share.auto.offset.reset. The value must be either "
        "'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
    )


def _dead_letter_topic(value: str) -> str | None:
    # KIP-1191: two underscores begin the names of internal topics. Records of clients must not get into them,
    # because their coordinators would read them.
    return (
        f"{_DEAD_LETTER_TOPIC}: DLQ topic name must not start with '__'" if value.startswith("__") else None
    )


def _task_assignor(value: str) -> str | None:
    # KIP-1071: the broker assigns the tasks, so a group can have only an assignor that the broker implements.
    if value == "sticky":
        return None
    return f"{_ASSIGNOR} '{value}' is not a registered task assignor. Registered assignors are: [sticky]."


def _tags(value: str) -> str | None:
    # Two empty elements count as repeated, too.
    tags = [tag.strip() for tag in value.split(",")]
    return f"{_RACK_AWARE_TAGS} must not contain duplicate tag keys." if len(set(tags)) < len(tags) else None


def _isolation(value: str) -> str | None:
    listed = ", ".join(_ISOLATION_LEVELS)
    return None if value in _ISOLATION_LEVELS else f"String must be one of: {listed}"


_ASSIGNOR: Final = "streams.assignor.name"
_RACK_AWARE_TAGS: Final = "streams.rack.aware.assignment.tags"
_DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
_ISOLATION_LEVELS: Final = ("read_committed", "read_uncommitted")
# The format of java.time.Duration.parse, by which Kafka reads the duration. Each part can have a sign of its own.
_NUMBER: Final = "([-+]?[0-9]{1,19})"
_BY_DURATION: Final = re.compile(
    rf"by_duration:([-+]?)P(?=.)(?:{_NUMBER}D)?"
    rf"(?:T(?=.)(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}(?:[.,]([0-9]{{0,9}}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
_PART_SECONDS: Final = (86_400, 3_600, 60, 1)
_SECONDS_MAX: Final = 2**63 - 1


def by_duration_ms(value: str) -> int | None:
    """Return the milliseconds of a share.auto.offset.reset such as by_duration:PT1H30M.

    Return None for any other value, for a negative duration and for one of 2**63 seconds or more.
    """
    found = _BY_DURATION.fullmatch(value)
    if found is None:
        return None
    sign, *parts, fraction = found.groups()
    seconds = sum(int(part) * size for part, size in zip(parts, _PART_SECONDS, strict=True) if part)
    nanoseconds = int((fraction or "").ljust(9, "0"))
    # The sign of the seconds is that of their fraction, too, also for -0.5.
    if (parts[-1] or "").startswith("-"):
        nanoseconds = -nanoseconds
    total = seconds * 10**9 + nanoseconds
    if sign == "-":
        total = -total
    return total // 10**6 if 0 <= total // 10**9 <= _SECONDS_MAX else None


def _row(
    name: str,
    kind: Kind,
    text: str,
    check: Check | None,
    default: str,
    synonym: str,
    lowest: int | None = None,
    highest: int | None = None,
) -> GroupConfigRow:
    return GroupConfigRow(TopicConfig(name, kind, text, (), check, default), synonym, lowest, highest)


def _number(
    name: str, default: int, least: int, lowest: int | None, highest: int | None, text: str
) -> GroupConfigRow:
    return _row(name, Kind.INT, text, at_least(least), str(default), f"group.{name}", lowest, highest)


def _word(
    name: str,
    kind: Kind,
    default: str,
    check: Check | None,
    text: str,
    synonym: str = "",
    rule: Check | None = None,
) -> GroupConfigRow:
    # As in Kafka, the default of a config without a setting of the broker has the name of the config.
    return _row(name, kind, text, check, default, synonym or name)._replace(rule=rule)


def _timing(family: str) -> tuple[GroupConfigRow, ...]:
    """Return the rows of one protocol (`family`) for the times that consumer, share and streams groups each have."""
    return (
        _number(
            f"{family}.session.timeout.ms", 45_000, 1, 45_000, 60_000,
            "Time in ms without a heartbeat after which a member is removed.",
        ),
        _number(
            f"{family}.heartbeat.interval.ms", 5_000, 1, 5_000, 15_000,
            "Interval in ms at which members send heartbeats.",
        ),
        _number(
            f"{family}.assignment.interval.ms", 1_000, 0, 0, 15_000,
            "Shortest time in ms between two assignments of the group.",
        ),
    )  # fmt: skip


ROWS: Final = (
    *_timing("consumer"),
    *_timing("share"),
    _word(
        "share.auto.offset.reset", Kind.STRING, "latest",
        Check("earliest, latest, or by_duration:<ISO 8601 duration>", _reset),
        "Where a new share group begins.",
    ),
    _number(
        "share.delivery.count.limit", 5, 2, 2, 10,
        "Maximum number of deliveries of a record in a share group.",
    ),
    _word(
        "share.isolation.level", Kind.STRING, "read_uncommitted",
        Check(f"one of {', '.join(_ISOLATION_LEVELS)}", _isolation),
        "Records that a share group reads: all, or only those of committed transactions.",
    ),
    _number(
        "share.partition.max.record.locks", 2_000, 100, 100, 4_000,
        "Maximum number of records of a partition that a share group holds at once.",
    ),
    _number(
        "share.record.lock.duration.ms", 30_000, 1_000, 15_000, 60_000,
        "Time in ms that a member of a share group holds a record.",
    ),
    _word(
        "share.renew.acknowledge.enable", Kind.BOOLEAN, "true", None,
        "Allow members of a share group to hold a record for longer.",
    ),
    *_timing("streams"),
    _number(
        "streams.initial.rebalance.delay.ms", 3_000, 0, None, None,
        "Time in ms that the first rebalance of a streams group waits for more members.",
    ),
    _number(
        "streams.num.standby.replicas", 0, 0, None, 2,
        "Number of standby copies of each task's state in a streams group.",
    ),
    _word(
        _ASSIGNOR, Kind.STRING, "sticky", None,
        "Task assignor of a streams group.", "group.streams.assignors", Check("sticky", _task_assignor),
    ),
    _word(
        _RACK_AWARE_TAGS, Kind.LIST, "", None,
        "Tags that each member of a streams group should have. Members without them get a status.",
        "group.streams.rack.aware.assignment.tags", Check("no repeated tag", _tags),
    ),
    _word(
        _DEAD_LETTER_TOPIC, Kind.STRING, "", None,
        "Topic to which a share group writes records that it cannot deliver. Empty: none.",
        rule=Check("no name that begins with __", _dead_letter_topic),
    ),
    _word(
        "errors.deadletterqueue.copy.record.enable", Kind.BOOLEAN, "false", None,
        "Copy key, value and headers of a record that a share group cannot deliver.",
    ),
)  # fmt: skip
GROUP_CONFIGS: Final[Mapping[str, GroupConfigRow]] = {row.config.name: row for row in ROWS}
# Names that clients can see and set. `restrict` removes those that an emulated release lacks.
_names = frozenset(GROUP_CONFIGS)


def visible_rows() -> list[GroupConfigRow]:
    """Return the rows of the configs that clients can see and set."""
    return [row for row in ROWS if row.config.name in _names]


def restrict(names: Iterable[str]) -> None:
    """Treat all group configs but `names` as unknown in the whole process.

    The Kafka release that kproc.emulate.release names lacks the others.
    """
    global _names
    _names = frozenset(names)


def clamp_all(configs: Mapping[str, str], config: Config) -> dict[str, str]:
    """Return stored configs within the broker's bounds, because they can have been stored under other bounds."""
    return {
        name: GROUP_CONFIGS[name].clamp(text, config) if name in GROUP_CONFIGS else text
        for name, text in configs.items()
    }


def check_all(
    configs: Mapping[str, str], config: Config, kept: Container[str] = frozenset()
) -> dict[str, str]:
    """Validate and normalize a group's configs. Raise KafkaError(INVALID_CONFIG) for the first invalid one.

    kept: the names of stored configs that the request does not change. They can be configs that the emulated release
    lacks, because another release can have stored them.
    """
    # The order is that of Kafka's GroupConfig. A request with several errors gets the same error from both.
    for name in configs:
        if name not in GROUP_CONFIGS or (name not in _names and name not in kept):
            raise _invalid(f"Unknown group config name: {name}")
    _check_rule(_RACK_AWARE_TAGS, configs)
    normalized = {name: GROUP_CONFIGS[name].config.normalize(text) for name, text in configs.items()}
    for name, text in normalized.items():
        _check_bounds(GROUP_CONFIGS[name], text, config)
    _check_rule(_ASSIGNOR, normalized)
    for family in ("consumer", "share", "streams"):
        _check_heartbeat(family, normalized, config)
    _check_rule(_DEAD_LETTER_TOPIC, normalized)
    return normalized


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, message)


def _check_rule(name: str, configs: Mapping[str, str]) -> None:
    """Raise KafkaError if the config of this name is set, and its row's `rule` rejects it."""
    rule = GROUP_CONFIGS[name].rule
    if rule is not None and name in configs and (problem := rule(configs[name])):
        raise _invalid(problem)


def _check_bounds(row: GroupConfigRow, text: str, config: Config) -> None:
    """Raise KafkaError, with Kafka's message, if a value is outside of the broker's bounds."""
    lowest, highest = row.bounds(config)
    if lowest is not None and highest is not None and not lowest <= int(text) <= highest:
        problem = f"must be in the range {lowest} to {highest} inclusive."
    elif highest is not None and int(text) > highest:
        problem = f"must be less than or equal to {highest}"
    else:
        return
    raise _invalid(f"{row.config.name} {problem}")


def _check_heartbeat(family: str, configs: Mapping[str, str], config: Config) -> None:
    session, heartbeat = (f"{family}.session.timeout.ms", f"{family}.heartbeat.interval.ms")
    # If the group sets neither, both are the broker's settings, which the start has checked already.
    if session not in configs and heartbeat not in configs:
        return
    times = [int(configs.get(name, GROUP_CONFIGS[name].default(config))) for name in (session, heartbeat)]
    # A member whose heartbeat interval reaches the session timeout would be removed between two heartbeats.
    if times[0] <= times[1]:
        raise _invalid(f"{session} must be greater than {heartbeat}")
