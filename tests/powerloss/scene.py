"""Scene: some Handlers' partitions and groups, metadata log, checkpoints and compactor over one RecordingFs.

The roles' storage is real: Partitions, Log, Groups, PartitionTransfer, Compactor, CheckpointWriter, MetadataLog,
PendingDeletions. Only the caller differs: here one loop draws all that happens from a seed. The cleaner has its own
copy of the metadata, which may be behind. A round of fdatasync is in work for a while:
its syncs are done at once or later, and more is appended before its outcome is taken. Handlers hear of the metadata
at different times, and die in the middle of what they do.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kproc.broker.calls.call_links import CallHandlers
from kproc.broker.calls.calls import B, Call, Lost, R
from kproc.broker.calls.cleaner_calls import SWAP_SEGMENTS
from kproc.broker.cleaner.checkpoint_writer import CheckpointWriter
from kproc.broker.cleaner.compactor import Compactor
from kproc.broker.cluster import records as r
from kproc.broker.cluster.controller import ControllerState
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.metadata_log import MetadataLog
from kproc.broker.config import Config
from kproc.broker.controller.change_calls import add_change_calls
from kproc.broker.controller.pending_deletions import PendingDeletions
from kproc.broker.coordinator.coordinator_log import CoordinatorKind
from kproc.broker.coordinator.coordinator_runtime import CoordinatorRuntime
from kproc.broker.coordinator.topic_coordinators import partition_for
from kproc.broker.group.consumer.messages import ConsumerHeartbeat, ConsumerHeartbeatResult
from kproc.broker.group.messages import CommitRequest
from kproc.broker.group.records import CommittedOffset, OffsetKey
from kproc.broker.handler.checkpoint import Checkpoint
from kproc.broker.handler.compaction_calls import CompactionCalls
from kproc.broker.handler.coordinator_kinds import consumer_cluster, groups
from kproc.broker.handler.owned_partition import OwnedPartition
from kproc.broker.handler.partition_claims import PartitionsClaimed, StatesGiven
from kproc.broker.handler.partition_transfer import PartitionTransfer
from kproc.broker.handler.partitions import Partitions
from kproc.broker.handler.syncer import Outcome, sync_one
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.request.context import PartitionMoving
from kproc.broker.role.control_requests import OnReply
from kproc.broker.role.partition_table import ROW_WORDS, PartitionTable
from kproc.broker.role.purgatory import Purgatory
from kproc.broker.role.roles import handler_id
from kproc.broker.storage import checkpoints
from kproc.broker.storage.fs import sync_directory
from kproc.broker.storage.log import Log, SyncPoint
from kproc.broker.streams.messages import StreamsHeartbeat, StreamsHeartbeatResult
from kproc.broker.streams.tasks import MemberTasks
from kproc.broker.streams.topology import Subtopology, Topology
from kproc.common.clock import ManualClock
from kproc.common.containment import Containment
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.record_batch import decode_records, encode_batch, parse_header
from kproc.wire.records import Record
from tests.powerloss import share_states
from tests.powerloss.disk import RecordingFs
from tests.powerloss.metadata import KEY, Answered
from tests.powerloss.transactions import HandlerServices, Transactions, kind_of
from tests.support.in_memory_controller import NO_ID, topic
from tests.support.processor_rig import new_slab

DATA = Path("/data")
SLOTS = 256
GROUP_TOPIC = "__consumer_offsets"
NAMES = ("t", "u")
NOW_MS = 1_700_000_000_000


class Violation(BaseException):
    """A promise that an image does not keep. Found in the middle of an append: containment must not take it."""


class Died(BaseException):
    """A Handler is killed here; nothing on its way out may catch it."""

    def __init__(self, handler: int) -> None:
        super().__init__(handler)
        self.handler = handler


Content = tuple[bytes | None, bytes | None]
"""Key and value of a record."""


class RoundSyncer:
    """Rounds whose syncs are done early or late, and whose outcome comes later still; where `sync_fails` says so, one
    of them fails now and then."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._rng = scene.rng
        self._late: list[tuple[Log, SyncPoint]] = []
        self._done: list[Outcome] = []

    def submit(self, points: Sequence[tuple[Log, SyncPoint]]) -> None:
        for log, point in points:
            if self._rng.random() < 0.5:
                self._done.append(self._sync(log, point))
            else:
                self._late.append((log, point))

    def end(self) -> None:
        """The round ends now; collect() says so."""
        self._done += [self._sync(log, point) for log, point in self._late]
        self._late = []

    def _sync(self, log: Log, point: SyncPoint) -> Outcome:
        scene = self._scene
        scene.fs.fails_sync = self._rng.random() < scene.sync_fails if scene.sync_fails else False
        outcome = sync_one(log, point)
        scene.fs.fails_sync = False
        if outcome[2] is not None:
            scene.failed.add(log.state.topic_id)
        return outcome

    def collect(self) -> list[Outcome]:
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Nothing runs."""


class Ledger:
    """What was sent, and what was answered: by topic id and offset."""

    def __init__(self) -> None:
        self.sent: dict[bytes, dict[int, set[Content]]] = {}
        self.awaited: dict[bytes, set[Content]] = {}  # Sent with acks=all: what of it was read must stay.
        self.kept: dict[bytes, dict[int, Content]] = {}
        self.starts: dict[bytes, int] = {}  # Answered to DeleteRecords;
        self.asked: dict[bytes, int] = {}  # asked for, so that records below may be gone.
        self.topics: dict[str, bytes] = {}
        self.gone: set[bytes] = set()
        # Of each group: what was committed, in order, None for its deletion; and how many of them were answered.
        self.commits: dict[str, list[int | None]] = {}
        self.answered: dict[str, int] = {}
        # Of each consumer group, and of each streams group: the largest epoch that a member has learnt.
        self.epochs: dict[str, int] = {}
        self.streams_epochs: dict[str, int] = {}
        self.metadata = Answered()


class Handler:
    """One Handler's partitions and groups, with its own image of the metadata."""

    def __init__(self, scene: Scene, index: int, image: ClusterImage, *, is_clean: bool) -> None:
        self.image = image
        self.index = index
        self.deltas: deque[bytes] = deque()
        self.asked: dict[
            Callable[[Any], None], Any
        ] = {}  # Who has no answer of ours, and is told what if we die.
        self.syncer = RoundSyncer(scene)
        clock, now_ns = scene.clock, scene.clock.now_ns
        self.partitions = Partitions(
            DATA, handler_index=index, config=scene.config, image=lambda: self.image, clock=clock,
            table=scene.table, purgatory=Purgatory(now_ns), syncer=self.syncer,
            checkpoint=Checkpoint(scene.fs, DATA), is_clean=is_clean, fs=scene.fs,
        )  # fmt: skip
        self.services: Any = HandlerServices(scene, self)
        kinds: list[CoordinatorKind[Any]] = [
            groups(scene.config, clock, consumer_cluster(self.services)),
            kind_of(scene, self, self.services),
            share_states.kind_of(scene),
        ]
        self.coordinators = CoordinatorRuntime(
            kinds, config=scene.config, clock=clock,
            image=lambda: self.image, partitions=self.partitions, handler_index=index, containment=Containment(),
            ask_controller=scene.ask_controller,
        )  # fmt: skip
        self.coordinators.load_eagerly()
        self.transfers = PartitionTransfer(
            handler_index=index, image=lambda: self.image, partitions=self.partitions, ask=scene.claim,
            is_linked=lambda _index: True, now_ns=now_ns,
        )  # fmt: skip
        self.desk = CompactionCalls(self.partitions, lambda: self.image, now_ns)

    def hear(self) -> int:
        """Take the next delta in, as ImageChanges.apply does; the version then."""
        change = self.image.apply(self.deltas.popleft())
        begin_transfers = self.transfers.on_moved(change.moved)
        for gone in change.deleted:
            self.transfers.discard_topic(gone)
            self.partitions.delete(gone)
            self.partitions.deletions.finish()
        if change.deleted:
            self.coordinators.topics_deleted(change.deleted)
        if change.moved:
            self.coordinators.on_moved(change.moved)
            begin_transfers()
            self.coordinators.load_eagerly()
        self.transfers.on_image()
        for topic_ in change.configured:
            self.partitions.reconfigure(topic_)
        return self.image.version

    def sync(self) -> None:
        """End the round that runs, or begin one."""
        if self.transfers.deferred.is_opening:
            self.transfers.deferred.work()
        if self.partitions.group_commit.syncing:
            self.syncer.end()
            self.partitions.group_commit.finish_round()
            self.transfers.retire()
        else:
            self.partitions.group_commit.start_round()

    def drain(self) -> None:
        """Rounds until nobody waits for the disk, as before a stop that has the time."""
        self.coordinators.flush()
        while self.partitions.group_commit.unsynced or self.partitions.group_commit.syncing:
            self.sync()

    def close(self) -> bool:
        """As Handler.close does it; whether the next start has nothing to recover."""
        self.syncer.end()
        self.partitions.group_commit.finish_round()
        unknown = self.partitions.unknown_log()
        try:
            try:
                self.transfers.close()
            finally:
                self.partitions.close(is_clean=True)
        except OSError:
            return False
        return unknown is None

    def lose_what_was_asked(self) -> None:
        """Whoever has no answer hears that we died."""
        lost, self.asked = self.asked, {}
        for on_reply, instead in lost.items():
            on_reply(instead)

    def serve(self, call: Call[Any, Any], body: Any, on_reply: Callable[[Any], None]) -> None:
        """A call of the cleaner; its answer is lost with us."""
        self.asked[on_reply] = Lost()

        def reply(answer: Any) -> None:
            if self.asked.pop(on_reply, None) is not None:
                on_reply(answer)

        (self.desk.swap if call is SWAP_SEGMENTS else self.desk.prepare)(body, reply)

    def serve_claim(self, body: PartitionsClaimed, on_reply: Callable[[StatesGiven | Lost], None]) -> None:
        """Another Handler's, with the states it gets; they, too, are lost with us."""
        self.asked[on_reply] = Lost()

        def reply(given: StatesGiven | None) -> None:
            assert given is not None
            if on_reply in self.asked:
                if not given.is_open:
                    del self.asked[on_reply]
                on_reply(given)

        self.transfers.when_image(body.image, lambda: self.transfers.handle_claim(body, reply))

    def swap(self) -> None:
        """The swap that waits, unless a round is in work."""
        if self.desk.swaps and not self.partitions.group_commit.syncing:
            self.desk.work()


class Scene:
    """A broker's storage, opened from a disk."""

    def __init__(
        self, fs: RecordingFs, clock: ManualClock, seed: int, *, handlers: int, settings: Mapping[str, Any]
    ) -> None:
        self.fs, self.clock = fs, clock
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        config = Config.build(
            {
                "log.dirs": str(DATA), "kproc.flush": "group", "offsets.topic.num.partitions": "2",
                "log.cleaner.backoff.ms": "0", "delegation.token.secret.key": KEY, **settings,
            }
        )  # fmt: skip
        # Segments are far below Kafka's smallest, which build() would reject, so that a short load rolls.
        self.config = dataclasses.replace(config, log_segment_bytes=16_384, log_index_interval_bytes=500)
        self.table = PartitionTable(memoryview(bytearray(8 * ROW_WORDS * SLOTS)).cast("Q"))
        if fs.make_directory(DATA):
            sync_directory(fs, DATA.parent)
        self.handlers: list[Handler] = []
        self.cleaner_deltas: deque[bytes] = deque()
        self.cleaner: Compactor | None = None
        self._open()
        self.names = PendingDeletions(clock.now_ns, unsure_until=None)
        self.sequences: dict[tuple[bytes, int], int] = {}
        self.last_batches: dict[tuple[bytes, int], tuple[bytes, int]] = {}
        self.transactions = Transactions(NAMES)
        self.share_states = share_states.ShareStates()
        self.acting: int | None = None  # The Handler whose code runs now, if it may be killed in it,
        self.dies_after = 0  # and before which of its operations it is; 0: before none.
        self.sync_fails = 0.0  # How often a log's share in a round fails.
        self.failed: set[bytes] = set()  # Topics of which one has, in this run of the broker.
        for op, body in (
            ("register_cluster", {"cluster_id": "c"}),
            ("set_handler_count", {"count": handlers}),
        ):
            self.do(op, **body)
        self._start_handlers(handlers)

    def _open(self) -> None:
        """What a start does first: the metadata are read."""
        self.log, self.image = MetadataLog.open(DATA, self.clock, self.fs)
        self.state = ControllerState(
            self.config, self.image, self.clock, random_id=lambda: self.rng.randbytes(16)
        )

    def _start_handlers(self, count: int) -> None:
        self.do("start_broker")
        self.was_clean = checkpoints.remove_clean_shutdown(self.fs, DATA)
        self.start_cleaner()
        self.handlers = [self._handler(index, is_clean=self.was_clean) for index in range(count)]

    def _handler(self, index: int, *, is_clean: bool) -> Handler:
        """One that knows the metadata of now."""
        image = ClusterImage.from_snapshot(self.image.snapshot())
        self._knows_all(index)
        return Handler(self, index, image, is_clean=is_clean)

    def start_cleaner(self) -> None:
        """The first cleaner of a broker, or the successor of one that died: it reads the files and gets a snapshot."""
        self.cleaner_image = ClusterImage.from_snapshot(self.image.snapshot())
        self.cleaner_deltas.clear()
        self.checkpoints = CheckpointWriter(self.fs, DATA, self.table)
        self.cleaner = None

    def update_cleaner(self) -> None:
        """The cleaner takes in all changes of the metadata."""
        while self.cleaner_deltas:
            self.cleaner_image.apply(self.cleaner_deltas.popleft())

    def compactor(self) -> Compactor:
        """The cleaner's part that compacts, anew."""
        return Compactor(
            config=self.config, clock=self.clock, fs=self.fs, table=self.table, image=lambda: self.cleaner_image,
            ask=self.ask, metrics=MetricsRow(new_slab(), 0, 1),
        )  # fmt: skip

    def ask_controller(self, call: Call[B, R], body: B, on_reply: Callable[[R | Lost], None]) -> None:
        """A Handler's call."""
        served = CallHandlers(Containment())
        add_change_calls(served, self._decide)
        served.handle_own(call, body, on_reply)

    def _decide(self, op: str, body: dict[str, Any], on_reply: OnReply) -> None:
        """Whoever dies, it is not the controller."""
        before, self.acting = self.acting, None
        reply = self.do(op, **body)
        self.acting = before
        on_reply(reply)

    def run_at(self, handler: Handler, action: Callable[[], None]) -> None:
        """A Handler does something, and may die of it; whoever caused it goes on."""
        before, self.acting = self.acting, handler.index
        try:
            action()
        except Died as death:
            self.kill(death.handler)
        finally:
            self.acting = before

    def ask(self, index: int, call: Call[Any, Any], body: Any, on_reply: Callable[[Any], None]) -> None:
        """A call of the cleaner to a Handler."""
        self.handlers[index].serve(call, body, on_reply)

    def claim(
        self, index: int, _call: Any, body: PartitionsClaimed, on_reply: Callable[[StatesGiven | Lost], None]
    ) -> None:
        """A Handler's call to another one."""
        self.handlers[index].serve_claim(body, on_reply)

    def _knows_all(self, index: int) -> None:
        self.names.attach(handler_id(index))
        self.names.acknowledged(handler_id(index), self.image.version)

    def hear(self, handler: Handler) -> None:
        """A Handler takes a delta in, if there is one, and says so."""
        if handler.deltas:
            self.names.acknowledged(handler_id(handler.index), handler.hear())

    def do(self, op: str, **body: Any) -> dict[str, Any]:
        """One operation of the controller: on the disk, then told to the Handlers."""
        reply, records = self.state.handle(op, body)
        if records:
            delta = r.encode_delta(self.image.version, records)
            self.log.commit(self.image, records)
            self.cleaner_deltas.append(delta)
            for handler in self.handlers:
                handler.deltas.append(delta)
        return reply

    # -- the load ----------------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int = 1, configs: Mapping[str, str] = {}) -> None:
        """CreateTopics, unless somebody may still act on the name."""
        if self.names.held([name]):
            return
        reply = self.do(
            "create_topics", topics=[topic(name, partitions, configs=dict(configs))], validate_only=False
        )
        assert reply["topics"][0]["error_code"] == 0, reply
        self.ledger.topics[name] = bytes(self.image.topics_by_name[name].topic_id)

    def delete(self, name: str) -> None:
        topic_id = self.ledger.topics.pop(name)
        self.do("delete_topics", topics=[{"name": name, "topic_id": NO_ID}])
        self.names.deleted([name], self.image.version)
        self.ledger.gone.add(topic_id)

    def scale(self, count: int) -> None:
        """Another count of Handlers: the routing table changes. All of them stay, some own nothing."""
        self.do("set_handler_count", count=count)

    def owned(self, name: str, index: int = 0) -> OwnedPartition | None:
        """The open partition at its owner, if that has heard of the topic and has it already."""
        partition = self.image.partition(name, index)
        if partition is None:
            return None
        handler = self.handlers[partition.owner]
        known = handler.image.topics_by_name.get(name)
        if known is None or known.topic_id != self.ledger.topics[name]:
            return None
        self.acting = handler.index
        try:
            return handler.partitions.get(name, known.partitions[index])
        except PartitionMoving:
            return None
        except KafkaError as error:
            if error.code != ErrorCode.KAFKA_STORAGE_ERROR or self.ledger.topics[name] in self.failed:
                return None
            raise Violation(f"{name} is refused while the broker runs: {error}") from error

    def produce(self, name: str, size: int, *, count: int = 1, producer_id: int = -1) -> None:
        """One batch; what it was answered, once it is, goes into the ledger."""
        owned = self.owned(name)
        if owned is None:
            return
        keys = [b"k%d" % self.rng.randrange(8) for _ in range(count)]
        values = [self.rng.randbytes(8) + bytes(size) for _ in range(count)]
        now_ms = self.clock.wall_ms()
        fields: dict[str, int] = {}
        if producer_id >= 0:
            sequence = self.sequences.get((owned.log.state.topic_id, producer_id), 0)
            fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
        acks = -1 if self.rng.random() < 0.8 else 1
        batch = encode_batch([Record(k, v, now_ms) for k, v in zip(keys, values, strict=True)], **fields)
        sent = bytes(batch)
        contents: list[Content] = list(zip(keys, values, strict=True))
        first = owned.log.state.end_offset
        if self._append(owned, batch, first, contents, acks) and producer_id >= 0:
            self.sequences[owned.log.state.topic_id, producer_id] = sequence + count
            self.last_batches[owned.log.state.topic_id, producer_id] = (sent, first)

    def retry(self, name: str, producer_id: int) -> None:
        """A producer sends its last batch again: a duplicate, or unknown with all that it ever sent."""
        owned = self.owned(name)
        found = self.last_batches.get((self.ledger.topics[name], producer_id))
        if owned is None or found is None:
            return
        batch, first = found
        (result,) = owned.log.append([memoryview(bytearray(batch))], hidden_from=0)
        if result.error_code or not result.is_duplicate or result.base_offset != first:
            raise Violation(f"{name} took a duplicate of offset {first}: {result}")

    def _append(
        self, owned: OwnedPartition, batch: bytearray, first: int, contents: Sequence[Content], acks: int
    ) -> bool:
        topic_id, ledger = owned.log.state.topic_id, self.ledger
        sent = ledger.sent.setdefault(topic_id, {})
        for number, content in enumerate(contents):
            sent.setdefault(first + number, set()).add(content)
        if acks == -1:
            ledger.awaited.setdefault(topic_id, set()).update(contents)
        (result,) = owned.log.append([memoryview(batch)], hidden_from=0 if acks == -1 else None)
        if result.error_code:
            return False
        if result.is_duplicate:
            raise Violation(f"{owned.key} takes a new batch for one that it has at {result.base_offset}")
        owned.after_append()
        if acks == 1:
            return True

        def on_synced(code: int) -> None:
            if code == 0:
                kept = ledger.kept.setdefault(topic_id, {})
                kept.update({first + number: content for number, content in enumerate(contents)})

        owned.when_synced(owned.log.state.end_offset, on_synced)
        return True

    def fetch(self, name: str) -> None:
        """A consumer reads what is visible: of records that were sent with acks=all nothing may vanish from then on."""
        owned = self.owned(name)
        if owned is not None:
            kept = self.ledger.kept.setdefault(owned.log.state.topic_id, {})
            kept.update(self.visible(owned.log, self.rng.random() < 0.5))

    def visible(self, log: Log, committed: bool) -> dict[int, Content]:
        """Records below the high watermark, or the last stable offset, that were sent with acks=all, by offset."""
        awaited = self.ledger.awaited.get(log.state.topic_id, set())
        found: dict[int, Content] = {}
        offset, more = log.state.start_offset, True
        while more:
            more = False
            for part in log.read(offset, 1 << 20, committed=committed).ranges:
                raw = self.fs.read_file(Path(os.fsdecode(part.path)))
                if raw is None:
                    raise Violation(f"{log.state.directory.name}: a segment that is served has no file")
                data, position = raw[part.position : part.position + part.length], 0
                while position + 12 <= len(data):
                    end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
                    if end > len(data):
                        break
                    header = parse_header(data, position)
                    if header.record_count and not header.is_control:
                        for each in decode_records(data[position:end]):
                            if each.offset >= log.state.start_offset and (each.key, each.value) in awaited:
                                found[each.offset] = each.key, each.value
                    offset, position, more = header.last_offset + 1, end, True
        return found

    def commit(self, group_id: str, *, deletes: bool = False) -> None:
        """OffsetCommit, each with a larger offset, or DeleteGroups; answered when it is durable."""
        partition = self.image.topics_by_name[GROUP_TOPIC].partitions[partition_for(group_id, 2)]
        runtime = self.handlers[partition.owner].coordinators
        commits = self.ledger.commits.setdefault(group_id, [])

        def on_done(code: int, number: int = len(commits) + 1) -> None:
            if code == 0:
                self.ledger.answered[group_id] = max(number, self.ledger.answered.get(group_id, 0))

        try:
            coordinator = runtime.by_topic[GROUP_TOPIC].coordinator(partition.index)
        except KafkaError:
            runtime.work(self.clock.now_ns())  # It may be loading.
            return
        commits.append(None if deletes else len(commits))
        if deletes:
            coordinator.deletion.delete(group_id, on_done)
        else:
            value = CommittedOffset(offset=len(commits) - 1, commit_timestamp_ms=self.clock.wall_ms())
            coordinator.offset_requests.commit(
                CommitRequest(
                    group_id=group_id, member_id="", group_instance_id=None, generation=-1,
                    knows_unknown_group=True, offsets=[(OffsetKey(group_id, GROUP_TOPIC, 0), value)],
                ),
                on_done,
            )  # fmt: skip
        if self.rng.random() < 0.5:
            runtime.flush()

    def consume(self, group_id: str, member_id: str) -> None:
        """ConsumerGroupHeartbeat of a member that joins, or joins again, and subscribes to two topics."""
        partition = self.image.topics_by_name[GROUP_TOPIC].partitions[partition_for(group_id, 2)]
        runtime = self.handlers[partition.owner].coordinators

        def on_result(result: ConsumerHeartbeatResult) -> None:
            if not result.error_code:
                self.ledger.epochs[group_id] = max(result.member_epoch, self.ledger.epochs.get(group_id, 0))

        try:
            coordinator = runtime.by_topic[GROUP_TOPIC].coordinator(partition.index)
        except KafkaError:
            runtime.work(self.clock.now_ns())  # It may be loading.
            return
        names = tuple(self.rng.sample((*NAMES, GROUP_TOPIC), 2))
        request = ConsumerHeartbeat(
            member_id=member_id, member_epoch=0, rebalance_timeout_ms=60_000, topic_names=names, owned={}
        )
        coordinator.consumer_heartbeat(group_id, request, on_result)
        if self.rng.random() < 0.5:
            runtime.flush()

    def stream(self, group_id: str, member_id: str, *, leaves: bool) -> None:
        """StreamsGroupHeartbeat of a member that joins, joins again or leaves. It reads two topics, each by itself."""
        partition = self.image.topics_by_name[GROUP_TOPIC].partitions[partition_for(group_id, 2)]
        runtime = self.handlers[partition.owner].coordinators

        def on_result(result: StreamsHeartbeatResult) -> None:
            if not result.error_code:
                epochs = self.ledger.streams_epochs
                epochs[group_id] = max(result.member_epoch, epochs.get(group_id, 0))

        try:
            coordinator = runtime.by_topic[GROUP_TOPIC].coordinator(partition.index)
        except KafkaError:
            runtime.work(self.clock.now_ns())  # It may be loading.
            return
        subtopologies = tuple(Subtopology(subtopology_id=name, source_topics=(name,)) for name in NAMES[:2])
        request = StreamsHeartbeat(
            member_id=member_id,
            member_epoch=-1 if leaves else 0,
            rebalance_timeout_ms=60_000,
            topology=None if leaves else Topology(1, subtopologies),
            owned=None if leaves else MemberTasks(),
            process_id=member_id,
        )
        coordinator.handle_heartbeat(
            group_id,
            lambda: coordinator.streams.heartbeat(group_id, request),
            on_result,
            lambda code: StreamsHeartbeatResult(error_code=code),
        )
        if self.rng.random() < 0.5:
            runtime.flush()

    def delete_records(self, name: str) -> None:
        """DeleteRecords, answered when the checkpoint is written."""
        owned = self.owned(name)
        if owned is None:
            return
        log = owned.log
        everything = self.rng.random() < 0.4
        visible = log.state.high_watermark
        wanted = visible if everything else self.rng.randint(log.state.start_offset, visible)
        topic_id = self.ledger.topics[name]
        self.ledger.asked[topic_id] = max(wanted, self.ledger.asked.get(topic_id, 0))
        start = log.retention.advance_start(wanted)
        if self.dies_after and start == log.state.end_offset:
            self.dies_after = 1  # The active segment is gone, and the row names it.
        self.may_die()
        owned.after_start_moved()
        self.acting = None
        self.update_cleaner()  # It answers nobody who knows newer metadata.
        self.checkpoints.write_log_starts(self.cleaner_image)
        log.retention.mark_start(start)
        self.ledger.starts[topic_id] = start

    def checkpoint(self) -> None:
        """The cleaner's two files, by the metadata that it knows, which may be behind."""
        self.acting = None
        if self.rng.random() < 0.5:
            self.update_cleaner()
        self.checkpoints.write(self.cleaner_image)

    def idle_minute(self) -> None:
        """Nobody uses the broker for a minute, and the checkpoints are written."""
        self.clock.advance_ms(60_000)
        self.checkpoint()

    def step_clock(self) -> None:
        """Somebody sets the host's clock, up to a day forward or back."""
        self.clock.set_wall_ms(self.clock.wall_ms() + self.rng.randint(-86_400_000, 86_400_000))

    def enforce_retention(self, name: str) -> None:
        """The cleaner asks the owner, who also unlinks what is due."""
        owned = self.owned(name)
        if owned is None:
            return
        topic_id = self.ledger.topics[name]
        _, doomed = owned.log.retention.retention_victims(self.clock.wall_ms())
        if doomed:
            asked = max(doomed[-1].next_offset, self.ledger.asked.get(topic_id, 0))
            self.ledger.asked[topic_id] = asked
        owner = self.handlers[self.image.topics_by_name[name].partitions[0].owner]
        owner.partitions.enforce_retention(owned.key)
        owner.partitions.tick()

    def may_die(self) -> None:
        """Between two things that a Handler does: it is killed here if its time has come."""
        if self.acting is not None and self.dies_after:
            self.dies_after -= 1
            if not self.dies_after:
                raise Died(self.acting)

    def restart(self) -> None:
        """All roles are killed, and the broker is started again; the host goes on."""
        self.table = PartitionTable(memoryview(bytearray(8 * ROW_WORDS * SLOTS)).cast("Q"))
        self.failed.clear()
        self.start_cleaner()
        for index in range(len(self.handlers)):
            self.kill(index)

    def stop(self) -> None:
        """The broker stops, its roles in the order of supervisor/shutdown.py, and starts again."""
        self.acting, self.dies_after = None, 0
        if self.rng.random() < 0.7:  # Otherwise the time to drain is over at once.
            for handler in self.handlers:
                handler.drain()
        closed = [handler.close() for handler in self.handlers]
        self.log.close()
        if self.cleaner is not None:
            self.cleaner.close()
            self.cleaner = None
        self.update_cleaner()
        self.checkpoints.write(self.cleaner_image)
        if all(closed) and self.table.unclosed(self.image) is None:
            checkpoints.write_clean_shutdown(self.fs, DATA, self.image.broker_epoch)
        self.table = PartitionTable(memoryview(bytearray(8 * ROW_WORDS * SLOTS)).cast("Q"))
        self.failed.clear()
        before, self.handlers = self.handlers, []
        self._open()
        while self.rng.random() < 0.3:  # A start that fails here: a port is taken, a key does not fit.
            self.do("start_broker")
            self.log.close()
            self._open()
        self._start_handlers(len(before))
        for dead in before:
            dead.lose_what_was_asked()

    def kill(self, index: int) -> None:
        """A Handler dies; its successor opens what it had, and who waits for an answer hears of it."""
        dead = self.handlers[index]
        self.handlers[index] = self._handler(index, is_clean=False)
        dead.lose_what_was_asked()
