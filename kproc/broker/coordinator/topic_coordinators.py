"""TopicCoordinators: the coordinators of one internal topic at one Handler, as the APIs see them.

The partition of a group or a transactional id comes from Java's hash of its name, as in every version of Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Generic

from kproc.broker.coordinator.coordinator_log import C
from kproc.common.bounded import NAME_MAX

if TYPE_CHECKING:
    from kproc.broker.cluster.image import PartitionImage
    from kproc.broker.coordinator.coordinator_log import CoordinatorKind, CoordinatorLog
    from kproc.broker.coordinator.coordinator_runtime import CoordinatorRuntime
    from kproc.broker.coordinator.rules import Marker, OnCode
    from kproc.broker.coordinator.shard import OnWake
    from kproc.broker.coordinator.steps import Work


class TopicCoordinators(Generic[C]):
    """The coordinators of one topic: the interface of the runtime for the APIs."""

    def __init__(self, runtime: CoordinatorRuntime, kind: CoordinatorKind[C]) -> None:
        self.kind = kind
        self._runtime = runtime

    def partition_of(self, name: str) -> PartitionImage | None:
        """Return the partition whose coordinator has the state of a name, such as a group id. None without the topic.

        Only the partitions that the topic was created with count. Otherwise adding partitions would change the
        coordinators of names that are stored already.
        """
        topic = self._runtime.image().topic(self.kind.topic)
        # The internal topic is created by the first request that needs it, so no coordinator exists before
        # that.
        if topic is None:
            return None
        # In Kafka, added partitions of `__consumer_offsets` move existing groups to coordinators without their state.
        return topic.partitions[partition_for(name, topic.created_count)]

    def coordinator(self, index: int) -> C:
        """Return the loaded coordinator of a partition of this Handler. Raises KafkaError with the client's code."""
        log: CoordinatorLog[C] = self._runtime.ready_log((self.kind.topic, index))
        return log.coordinator

    def park(self, index: int, on_wake: OnWake) -> None:
        """Call `on_wake` when a coordinator is loaded, when it belongs to another Handler, or after 200 ms.

        The request then tries once more and returns any error to its client.
        """
        self._runtime.park((self.kind.topic, index), on_wake)

    def reload(self, index: int) -> None:
        """Discard the coordinator of the topic's partition `index`, so that it is loaded again from its log.

        Called after an unexpected exception that left the coordinator half changed. Does nothing unless this Handler
        has opened the coordinator. The next request loads it again, or a pause later the runtime if its kind is eager.
        """
        self._runtime.reload((self.kind.topic, index))

    def append_marker(self, index: int, marker: Marker, on_code: OnCode) -> None:
        """Append a transaction marker to a partition of this Handler. `on_code` gets NONE if durable, or an error.

        Raises KafkaError (NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS) if it was not appended, or if that is unknown.
        """
        self._runtime.append_marker((self.kind.topic, index), marker, on_code)

    def loaded(self) -> list[C]:
        """Return the loaded coordinators of the topic."""
        return self._runtime.loaded(self.kind.topic)

    def start_survey(self, work: Work) -> None:
        """Run `work`, which reads many coordinators, in steps. Between two steps, coordinators can be released."""
        self._runtime.start_survey(work)

    def when_loaded(self, on_loaded: Callable[[], None]) -> None:
        """Load the coordinators of this Handler's partitions that have records, then call `on_loaded`.

        `on_loaded` is called before this returns if there is nothing to load. A coordinator whose load fails does not
        prevent the call.
        """
        self._runtime.when_loaded(self.kind.topic, on_loaded)


_INT32_MIN: Final = -(2**31)


def partition_for(name: str, partition_count: int) -> int:
    """Return the partition of a group id or transactional id, of `partition_count` partitions."""
    if len(name) > NAME_MAX:
        return _hash_of_long_name(name) % partition_count
    return _hash_of_name(name) % partition_count


def _java_abs_hash(text: str) -> int:
    """Return the absolute value of Java's hash of a text. As in Kafka's `Utils.abs`, the smallest hash gives 0.

    The hash is that of the UTF-16 units.
    """
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFF_FFFF
    signed = value - (1 << 32) if value & 0x8000_0000 else value
    return 0 if signed == _INT32_MIN else abs(signed)


# Each heartbeat hashes the id of its group. Names can be 32 kB long, so only a few long ones are cached.
_hash_of_name = lru_cache(maxsize=4096)(_java_abs_hash)
_hash_of_long_name = lru_cache(maxsize=64)(_java_abs_hash)
