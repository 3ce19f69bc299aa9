"""BrokerFigures: the figures of topics, logs and consumer groups, gathered from the Handlers for each scrape.

Handlers count in their own memory, and the controller requests the counts of all of them. If a Handler does not answer
in time, its last figures are shown. Starts and ends of logs are in the shared table. The size of a log that no Handler
has opened is read from the disk, once. The number of series is bounded: the first topics, partitions and groups get
series of their own and keep them until they are deleted, and the others share one. `left_out` counts the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

from kproc.broker.calls.call_links import AskHandler
from kproc.broker.calls.calls import Call, FromImage, Lost, Reply
from kproc.broker.cluster.image import ClusterImage, PartitionImage, TopicImage
from kproc.broker.observe.known_ends import KnownEnds
from kproc.broker.observe.log_dir_usage import log_bytes
from kproc.broker.role.partition_table import PartitionTable
from kproc.common.clock import NS_PER_MS, NS_PER_S, Clock

TOPICS_MAX: Final = 1000
PARTITIONS_MAX: Final = 1000
GROUPS_MAX: Final = 1000
GROUP_TOPICS_MAX: Final = 1000
GROUP_PARTITIONS_MAX: Final = 1000
# Limits of one Handler's reply.
REPORTED_GROUPS_MAX: Final = 10_000
REPORTED_OFFSETS_MAX: Final = 100_000
_PATIENCE_NS: Final = 2 * NS_PER_S
_LOOKED_UP_AT_ONCE: Final = 64
_NEVER_MS: Final = 1 << 40

Key = TypeVar("Key")
Sizes = dict[tuple[str, int], tuple[int, int]]  # Bytes and segments, by topic and partition.
NO_TRAFFIC: Final = (0, 0, 0, 0)


class ShownKeys(Generic[Key]):
    """The topics, partitions or groups that have a metric series of their own.

    These are the first ones up to a limit, until they are deleted.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: set[Key] = set()
        self.left_out = 0

    def admit(self, key: Key) -> bool:
        """Return True if `key` has a series of its own. Give it one if the limit allows."""
        if key not in self._taken and len(self._taken) < self._limit:
            self._taken.add(key)
        return key in self._taken

    def choose(self, keys: Collection[Key]) -> list[Key]:
        """Return those of `keys` that have a series of their own, in their order. Count the others as `left_out`.

        `keys` are all existing keys.
        """
        # A series that belongs to a deleted topic makes room for a new one. Existing series keep their place, because a
        # graph must not have gaps.
        self._taken.intersection_update(keys)
        answer = [key for key in keys if self.admit(key)]
        self.left_out = len(keys) - len(answer)
        return answer


class Group(NamedTuple):
    """One group of any type, with its committed offsets by topic and partition."""

    id: str  # Shortened if it is long.
    type: str
    state: str
    members: int
    offsets: Mapping[str, Mapping[int, int]]


class HandlerFigures(Reply):
    """A Handler's reply with its metrics of topics, logs and groups, for a scrape."""

    since: int  # Start of the counts in ns. It changes if the Handler is restarted.
    traffic: dict[str, list[int]]  # By topic: bytes in, records in, bytes out, fetches.
    sizes: dict[str, list[int]]  # By topic: a flat list of (partition, bytes, segments).
    offline: int
    groups: list[Group]
    more_groups: dict[str, dict[str, int]]  # Numbers of groups that are not in `groups`, by type and state.


FIGURES: Final[Call[FromImage, HandlerFigures]] = Call("figures", FromImage, HandlerFigures)


class BrokerFigures:
    """Gathers the Handlers' metrics by a call to each, for every scrape, and waits 2 s at most.

    Also chooses which topics and groups get series of their own. The controller, which answers scrapes, has one.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        directory: Path,
        image: Callable[[], ClusterImage],
        table: PartitionTable,
        ask: AskHandler,
        known_ends: KnownEnds,
    ) -> None:
        self._clock = clock
        self._directory = directory
        self._image = image
        self._table = table
        self._ask = ask
        self._known_ends = known_ends
        self._replies: dict[int, HandlerFigures] = {}  # The last reply of each Handler.
        self._totals: dict[str, list[int]] = {}
        self.others = [0, 0, 0, 0]  # Traffic of the topics without a series of their own.
        self._untouched: dict[tuple[bytes, int], int] = {}  # Bytes of the logs that no Handler has opened.
        self._looked_up_version = -1
        self._looking: Iterator[None] = iter(())
        self._is_looking = False
        self._asked: set[int] = set()
        self._waiting: list[Callable[[], None]] = []
        self._until_ns = 0
        self.topics: ShownKeys[str] = ShownKeys(TOPICS_MAX)
        self.partitions: ShownKeys[tuple[str, int]] = ShownKeys(PARTITIONS_MAX)
        self.group_ids: ShownKeys[str] = ShownKeys(GROUPS_MAX)
        self.group_topics: ShownKeys[tuple[str, str]] = ShownKeys(GROUP_TOPICS_MAX)
        self.group_partitions: ShownKeys[tuple[str, str, int]] = ShownKeys(GROUP_PARTITIONS_MAX)

    # -- gathering ---------------------------------------------------------------------------------------------

    def gather(self, then: Callable[[], None]) -> None:
        """Request the metrics of every Handler. `work` calls `then` when all have replied or 2 s have passed."""
        self._waiting.append(then)
        # A gathering is in progress, and its result is fresh enough for this caller, too.
        if len(self._waiting) > 1:
            return
        self._until_ns = self._clock.now_ns() + _PATIENCE_NS
        self._looking, self._is_looking = self._measure_untouched(), True
        self._known_ends.refresh()
        image = self._image()
        for index in range(image.handler_count):
            # Send no second request to a Handler that hangs, or its queue would grow with every scrape.
            if index not in self._asked:
                self._asked.add(index)
                self._ask(index, FIGURES, FromImage(image.version), partial(self._on_reply, index))
        for index in [each for each in self._replies if each >= image.handler_count]:
            del self._replies[index]

    def _on_reply(self, index: int, reply: HandlerFigures | Lost) -> None:
        """Store a Handler's reply, and add its traffic since the last one to the totals of the topics. Ignore Lost."""
        self._asked.discard(index)
        if isinstance(reply, Lost):
            return
        before = self._replies.get(index)
        # A restarted Handler counts from zero, so all of its counts are new traffic.
        is_same = before is not None and before.since == reply.since
        known: dict[str, list[int]] = before.traffic if before is not None and is_same else {}
        for topic, now in reply.traffic.items():
            last = known.get(topic, NO_TRAFFIC)
            # The counters of a topic that was deleted and created again begin at zero.
            grown = [new - old if new >= old else new for new, old in zip(now, last, strict=True)]
            row = self._totals.setdefault(topic, [0, 0, 0, 0]) if self.topics.admit(topic) else self.others
            for at, count in enumerate(grown):
                row[at] += count
        self._replies[index] = reply

    def due_ms(self, now_ns: int) -> int:
        """Return the milliseconds until `work` must be called again if no Handler replies."""
        if not self._waiting:
            return _NEVER_MS
        return 0 if self._is_looking else max(0, (self._until_ns - now_ns) // NS_PER_MS + 1)

    def work(self) -> int:
        """Continue to gather metrics: measure logs, and call back when all Handlers have replied or 2 s have passed.

        Called in every duty cycle. Returns the amount of work.
        """
        if not self._waiting:
            return 0
        is_late = self._clock.now_ns() >= self._until_ns
        if self._is_looking:
            self._is_looking = next(self._looking, self) is None
        if is_late or (not self._is_looking and not self._asked):
            waiting, self._waiting = self._waiting, []
            for then in waiting:
                then()
            return 1
        return int(self._is_looking)

    def _measure_untouched(self) -> Iterator[None]:
        """Read the sizes of logs that no Handler has opened. Yield after every 64 logs.

        Do nothing unless the metadata have changed since the last measurement.
        """
        image = self._image()
        # A log that nobody has opened does not grow, so only new topics have to be measured.
        if image.version == self._looked_up_version:
            return
        looked_up = 0
        found: dict[tuple[bytes, int], int] = {}
        for topic, partition in list(_all(image)):
            if self._table.read(partition) is not None:
                continue
            key = (topic.topic_id, partition.index)
            if key in self._untouched:
                found[key] = self._untouched[key]
                continue
            found[key] = log_bytes(self._directory / f"{topic.name}-{partition.index}")
            looked_up += 1
            if looked_up % _LOOKED_UP_AT_ONCE == 0:
                yield
        self._untouched, self._looked_up_version = found, image.version

    # -- what was gathered -------------------------------------------------------------------------------------

    @property
    def silent_handlers(self) -> int:
        """Number of Handlers that did not answer in time."""
        return len(self._asked)

    @property
    def offline(self) -> int:
        """Number of offline partitions of all Handlers."""
        return sum(reply.offline for reply in self._replies.values())

    def traffic(self) -> dict[str, list[int]]:
        """Return [bytes in, records in, bytes out, fetches] by topic since the broker's start.

        Topics without a series of their own are summed in `others`.
        """
        names = self.topics.choose(self._image().topics_by_name)
        self._totals = {name: self._totals.get(name, [0, 0, 0, 0]) for name in names}
        return self._totals

    def sizes(self) -> Sizes:
        """Return (bytes, segments) by topic and partition, of every log that a Handler has opened."""
        return {
            (topic, flat[at]): (flat[at + 1], flat[at + 2])
            for reply in self._replies.values()
            for topic, flat in reply.sizes.items()
            for at in range(0, len(flat), 3)
        }

    def topic_sizes(self, sizes: Sizes, others: str) -> dict[str, list[int]]:
        """Return [bytes, partitions] by topic. Topics without a series of their own are summed under `others`."""
        answer = {name: [0, 0] for name in (*self._totals, others)}
        names = {}
        for topic in self._image().topics_by_name.values():
            names[topic.topic_id] = place = topic.name if topic.name in self._totals else others
            answer[place][1] += len(topic.partitions)
        for reply in self._replies.values():
            for name, flat in reply.sizes.items():
                answer[name if name in self._totals else others][0] += sum(flat[1::3])
        topics = self._image().topics_by_id
        for (topic_id, index), size in self._untouched.items():
            if size and topic_id in names and (topics[topic_id].name, index) not in sizes:
                answer[names[topic_id]][0] += size
        return answer

    def shown_partitions(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return start and end of the logs with a series of their own, by topic and index.

        A log that never had a record has no series. Otherwise the unused partitions of the internal topics would use
        up the limit.
        """
        logs = {}
        for topic, partition in _all(self._image()):
            ends = self._ends(topic, partition)
            if ends[1]:
                logs[topic.name, partition.index] = ends
        return {key: logs[key] for key in self.partitions.choose(logs)}

    @property
    def partition_count(self) -> int:
        """Number of partitions of all topics."""
        return sum(len(topic.partitions) for topic in self._image().topics_by_name.values())

    def ends(self, topic_name: str, index: int) -> tuple[int, int] | None:
        """Return the start and end offset of a partition's log, or None if the partition does not exist."""
        partition = self._image().partition(topic_name, index)
        return None if partition is None else self._ends(self._image().topics_by_name[topic_name], partition)

    def _ends(self, topic: TopicImage, partition: PartitionImage) -> tuple[int, int]:
        ends = self._table.ends(partition)
        if ends is not None:
            return ends
        start, end = self._known_ends.get(topic.topic_id, partition.index)
        return start, max(start, end)

    def untouched_bytes(self, topic_name: str, index: int) -> int:
        """Return the size in bytes of a log, if no Handler had opened it when it was measured, or else 0."""
        return self._untouched.get((self._image().topics_by_name[topic_name].topic_id, index), 0)

    def groups(self) -> list[Group]:
        """Return the groups that Handlers report: all of them, up to the limits of a reply."""
        return [group for reply in self._replies.values() for group in reply.groups]

    @property
    def unreported_groups(self) -> int:
        """Number of groups that the Handlers only counted, because a reply has a limit of groups and offsets."""
        return sum(
            sum(counts.values()) for reply in self._replies.values() for counts in reply.more_groups.values()
        )

    def group_counts(self, group_type: str) -> Counter[str]:
        """Return the number of all groups of a type, by state."""
        counts = Counter(group.state for group in self.groups() if group.type == group_type)
        for reply in self._replies.values():
            counts.update(reply.more_groups.get(group_type, {}))
        return counts


def _all(image: ClusterImage) -> Iterator[tuple[TopicImage, PartitionImage]]:
    for topic in image.topics_by_name.values():
        for partition in topic.partitions:
            yield topic, partition
