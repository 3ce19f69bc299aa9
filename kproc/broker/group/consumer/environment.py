"""ConsumerEnvironment: the parts of a broker that consumer groups use, and the configs of a group."""

from __future__ import annotations

from collections.abc import Callable, Collection

from kproc.broker.coordinator.recorded_group import RecordedGroupEnvironment
from kproc.broker.group.consumer.state import ConsumerMember
from kproc.broker.group.consumer.topics import TopicView


class ConsumerEnvironment(RecordedGroupEnvironment, frozen=True):
    """The parts of a broker that a consumer group uses."""

    # Returns True if a group with these members is converted to a classic one now.
    becomes_classic: Callable[[Collection[ConsumerMember]], bool]

    @property
    def topics(self) -> TopicView:
        return self.cluster.topics

    def session_timeout_ms(self, group_id: str) -> int:
        default = self.config.group_consumer_session_timeout_ms
        return self.cluster.config_number(group_id, "consumer.session.timeout.ms", default)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        default = self.config.group_consumer_heartbeat_interval_ms
        return self.cluster.config_number(group_id, "consumer.heartbeat.interval.ms", default)

    def assignment_interval_ms(self, group_id: str) -> int:
        default = self.config.group_consumer_assignment_interval_ms
        return self.cluster.config_number(group_id, "consumer.assignment.interval.ms", default)
