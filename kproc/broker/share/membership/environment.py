"""ShareGroupEnvironment: the parts of a broker that share groups use, and the configs of a group."""

from __future__ import annotations

from kproc.broker.coordinator.recorded_group import RecordedGroupEnvironment


class ShareGroupEnvironment(RecordedGroupEnvironment, frozen=True):
    """The parts of a broker that a share group uses."""

    def session_timeout_ms(self, group_id: str) -> int:
        default = self.config.group_share_session_timeout_ms
        return self.cluster.config_number(group_id, "share.session.timeout.ms", default)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        default = self.config.group_share_heartbeat_interval_ms
        return self.cluster.config_number(group_id, "share.heartbeat.interval.ms", default)

    def assignment_interval_ms(self, group_id: str) -> int:
        default = self.config.group_share_assignment_interval_ms
        return self.cluster.config_number(group_id, "share.assignment.interval.ms", default)
