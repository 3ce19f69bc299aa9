"""StreamsEnvironment: the parts of a broker that a streams group uses, and the group's configs."""

from __future__ import annotations

from typing import Final

from kproc.broker.coordinator.recorded_group import RecordedGroupEnvironment
from kproc.broker.streams.assignor import TASK_ASSIGNORS
from kproc.broker.streams.topology import KeyValue

STANDBY_REPLICAS: Final = "num.standby.replicas"
RACK_AWARE_TAGS: Final = "rack.aware.assignment.tags"


class StreamsEnvironment(RecordedGroupEnvironment, frozen=True):
    """The parts of a broker that a streams group uses."""

    def session_timeout_ms(self, group_id: str) -> int:
        return self._number(group_id, "session.timeout.ms", self.config.group_streams_session_timeout_ms)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        default = self.config.group_streams_heartbeat_interval_ms
        return self._number(group_id, "heartbeat.interval.ms", default)

    def assignment_interval_ms(self, group_id: str) -> int:
        default = self.config.group_streams_assignment_interval_ms
        return self._number(group_id, "assignment.interval.ms", default)

    def initial_delay_ms(self, group_id: str) -> int:
        """Return the time in ms that the first assignment of an empty group waits for more members."""
        default = self.config.group_streams_initial_rebalance_delay_ms
        return self._number(group_id, "initial.rebalance.delay.ms", default)

    def standby_count(self, group_id: str) -> int:
        """Return the number of standby copies of each stateful task."""
        return self._number(group_id, STANDBY_REPLICAS, self.config.group_streams_num_standby_replicas)

    def _number(self, group_id: str, name: str, default: int) -> int:
        return self.cluster.config_number(group_id, f"streams.{name}", default)

    def assignment_configs(self, group_id: str) -> tuple[KeyValue, ...]:
        """Return the configs whose change causes a new assignment, sorted by name."""
        configs = [KeyValue(STANDBY_REPLICAS, str(self.standby_count(group_id)))]
        tags = self.rack_aware_tags(group_id)
        if tags:
            configs.append(KeyValue(RACK_AWARE_TAGS, ",".join(tags)))
        return tuple(configs)

    def rack_aware_tags(self, group_id: str) -> tuple[str, ...]:
        """Return the keys of the client tags that each member of a group should have."""
        own = self.cluster.group_configs(group_id).get(f"streams.{RACK_AWARE_TAGS}")
        if own is None:
            return self.config.group_streams_rack_aware_assignment_tags
        return tuple(tag.strip() for tag in own.split(",") if tag.strip())

    def assignor_name(self, group_id: str) -> str:
        """Return the name of the group's assignor, or of the broker's first one if the group has no valid setting."""
        own = self.cluster.group_configs(group_id).get("streams.assignor.name")
        return own if own is not None and own in TASK_ASSIGNORS else self.config.group_streams_assignors[0]
