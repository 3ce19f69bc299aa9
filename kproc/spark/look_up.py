"""LookUp: the driver's requests to the brokers for partitions, start offsets and end offsets.

The Cluster retries failed requests. LookUp also tolerates a cluster that has just restarted: if a partition is missing,
or ends below the offset up to which it was read, LookUp checks again for SETTLE_MS before it reports a loss.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kproc.common.clock import NS_PER_MS, Clock, SystemClock
from kproc.common.reading import EARLIEST, LATEST, READ_COMMITTED
from kproc.spark.brokers import NO_OFFSET, Cluster, TopicMetadata, UnknownTopic, cluster_of, pause
from kproc.spark.offsets import Offsets, Range, TopicIds, TopicPartition, losses, recreated
from kproc.spark.option_values import OptionError
from kproc.spark.options import SourceOptions
from kproc.spark.positions import Position, SubscriptionKind
from kproc.wire.primitives import ZERO_UUID

logger = logging.getLogger(__name__)

SETTLE_MS: Final = 2_000
"""Time, in ms, after which a missing partition or offset counts as lost. A starting Kafka broker needs some 100 ms."""
SETTLE_PAUSE_MS: Final = 100


class DataLoss(Exception):
    """Records that the query has to read do not exist any more."""


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The subscribed partitions and the ids of their topics, from one Metadata response.

    Offsets are requested after it. If a topic is deleted and created again in between, tasks fetch by the former id
    and report a loss. They never read records of the later topic.
    """

    partitions: list[TopicPartition]
    ids: TopicIds


@dataclass(frozen=True, slots=True)
class LogEnds:
    """End offsets of the subscribed partitions, and the ids of their topics. Missing partitions are left out."""

    ends: Offsets
    ids: TopicIds


@dataclass(frozen=True, slots=True)
class PlannedLogs:
    """Log starts and ends of the partitions of a planned batch.

    recreated: topics that were deleted and created again since the batch was planned. Their partitions, and missing
    partitions, are in neither `starts` nor `ends`.
    """

    recreated: list[str]
    starts: Offsets
    ends: Offsets


class LookUp:
    """The driver's look-ups of partitions and offsets.

    Each reader has one, and all of a process share their connections.
    """

    def __init__(self, options: SourceOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock: Clock = clock or SystemClock()
        self._topics: dict[str, TopicMetadata] = {}
        self._topics_until_ns = -1

    @property
    def cluster(self) -> Cluster:
        """The connections to the brokers, which all readers of this process share."""
        return cluster_of(self._options.bootstrap, self._options.look_up)

    # -- partitions

    def subscribed(self, *, missing_ok: bool = False) -> Subscribed:
        """Return every subscribed partition. Raise UnknownTopic if a named topic does not exist.

        `missing_ok`: return only the partitions that exist.
        """
        topics = self._metadata()
        return Subscribed(self._partitions_in(topics, missing_ok=missing_ok), _ids(topics))

    def _partitions_in(
        self, topics: Mapping[str, TopicMetadata], *, missing_ok: bool
    ) -> list[TopicPartition]:
        subscription = self._options.subscription
        if subscription.kind is SubscriptionKind.PARTITIONS:
            listed = subscription.partitions
            return _existing(listed, topics) if missing_ok else list(listed)
        missing = [name for name in subscription.topics if name not in topics]
        if missing and not missing_ok:
            raise UnknownTopic(
                f"there is no topic {', '.join(missing)} on {self._options.bootstrap}; "
                "create it with `kproc topic create`, or use subscribePattern, which accepts missing topics"
            )
        return sorted(
            TopicPartition(topic.name, index) for topic in topics.values() for index in topic.leaders
        )

    def _metadata(self) -> dict[str, TopicMetadata]:
        """Return the subscribed topics. They are cached for partition.metadata.cache.ttl.ms (default 0)."""
        now_ns = self._clock.now_ns()
        if now_ns < self._topics_until_ns:
            return self._topics
        subscription = self._options.subscription
        if subscription.kind is SubscriptionKind.PATTERN:
            # As in Spark's connector, the pattern can match anywhere in a topic's name, and never matches internal
            # topics.
            found = re.compile(subscription.pattern).search
            every = self.cluster.metadata()
            topics = {name: topic for name, topic in every.items() if found(name) and not topic.is_internal}
        else:
            names = subscription.topics or {each.topic for each in subscription.partitions}
            topics = self.cluster.metadata(names)
        self._topics, self._topics_until_ns = topics, now_ns + self._options.metadata_ms * NS_PER_MS
        return topics

    def discard_cache(self) -> None:
        """Discard the cached topics, so that the next look-up requests them again."""
        self._topics_until_ns = -1

    # -- offsets

    def log_starts(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the log start offsets. Raise UnknownTopic if a partition does not exist."""
        return self.cluster.list_offsets(dict.fromkeys(partitions, EARLIEST))

    def log_starts_left(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the log start offsets of those partitions that still exist."""
        while partitions:
            try:
                return self.log_starts(partitions)
            except UnknownTopic:
                left = _existing(partitions, self.cluster.metadata({each.topic for each in partitions}))
                # Metadata has all of these partitions, so no partition can be left out: raise the error.
                if len(left) == len(partitions):
                    raise
                partitions = left
        return {}

    def log_ends(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the end offsets for the option's isolation level. Raise UnknownTopic if a partition does not exist."""
        return self.cluster.list_offsets(dict.fromkeys(partitions, LATEST), isolation=self._options.isolation)

    def _high_watermarks(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the end offsets for read_uncommitted."""
        return self.cluster.list_offsets(dict.fromkeys(partitions, LATEST))

    def _ends_after(
        self, start: Mapping[TopicPartition, int], partitions: Collection[TopicPartition]
    ) -> Offsets:
        """Return the end offsets for the option's isolation level.

        A query that was restarted with read_committed can have read beyond an open transaction before. Its `start` is
        then above this end. Return `start`, because nothing is lost and nothing must be read twice.
        """
        ends = self.log_ends(partitions)
        behind = [each for each in partitions if ends[each] < start.get(each, 0)]
        if behind and self._options.isolation == READ_COMMITTED:
            marks = self._high_watermarks(behind)
            ends |= {each: start[each] for each in behind if marks[each] >= start[each]}
        return ends

    def planned(self, ranges: Collection[Range], ids: TopicIds) -> PlannedLogs:
        """Return log starts and ends for a planned batch. `ids` are the ids of its topics when it was planned.

        If a partition is missing or ends below its range, repeat the look-up for SETTLE_MS, because a broker that has
        just started may not have loaded the partition yet. Do not wait for a topic with another id: it was created
        again.
        """
        give_up_ns = self._clock.now_ns() + SETTLE_MS * NS_PER_MS
        while True:
            topics = self.cluster.metadata({each.partition.topic for each in ranges})
            again = recreated(ids, _ids(topics))
            kept = [each for each in ranges if each.partition.topic not in again]
            ends: Offsets = {}
            try:
                # The batch may have been planned without read_committed. A task waits for an open transaction.
                ends = self._high_watermarks(_existing([each.partition for each in kept], topics))
            except UnknownTopic:
                logger.debug(
                    "a topic of a planned batch was deleted between Metadata and ListOffsets; the look-up is repeated "
                    "for up to %d ms", SETTLE_MS,
                )  # fmt: skip
            is_whole = all(ends.get(each.partition, -1) >= each.end for each in kept)
            if is_whole or self._clock.now_ns() >= give_up_ns:
                return PlannedLogs(again, self.log_starts_left(ends), ends)
            pause(SETTLE_PAUSE_MS)

    def newest(self, start: Mapping[TopicPartition, int]) -> LogEnds:
        """Return the current ends of all subscribed partitions. Missing ones are left out.

        start: the offset up to which each partition was read. If a partition seems lost, repeat the look-up for
        SETTLE_MS.
        """
        give_up_ns = self._clock.now_ns() + SETTLE_MS * NS_PER_MS
        while True:
            problem: UnknownTopic | None = None
            subscribed = self.subscribed(missing_ok=True)
            ends: Offsets = {}
            try:
                ends = self._ends_after(start, subscribed.partitions)
            except UnknownTopic as error:
                # A topic was deleted between Metadata and ListOffsets. Look up both again.
                problem = error
            is_whole = problem is None and not losses(start, ends, {})
            if is_whole or self._clock.now_ns() >= give_up_ns:
                if problem is not None:
                    raise problem
                return LogEnds(ends, subscribed.ids)
            self.discard_cache()
            pause(SETTLE_PAUSE_MS)

    def starting(self, partitions: list[TopicPartition]) -> Offsets:
        """Return the offsets where a new query begins, by an option such as startingOffsets or startingTimestamp."""
        return self._resolve(self._options.starting, partitions, is_start=True)

    def bounds(self, partitions: list[TopicPartition]) -> tuple[Offsets, Offsets]:
        """Return the offsets at which a batch query begins and ends, by its options.

        Both have the same partitions. Reports a start above the end as a loss. Raises UnknownTopic if a partition is
        deleted between the requests for start and end.
        """
        start = self._resolve(self._options.starting, partitions, is_start=True)
        end = self._resolve(self._options.ending, partitions, is_start=False)
        self.report_loss(
            [
                f"{each} is to be read from offset {start[each]}, and only up to {end[each]}"
                for each in partitions
                if start[each] > end[each]
            ]
        )
        return start, end

    def _resolve(self, position: Position, partitions: list[TopicPartition], *, is_start: bool) -> Offsets:
        asked = dict(position.each) or dict.fromkeys(partitions, position.everywhere or 0)
        unlike = sorted(asked.keys() ^ set(partitions))
        if unlike:
            raise OptionError(
                f"{position.option} must name every partition that is read, and no other (-1 is latest, "
                f"-2 earliest); either not named or not read: {', '.join(map(str, unlike))}"
            )
        if position.by_time:
            found = self.cluster.list_offsets(asked, isolation=self._options.isolation)
            return self._fill_too_late(position, found, asked, is_start=is_start)
        words = {partition: offset for partition, offset in asked.items() if offset < 0}
        found = self.cluster.list_offsets(words, isolation=self._options.isolation) if words else {}
        fixed = {partition: offset for partition, offset in asked.items() if offset >= 0}
        return {**found, **self._within_logs(position, fixed)}

    def _fill_too_late(
        self, position: Position, found: Offsets, asked: Mapping[TopicPartition, int], *, is_start: bool
    ) -> Offsets:
        late = [partition for partition, offset in found.items() if offset == NO_OFFSET]
        if late and is_start and not self._options.latest_if_too_late:
            raise OptionError(
                f"{position.option}: {late[0]} has no record at or after {asked[late[0]]} ms; "
                "with startingOffsetsByTimestampStrategy=latest the query begins at the partition's end"
            )
        return {**found, **(self.log_ends(late) if late else {})}

    def _within_logs(self, position: Position, fixed: Offsets) -> Offsets:
        """Return the fixed offsets, limited to the range of each log. Report an offset outside of its log as a loss."""
        if not fixed:
            return {}
        starts, ends = self.log_starts(fixed), self.log_ends(fixed)
        result: Offsets = {}
        for partition, offset in fixed.items():
            result[partition] = min(max(offset, starts[partition]), ends[partition])
            if offset != result[partition]:
                self.report_loss(
                    [
                        f"{position.option} of {partition} is {offset}, its log has {starts[partition]} "
                        f"up to {ends[partition]}"
                    ]
                )
        return result

    def report_loss(self, sentences: list[str]) -> None:
        """Raise DataLoss with the sentences, or log them as a warning with failOnDataLoss=false.

        Do nothing if there are none.
        """
        if not sentences:
            return
        text = "; ".join(sentences)
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text}. With failOnDataLoss=false the query goes on without those records")
        logger.warning("records are lost, and the query goes on because of failOnDataLoss=false: %s", text)


def _ids(topics: Mapping[str, TopicMetadata]) -> TopicIds:
    return {name: topic.topic_id for name, topic in topics.items() if topic.topic_id != ZERO_UUID}


def _existing(
    partitions: Iterable[TopicPartition], topics: Mapping[str, TopicMetadata]
) -> list[TopicPartition]:
    return [
        each for each in partitions if each.topic in topics and each.partition in topics[each.topic].leaders
    ]
