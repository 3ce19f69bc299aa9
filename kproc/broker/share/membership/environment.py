"""ShareGroupEnvironment: the parts of a broker that share groups use, and the configs of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from kproc.broker.share.membership.records import ShareRecord

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.group.consumer.topics import ConsumerCluster
    from kproc.broker.share.membership.group import ShareGroup


class ShareGroupEnvironment(msgspec.Struct, frozen=True):
    """The parts of a broker that a share group uses."""

    cluster: ConsumerCluster
    config: Config
    wall_ms: Callable[[], int]
    # Appends records of a group and applies them to its state. Raises KafkaError if the append failed.
    append: Callable[[ShareGroup, Sequence[ShareRecord]], None]

    def session_timeout_ms(self, group_id: str) -> int:
        """Return the time in ms without a heartbeat after which a member is removed."""
        default = self.config.group_share_session_timeout_ms
        return self.cluster.config_number(group_id, "share.session.timeout.ms", default)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return the interval in ms at which members send heartbeats."""
        default = self.config.group_share_heartbeat_interval_ms
        return self.cluster.config_number(group_id, "share.heartbeat.interval.ms", default)

    def assignment_interval_ms(self, group_id: str) -> int:
        """Return the least time in ms between two target assignments."""
        default = self.config.group_share_assignment_interval_ms
        return self.cluster.config_number(group_id, "share.assignment.interval.ms", default)
