"""Groups: the group coordinators of one Handler, with the logs that they live in.

A coordinator is made at the first touch of its partition of `__consumer_offsets` and fills itself from the log, a
chunk in each duty cycle when there is much of it; what is asked meanwhile gets COORDINATOR_LOAD_IN_PROGRESS. It
is dropped when the partition gets another owner, who does the same. Writes gather until the end of a drain: the
commits of many consumers become one batch, one pwritev and one fdatasync.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kproc.api.context import Forwarded, OwnedPartition, PartitionMoving
from kproc.clock import NS_PER_MS, Clock
from kproc.cluster.image import ClusterImage, MovedPartition, PartitionImage, TopicImage
from kproc.cluster.topic_names import GROUP_METADATA_TOPIC
from kproc.config import Config
from kproc.containment import Containment
from kproc.errors import Corrupt, ErrorCode, KafkaError
from kproc.group.coordinator import GroupCoordinator, GroupOf, Timing, Write
from kproc.group.deadlines import NEVER, Deadlines
from kproc.group.partitioning import partition_for
from kproc.handler.partitions import Partitions
from kproc.storage.validate import COORDINATOR
from kproc.wire.batch_header import HEADER_BYTES
from kproc.wire.record_batch import crc_of, decode_records, encode_batch, parse_header
from kproc.wire.records import Record

logger = logging.getLogger(__name__)

# Read at once while loading: a few hundred records, a few ms.
LOAD_CHUNK_BYTES: Final = 64 << 10
# What a record takes in its batch besides key and value, at most: lengths, deltas, attributes, header count.
_RECORD_OVERHEAD_BYTES: Final = 32
_BATCH_OVERHEAD_BYTES: Final = 128


class Shard:
    """One coordinator and its log: fills the one from the other, and writes for it."""

    def __init__(
        self,
        groups: Groups,
        owned: OwnedPartition,
        config: Config,
        timing: Timing,
        deadlines: Deadlines[GroupOf],
    ) -> None:
        self.owned = owned
        self.coordinator = GroupCoordinator(config, timing, deadlines, self)
        self.is_loaded = False
        self.is_damaged = False
        self._groups = groups
        self._codec = config.offsets_topic_compression_codec
        self._wall_ms = timing.wall_ms
        self._waits_for_sync = config.kproc_flush == "group"
        self._writes: list[Write] = []
        self._next_offset = owned.log.start_offset

    # -- loading -----------------------------------------------------------------------------------------------

    def load_some(self, topic_id_of: Callable[[str], bytes | None]) -> None:
        """Replay a chunk of the log; with the last one the coordinator can be asked."""
        log = self.owned.log
        try:
            if self._next_offset < log.end_offset:
                self._replay(log.read_bytes(self._next_offset, LOAD_CHUNK_BYTES))
        except (Corrupt, KafkaError, OSError, ValueError) as error:
            # Kafka does not coordinate such a partition, either: to forget a part of it would be worse.
            self.is_damaged = True
            logger.error("the groups of %s-%d cannot be loaded: %s", *self.owned.key, error)
            return
        if self._next_offset >= log.end_offset:
            self.is_loaded = True
            self.coordinator.finish_loading(topic_id_of)

    def _replay(self, data: bytes) -> None:
        """The whole batches of `data`; the last may be cut short."""
        view = memoryview(data)
        position = 0
        while position + HEADER_BYTES <= len(data):
            header = parse_header(view, position)
            end = position + header.total_bytes
            if end > len(data):
                break
            batch = view[position:end]
            if crc_of(batch) != header.crc:
                raise Corrupt(f"the batch at offset {header.base_offset} is damaged")
            if not header.is_control:
                for record in decode_records(batch):
                    self.coordinator.replay(record.key, record.value)
            self._next_offset = header.last_offset + 1
            position = end
        if not position:
            raise Corrupt(f"no batch at offset {self._next_offset}")

    # -- writing -----------------------------------------------------------------------------------------------

    def write(self, write: Write) -> None:
        """Append in the order of the calls, at the end of the duty cycle at the latest."""
        self._writes.append(write)
        self._groups.dirty[self] = None

    def abandon(self) -> None:
        """Nothing more is written for it."""
        writes, self._writes = self._writes, []
        for write in writes:
            write.on_done(ErrorCode.UNKNOWN_SERVER_ERROR)

    def flush(self) -> None:
        """Append now what waits."""
        if not self._writes:
            return
        writes, self._writes = self._writes, []
        batches, spans = self._pack(writes)
        codes: list[int] = []
        if batches:
            results = self.owned.log.append([memoryview(batch) for batch in batches], COORDINATOR)
            codes = [result.error_code for result in results]
            self.owned.after_append()
        appended: list[Write] = []
        for write, (first, last) in zip(writes, spans, strict=True):
            code = next(filter(None, codes[first:last]), 0)
            if code:
                write.on_done(code)
                continue
            if write.on_appended is not None:
                write.on_appended()
            appended.append(write)
        self._when_durable(appended)

    def _pack(self, writes: Sequence[Write]) -> tuple[list[bytearray], list[tuple[int, int]]]:
        """The batches of all records in order, and for each write which of them (first, last + 1) hold its own."""
        size_max = self.owned.log.config.max_message_bytes
        now_ms = self._wall_ms()
        batches: list[bytearray] = []
        records: list[Record] = []
        spans: list[tuple[int, int]] = []
        size = _BATCH_OVERHEAD_BYTES
        for write in writes:
            first = len(batches)
            for key, value in write.records:
                length = len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES
                if records and size + length > size_max:
                    batches.append(encode_batch(records, codec=self._codec))
                    records, size = [], _BATCH_OVERHEAD_BYTES
                records.append(Record(key, value, now_ms))
                size += length
            spans.append((first, len(batches) + bool(records and write.records)))
        if records:
            batches.append(encode_batch(records, codec=self._codec))
        return batches, spans

    def _when_durable(self, writes: Sequence[Write]) -> None:
        """Tell them when everything that the log holds now is as durable as acks=all promises."""

        def on_synced(code: int) -> None:
            for write in writes:
                write.on_done(code)

        if not writes:
            return
        if self._waits_for_sync:
            self.owned.when_synced(self.owned.log.end_offset, on_synced)
        else:
            on_synced(ErrorCode.NONE)


class Groups:
    """The coordinators of one Handler's partitions of `__consumer_offsets`."""

    def __init__(
        self,
        *,
        config: Config,
        clock: Clock,
        image: Callable[[], ClusterImage],
        partitions: Partitions,
        handler_index: int,
        containment: Containment,
    ) -> None:
        self._containment = containment
        self._config = config
        self._image = image
        self._partitions = partitions
        self._handler_index = handler_index
        self._timing = Timing(
            now_ms=lambda: clock.now_ns() // NS_PER_MS,
            wall_ms=clock.wall_ms,
            random_id=lambda: str(uuid.uuid4()),
        )
        self._deadlines: Deadlines[GroupOf] = Deadlines()
        self._shards: dict[int, Shard] = {}
        self._loading: dict[int, Shard] = {}
        self._sweeping: deque[GroupCoordinator] = deque()
        self._to_open: deque[int] = deque()
        self._on_loaded: list[Callable[[], None]] = []
        self._next_sweep_ms = self._timing.now_ms() + config.offsets_retention_check_interval_ms
        self._is_stopping = False
        self.dirty: dict[Shard, None] = {}
        self.due_ms = 0  # How long, after `work`, there is nothing to do.
        self.forwarded: dict[Forwarded, None] = {}

    # -- for the APIs ------------------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> PartitionImage | None:
        """Where a group is coordinated; None before the topic is made.

        Partitions that were added later keep no groups: those that there are would be looked for elsewhere.
        """
        topic = self._image().topic(GROUP_METADATA_TOPIC)
        if topic is None:
            return None
        _, count = next(topic.blocks())
        return topic.partitions[partition_for(group_id, count)]

    def coordinator(self, index: int) -> GroupCoordinator:
        """The coordinator of a partition of ours. KafkaError with what its clients must be told otherwise."""
        shard = self._shard(index)
        if not shard.is_loaded:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard.coordinator

    def loaded(self) -> list[GroupCoordinator]:
        """All that can be asked."""
        return [shard.coordinator for shard in self._shards.values() if shard.is_loaded]

    def when_loaded(self, on_loaded: Callable[[], None]) -> None:
        """Load every partition of ours that has been written to, then call back."""
        topic = self._image().topic(GROUP_METADATA_TOPIC)
        waiting = set(self._to_open)
        for partition in topic.partitions if topic is not None else ():
            index = partition.index
            if partition.owner != self._handler_index or index in self._shards or index in waiting:
                continue
            # A log that was never touched has no directory, and opening it would make one.
            if self._partitions.fs.exists(Path(self._config.log_dirs) / f"{GROUP_METADATA_TOPIC}-{index}"):
                self._to_open.append(index)
        self._on_loaded.append(on_loaded)
        self._report_loaded()

    # -- shards ------------------------------------------------------------------------------------------------

    def _shard(self, index: int) -> Shard:
        if self._is_stopping:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        partition = self._image().partition(GROUP_METADATA_TOPIC, index)
        if partition is None or partition.owner != self._handler_index:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        shard = self._shards.get(index)
        if shard is None or self._partitions.find((GROUP_METADATA_TOPIC, index)) is not shard.owned:
            self.release(index)
            shard = self._open(partition)
        if shard.is_damaged:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return shard

    def _open(self, partition: PartitionImage) -> Shard:
        try:
            owned = self._partitions.get(GROUP_METADATA_TOPIC, partition)
        except PartitionMoving as error:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) from error
        except KafkaError as error:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from error
        shard = Shard(self, owned, self._config, self._timing, self._deadlines)
        self._shards[partition.index] = shard
        self._load_some(partition.index, shard)
        return shard

    def _load_some(self, index: int, shard: Shard) -> None:
        shard.load_some(self._topic_id)
        if shard.is_loaded or shard.is_damaged:
            self._loading.pop(index, None)
        else:
            self._loading[index] = shard

    def _topic_id(self, name: str) -> bytes | None:
        topic = self._image().topic(name)
        return topic.topic_id if topic is not None else None

    def _report_loaded(self) -> None:
        if self._on_loaded and not self._loading and not self._to_open:
            waiting, self._on_loaded = self._on_loaded, []
            for on_loaded in waiting:
                on_loaded()

    def release(self, index: int) -> None:
        """The partition gets another owner: what waits is sent there, and its log is not touched any more."""
        shard = self._shards.pop(index, None)
        self._loading.pop(index, None)
        if shard is not None:
            shard.coordinator.resign()
            shard.flush()
            self.dirty.pop(shard, None)

    def _give_up(self, coordinator: GroupCoordinator) -> None:
        """A surprise left it half changed: its members look for it again, and it is loaded from its log anew."""
        for index, shard in list(self._shards.items()):
            if shard.coordinator is coordinator:
                del self._shards[index]
                self._loading.pop(index, None)
                self.dirty.pop(shard, None)
                self._containment.run("giving groups up", None, shard.coordinator.abandon)
                self._containment.run("giving groups up", None, shard.abandon)

    def on_moved(self, moved: Sequence[MovedPartition]) -> None:
        """The routing table changed. Called while the logs are still open here: what waits is appended first."""
        for each in moved:
            if each.topic.name == GROUP_METADATA_TOPIC and each.partition.owner != self._handler_index:
                self.release(each.partition.index)

    def topics_deleted(self, topics: Sequence[TopicImage]) -> None:
        """Their offsets go with them; with `__consumer_offsets` itself, all goes."""
        if any(topic.name == GROUP_METADATA_TOPIC for topic in topics):
            for index in list(self._shards):
                self.release(index)
        for coordinator in self.loaded():
            coordinator.topics_deleted(self._topic_id)

    def begin_stop(self) -> None:
        """Answer whoever waits: there will be no other member."""
        self._is_stopping = True
        for index in list(self._shards):
            self.release(index)
        self._to_open.clear()
        self._report_loaded()

    # -- the duty cycle ----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Append what was asked for since the last time."""
        while self.dirty:
            dirty, self.dirty = self.dirty, {}
            for shard in dirty:
                if not self._containment.run("writing of groups", None, shard.flush):
                    self._give_up(shard.coordinator)

    def _next_deadline_ms(self, now_ns: int) -> int:
        """How long the Handler may sleep."""
        if self.dirty or self._loading or self._to_open or self._sweeping:
            return 0
        due_ms, first_ms = NEVER if self._is_stopping else self._next_sweep_ms, self._deadlines.first_ms
        if first_ms < due_ms:
            due_ms = first_ms
        return max(0, due_ms - now_ns // NS_PER_MS)

    def work(self, now_ns: int) -> int:
        """What is due: timers, a chunk of a load, some groups of a sweep. At every duty cycle, so the first line is for
        a Handler that has none of it."""
        self.due_ms = self._next_deadline_ms(now_ns)
        if self.due_ms:
            return 0
        now_ms = now_ns // NS_PER_MS
        work = 0
        if self._deadlines.first_ms <= now_ms:
            for coordinator, group_id in self._deadlines.pop_due(now_ms):
                if not self._containment.run("a timer of a group", None, coordinator.tick, group_id):
                    self._give_up(coordinator)
                work += 1
        if self._loading or self._to_open:
            work += 1
            self._go_on_loading()
        if now_ms >= self._next_sweep_ms and not self._is_stopping:
            self._next_sweep_ms = now_ms + self._config.offsets_retention_check_interval_ms
            self.when_loaded(self._begin_sweep)
        if self._sweeping:
            work += 1
            self._go_on_sweeping()
        self.flush()
        self.due_ms = self._next_deadline_ms(now_ns)
        return work

    def _go_on_loading(self) -> None:
        if self._loading:
            index, shard = next(iter(self._loading.items()))
            self._load_some(index, shard)
        else:
            try:
                self._shard(self._to_open.popleft())
            except KafkaError as error:
                logger.info("a partition of the groups is left out: %s", error)
        self._report_loaded()

    def _begin_sweep(self) -> None:
        for coordinator in self.loaded():
            coordinator.begin_sweep()
            self._sweeping.append(coordinator)

    def _go_on_sweeping(self) -> None:
        coordinator = self._sweeping[0]
        if coordinator.is_sweeping:
            coordinator.sweep_some()
        else:
            self._sweeping.popleft()
