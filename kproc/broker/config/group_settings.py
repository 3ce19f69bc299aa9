"""Settings of consumer groups and their committed offsets. Rows of settings.py's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kproc.broker.config.values import (
    BOOLEAN,
    CLUSTER,
    INT,
    INT_MAX,
    LIST,
    LONG,
    ONE_REPLICA,
    SIZE,
    STRING,
    ConfigError,
    at_least,
    between,
    one_of,
    setting,
    some_of,
)

# Defaults of the limits of memory that members and committed offsets may take in a Handler.
MEMBERS_BYTES_MAX: Final = 96 << 20
OFFSETS_BYTES_MAX: Final = 256 << 20


@dataclass(frozen=True, init=False, repr=False, eq=False)
class GroupSettings:
    """Settings of consumer groups: sessions, sizes, and the topic of committed offsets."""

    group_min_session_timeout_ms: int = setting(
        INT, 6_000, "Shortest session timeout in ms that a member may request.", at_least(0)
    )
    group_max_session_timeout_ms: int = setting(
        INT, 1_800_000, "Longest session timeout in ms that a member may request.", at_least(0)
    )
    group_initial_rebalance_delay_ms: int = setting(
        INT,
        3_000,
        "Time in ms that the first rebalance of an empty group waits for more members. `kproc dev` and kproc.Broker "
        "use 0.",
        at_least(0),
    )
    group_max_size: int = setting(INT, INT_MAX, "Maximum number of members of a group.", at_least(1))
    kproc_group_members_max_bytes: int = setting(
        SIZE,
        MEMBERS_BYTES_MAX,
        "Memory that the members of all groups may take in a Handler. A member takes at least 3 KiB, and its group "
        "2 KiB. Beyond it, new members are rejected with GROUP_MAX_SIZE_REACHED. Longer subscriptions and assignments "
        "of known members may use twice as much.",
        at_least(1 << 20),
    )
    kproc_group_offsets_max_bytes: int = setting(
        SIZE,
        OFFSETS_BYTES_MAX,
        "Memory that committed offsets may take in a Handler. An offset takes 0.5 KiB and its metadata, and its group "
        "3 KiB. Beyond it, offsets of partitions for which the group has none are rejected with "
        "INVALID_COMMIT_OFFSET_SIZE.",
        at_least(1 << 20),
    )
    group_share_max_share_sessions: int = setting(
        INT,
        2_000,
        "Maximum number of share sessions of a Handler. A member of a share group has one for each connection on which "
        "it fetches records. Beyond it, a new session takes the place of one of the group that has most, or is "
        "rejected if no group has at least two more than its own.",
        at_least(1),
    )
    group_consumer_session_timeout_ms: int = setting(
        INT,
        45_000,
        "Time in ms without a heartbeat after which a member of the consumer protocol (KIP-848) is removed.",
        at_least(1),
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        INT, 5_000, "Interval in ms at which members of the consumer protocol send heartbeats.", at_least(1)
    )
    group_consumer_min_session_timeout_ms: int = setting(
        INT, 45_000, "Shortest consumer.session.timeout.ms in ms that a group may have.", at_least(1)
    )
    group_consumer_max_session_timeout_ms: int = setting(
        INT, 60_000, "Longest consumer.session.timeout.ms in ms that a group may have.", at_least(1)
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        INT, 5_000, "Shortest consumer.heartbeat.interval.ms in ms that a group may have.", at_least(1)
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        INT, 15_000, "Longest consumer.heartbeat.interval.ms in ms that a group may have.", at_least(1)
    )
    group_consumer_max_size: int = setting(
        INT, INT_MAX, "Maximum number of members of a group of the consumer protocol.", at_least(1)
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        LIST,
        ("uniform", "range"),
        "Assignors that members of the consumer protocol may choose. The first one is the default.",
        some_of("uniform", "range"),
    )
    group_consumer_assignment_interval_ms: int = setting(
        INT,
        1_000,
        "Shortest time in ms between two assignments of a group of the consumer protocol (KIP-1263).",
        at_least(0),
        dynamic=CLUSTER,
    )
    group_consumer_min_assignment_interval_ms: int = setting(
        INT, 0, "Shortest consumer.assignment.interval.ms in ms that a group may have.", at_least(0)
    )
    group_consumer_max_assignment_interval_ms: int = setting(
        INT, 15_000, "Longest consumer.assignment.interval.ms in ms that a group may have.", at_least(0)
    )
    group_consumer_regex_refresh_interval_ms: int = setting(
        INT,
        600_000,
        "Time in ms after which the topics that match a regular expression of a group are found anew, because the "
        "rights of its members may have changed. New topics are found earlier.",
        at_least(10_000),
        internal=True,
    )
    errors_deadletterqueue_auto_create_topics_enable: bool = setting(
        BOOLEAN,
        False,
        "Create the dead letter topic of a share group if it does not exist (KIP-1191).",
        dynamic=CLUSTER,
    )
    errors_deadletterqueue_topic_name_prefix: str = setting(
        STRING,
        "dlq.",
        "Beginning of the names of dead letter topics. A share group writes to no topic with another name.",
        dynamic=CLUSTER,
    )
    group_consumer_migration_policy: str = setting(
        STRING,
        "bidirectional",
        "Whether groups with members change between the classic and the consumer protocol: upgrade, downgrade, "
        "bidirectional or disabled.",
        one_of("bidirectional", "upgrade", "downgrade", "disabled"),
    )
    offsets_topic_num_partitions: int = setting(
        INT, 50, "Number of partitions with which __consumer_offsets is created.", at_least(1)
    )
    offsets_topic_replication_factor: int = setting(
        INT,
        3,
        "Replication factor of __consumer_offsets. kproc keeps one replica.",
        at_least(1),
        unhonoured=ONE_REPLICA,
    )
    offsets_topic_segment_bytes: int = setting(
        INT, 104_857_600, "segment.bytes with which __consumer_offsets is created.", at_least(1 << 20)
    )
    offsets_topic_compression_codec: int = setting(
        INT,
        0,
        "Codec of batches in __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        between(0, 4),
    )
    offsets_retention_minutes: int = setting(
        INT,
        10_080,
        "Time in minutes that committed offsets are kept after the group became empty.",
        at_least(1),
    )
    offsets_retention_check_interval_ms: int = setting(
        LONG, 600_000, "Interval in ms at which expired offsets are removed.", at_least(1)
    )
    offset_metadata_max_bytes: int = setting(
        INT, 4_096, "Longest metadata text in bytes that a consumer may commit with an offset.", at_least(0)
    )


_TIMES: Final = ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
# The settings of each group protocol that have bounds.
_BOUNDED: Final = {
    "consumer": _TIMES,
    "share": (*_TIMES, "record.lock.duration.ms", "delivery.count.limit", "partition.max.record.locks"),
    "streams": _TIMES,
}
# Each bounded setting, with the settings of its least and its largest value.
GROUP_BOUNDS: Final = tuple(
    (f"group.{family}.{name}", f"group.{family}.min.{name}", f"group.{family}.max.{name}")
    for family, names in _BOUNDED.items()
    for name in names
)


def check_group_bounds(config: Any) -> None:
    """Raise ConfigError unless the settings of group protocols lie within their bounds, as in Kafka."""

    def check(name: str, problem: str, other: str, *, is_valid: bool) -> None:
        if not is_valid:
            shown = f"{other}={value(other)}"
            raise ConfigError(f"{name}={value(name)}: must be {problem} {shown}")

    def value(name: str) -> int:
        number: int = getattr(config, name.replace(".", "_"))
        return number

    for name, least, most in GROUP_BOUNDS:
        check(most, "at least", least, is_valid=value(most) >= value(least))
        check(name, "at least", least, is_valid=value(name) >= value(least))
        check(name, "at most", most, is_valid=value(name) <= value(most))
    for family in _BOUNDED:
        heartbeat, session = f"group.{family}.heartbeat.interval.ms", f"group.{family}.session.timeout.ms"
        check(heartbeat, "below", session, is_valid=value(heartbeat) < value(session))
    replicas, replicas_max = "group.streams.num.standby.replicas", "group.streams.max.standby.replicas"
    check(replicas, "at most", replicas_max, is_valid=value(replicas) <= value(replicas_max))
