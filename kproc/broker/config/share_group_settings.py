"""Settings of share groups: members, and the delivery of records. Rows of settings.py's table."""

from __future__ import annotations

from dataclasses import dataclass

from kproc.broker.config.values import CLUSTER, INT, at_least, between, setting


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ShareGroupSettings:
    """Settings of share groups (KIP-932). Most are defaults of group configs, with bounds for these."""

    group_share_session_timeout_ms: int = setting(
        INT,
        45_000,
        "Time in ms without a heartbeat after which a member of a share group is removed.",
        at_least(1),
    )
    group_share_min_session_timeout_ms: int = setting(
        INT, 45_000, "Shortest share.session.timeout.ms in ms that a group may have.", at_least(1)
    )
    group_share_max_session_timeout_ms: int = setting(
        INT, 60_000, "Longest share.session.timeout.ms in ms that a group may have.", at_least(1)
    )
    group_share_heartbeat_interval_ms: int = setting(
        INT, 5_000, "Interval in ms at which members of share groups send heartbeats.", at_least(1)
    )
    group_share_min_heartbeat_interval_ms: int = setting(
        INT, 5_000, "Shortest share.heartbeat.interval.ms in ms that a group may have.", at_least(1)
    )
    group_share_max_heartbeat_interval_ms: int = setting(
        INT, 15_000, "Longest share.heartbeat.interval.ms in ms that a group may have.", at_least(1)
    )
    group_share_assignment_interval_ms: int = setting(
        INT,
        1_000,
        "Shortest time in ms between two assignments of a share group.",
        at_least(0),
        dynamic=CLUSTER,
    )
    group_share_min_assignment_interval_ms: int = setting(
        INT, 0, "Shortest share.assignment.interval.ms in ms that a group may have.", at_least(0)
    )
    group_share_max_assignment_interval_ms: int = setting(
        INT, 15_000, "Longest share.assignment.interval.ms in ms that a group may have.", at_least(0)
    )
    group_share_max_size: int = setting(
        INT, 200, "Maximum number of members of a share group.", between(1, 1_000)
    )
    group_share_record_lock_duration_ms: int = setting(
        INT, 30_000, "Time in ms that a member of a share group holds a record.", between(1_000, 3_600_000)
    )
    group_share_min_record_lock_duration_ms: int = setting(
        INT,
        15_000,
        "Shortest share.record.lock.duration.ms in ms that a group may have.",
        between(1_000, 30_000),
    )
    group_share_max_record_lock_duration_ms: int = setting(
        INT,
        60_000,
        "Longest share.record.lock.duration.ms in ms that a group may have.",
        between(30_000, 3_600_000),
    )
    group_share_delivery_count_limit: int = setting(
        INT, 5, "Maximum number of deliveries of a record in a share group.", between(2, 10)
    )
    group_share_min_delivery_count_limit: int = setting(
        INT, 2, "Smallest share.delivery.count.limit that a group may have.", between(2, 5)
    )
    group_share_max_delivery_count_limit: int = setting(
        INT, 10, "Largest share.delivery.count.limit that a group may have.", between(5, 25)
    )
    group_share_partition_max_record_locks: int = setting(
        INT,
        2_000,
        "Maximum number of records of a partition that a share group holds at once.",
        between(100, 10_000),
    )
    group_share_min_partition_max_record_locks: int = setting(
        INT, 100, "Smallest share.partition.max.record.locks that a group may have.", between(100, 2_000)
    )
    group_share_max_partition_max_record_locks: int = setting(
        INT, 4_000, "Largest share.partition.max.record.locks that a group may have.", between(2_000, 10_000)
    )
