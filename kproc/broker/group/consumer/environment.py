"""ConsumerEnvironment: the parts of a broker that consumer groups use, and the configs of a group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from kproc.broker.group.consumer.records import ConsumerRecord
from kproc.broker.group.consumer.state import ConsumerMember
from kproc.broker.group.consumer.topics import ConsumerCluster, TopicView

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.group.consumer.group import ConsumerGroup


class ConsumerEnvironment(msgspec.Struct, frozen=True):
    """The parts of a broker that a consumer group uses."""

    cluster: ConsumerCluster
    config: Config
    wall_ms: Callable[[], int]
    # Appends records of a group and applies them. Raises KafkaError if they are not in the log.
    append: Callable[[ConsumerGroup, Sequence[ConsumerRecord]], None]
    # Returns True if a group with these members is converted to a classic one now.
    becomes_classic: Callable[[Collection[ConsumerMember]], bool]

    @property
    def topics(self) -> TopicView:
        return self.cluster.topics

    def session_timeout_ms(self, group_id: str) -> int:
        """Return the time in ms without a heartbeat after which a member is removed."""
        default = self.config.group_consumer_session_timeout_ms
        return self.cluster.config_number(group_id, "consumer.session.timeout.ms", default)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return the interval in ms at which members send heartbeats."""
        default = self.config.group_consumer_heartbeat_interval_ms
        return self.cluster.config_number(group_id, "consumer.heartbeat.interval.ms", default)

    def assignment_interval_ms(self, group_id: str) -> int:
        """Return the least time in ms between two target assignments."""
        default = self.config.group_consumer_assignment_interval_ms
        return self.cluster.config_number(group_id, "consumer.assignment.interval.ms", default)
