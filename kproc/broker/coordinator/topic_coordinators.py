"""TopicCoordinators: the coordinators of one internal topic at one Handler, as the APIs see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic

from kproc.broker.coordinator.coordinator_log import C
from kproc.broker.coordinator.partitioning import partition_for

if TYPE_CHECKING:
    from kproc.broker.cluster.image import PartitionImage
    from kproc.broker.coordinator.coordinator_log import CoordinatorKind, CoordinatorLog
    from kproc.broker.coordinator.coordinator_runtime import CoordinatorRuntime
    from kproc.broker.coordinator.rules import Marker, OnCode
    from kproc.broker.coordinator.shard import OnWake


class TopicCoordinators(Generic[C]):
    """The coordinators of one topic: the interface of the runtime for the APIs."""

    def __init__(self, runtime: CoordinatorRuntime, kind: CoordinatorKind[C]) -> None:
        self.kind = kind
        self._runtime = runtime

    def partition_of(self, name: str) -> PartitionImage | None:
        """Return the partition whose coordinator is responsible for a name. None before the topic exists.

        Only the partitions that the topic was created with count. Otherwise adding partitions would change the
        coordinators of names that are stored already.
        """
        topic = self._runtime.image().topic(self.kind.topic)
        if topic is None:
            return None
        # Kafka has the same flaw and advises against adding partitions to `__consumer_offsets`. Counting the first
        # block only makes it harmless.
        _, count = next(topic.blocks())
        return topic.partitions[partition_for(name, count)]

    def coordinator(self, index: int) -> C:
        """Return the loaded coordinator of a partition of ours. Raises KafkaError with the code for the client."""
        log: CoordinatorLog[C] = self._runtime.ready_log((self.kind.topic, index))
        return log.coordinator

    def park(self, index: int, on_wake: OnWake) -> None:
        """Call back when a coordinator is loaded, when it belongs to another Handler, or after 200 ms.

        The request then tries once more and returns whatever error it gets.
        """
        self._runtime.park((self.kind.topic, index), on_wake)

    def reload(self, index: int) -> None:
        """Discard and reload a coordinator of ours that an unexpected exception left half changed."""
        self._runtime.reload((self.kind.topic, index))

    def append_marker(self, index: int, marker: Marker, on_code: OnCode) -> None:
        """Append a transaction marker to a partition of ours. `on_code` gets NONE when it is durable, or an error.

        Raises KafkaError (NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS) if it was not appended, or if that is unknown.
        """
        self._runtime.append_marker((self.kind.topic, index), marker, on_code)

    def loaded(self) -> list[C]:
        """Return the loaded coordinators of the topic."""
        return self._runtime.loaded(self.kind.topic)

    def when_loaded(self, on_loaded: Callable[[], None]) -> None:
        """Load the coordinators of all our partitions that have records, then call back."""
        self._runtime.when_loaded(self.kind.topic, on_loaded)
