"""ConsumerEnvironment: the parts of a broker that consumer groups use, and the configs of a group."""

from __future__ import annotations

from kproc.broker.coordinator.recorded_group import RecordedGroupEnvironment


class ConsumerEnvironment(RecordedGroupEnvironment, frozen=True):
    """The parts of a broker that a consumer group uses."""

    def session_timeout_ms(self, group_id: str) -> int:
        default = self.config.group_consumer_session_timeout_ms
        return self.cluster.config_number(group_id, "consumer.session.timeout.ms", default)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        default = self.config.group_consumer_heartbeat_interval_ms
        return self.cluster.config_number(group_id, "consumer.heartbeat.interval.ms", default)

    def assignment_interval_ms(self, group_id: str) -> int:
        default = self.config.group_consumer_assignment_interval_ms
        return self.cluster.config_number(group_id, "consumer.assignment.interval.ms", default)
