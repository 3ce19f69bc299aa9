"""Settings of streams groups. Rows of settings.py's table."""

from __future__ import annotations

from dataclasses import dataclass

from kproc.broker.config.values import CLUSTER, INT, INT_MAX, LIST, at_least, setting, some_of


@dataclass(frozen=True, init=False, repr=False, eq=False)
class StreamsGroupSettings:
    """Settings of streams groups (KIP-1071). Most are defaults of group configs, with bounds for these."""

    group_streams_session_timeout_ms: int = setting(
        INT,
        45_000,
        "Time in ms without a heartbeat after which a member of a streams group is removed.",
        at_least(1),
    )
    group_streams_min_session_timeout_ms: int = setting(
        INT, 45_000, "Shortest streams.session.timeout.ms in ms that a group may have.", at_least(1)
    )
    group_streams_max_session_timeout_ms: int = setting(
        INT, 60_000, "Longest streams.session.timeout.ms in ms that a group may have.", at_least(1)
    )
    group_streams_heartbeat_interval_ms: int = setting(
        INT, 5_000, "Interval in ms at which members of streams groups send heartbeats.", at_least(1)
    )
    group_streams_min_heartbeat_interval_ms: int = setting(
        INT, 5_000, "Shortest streams.heartbeat.interval.ms in ms that a group may have.", at_least(1)
    )
    group_streams_max_heartbeat_interval_ms: int = setting(
        INT, 15_000, "Longest streams.heartbeat.interval.ms in ms that a group may have.", at_least(1)
    )
    group_streams_assignment_interval_ms: int = setting(
        INT,
        1_000,
        "Shortest time in ms between two assignments of a streams group.",
        at_least(0),
        dynamic=CLUSTER,
    )
    group_streams_min_assignment_interval_ms: int = setting(
        INT, 0, "Shortest streams.assignment.interval.ms in ms that a group may have.", at_least(0)
    )
    group_streams_max_assignment_interval_ms: int = setting(
        INT, 15_000, "Longest streams.assignment.interval.ms in ms that a group may have.", at_least(0)
    )
    group_streams_initial_rebalance_delay_ms: int = setting(
        INT,
        3_000,
        "Time in ms that the first assignment of an empty streams group waits for more members. `kproc dev` and "
        "kproc.Broker use 0.",
        at_least(0),
    )
    group_streams_num_standby_replicas: int = setting(
        INT, 0, "Number of standby copies of each task's state in a streams group.", at_least(0)
    )
    group_streams_max_standby_replicas: int = setting(
        INT, 2, "Largest streams.num.standby.replicas that a group may have.", at_least(0)
    )
    group_streams_max_size: int = setting(
        INT, INT_MAX, "Maximum number of members of a streams group.", at_least(1)
    )
    group_streams_assignors: tuple[str, ...] = setting(
        LIST,
        ("sticky",),
        "Assignors of tasks that streams groups may choose. The first one is the default.",
        some_of("sticky"),
    )
    group_streams_rack_aware_assignment_tags: tuple[str, ...] = setting(
        LIST,
        (),
        "Tags that each member of a streams group should have. Members without them get a status. As in Kafka 4.4, the "
        "assignment does not use them.",
    )
