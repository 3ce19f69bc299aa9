"""SharePartitions: the share partitions of one Handler, with their states, locks and writes.

A share partition is made at its first use: its state is read from the share coordinator, and its start offset is chosen
if the state has none. It leaves the table if the partition's log is not ours any more, if its state was replaced at the
coordinator (AlterShareGroupOffsets), or if nobody has used it for some minutes. Changes of a duty cycle are written
together at its end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.cluster.features import share_version
from kproc.broker.fetch.fetch_read import partition_now
from kproc.broker.peers.forwarding import gather
from kproc.broker.peers.share_call import READ_STATE, WRITE_STATE
from kproc.broker.role.purgatory import DelayedOperation
from kproc.broker.share.partition.dead_letters import DeadLetterWriter
from kproc.broker.share.partition.group_settings import ShareSettings, share_settings
from kproc.broker.share.partition.share_partition import SharePartition
from kproc.broker.share.partition.state_calls import StateCalls
from kproc.broker.share.state.messages import NO_OFFSET, PersistedState, ReadState, SharePartitionKey
from kproc.common.clock import NS_PER_MS
from kproc.common.deadlines import NEVER, Deadlines
from kproc.common.errors import Corrupt, ErrorCode, KafkaError
from kproc.common.reading import LATEST

if TYPE_CHECKING:
    from kproc.broker.cluster.image import PartitionImage
    from kproc.broker.handler.owned_partition import OwnedPartition
    from kproc.broker.request.context import Services
    from kproc.broker.share.partition.messages import ShareHolder

logger = logging.getLogger(__name__)

# A share partition that nobody has used for this time leaves the memory. Its state is at the coordinator.
IDLE_MS: Final = 5 * 60_000
# The error of a state that could not be read is answered for this time. Then the state is read again.
_FAILED_MS: Final = 1_000
# Limits of one Handler. A run is a range of records with one state, and takes about 200 bytes.
PARTITIONS_MAX: Final = 10_000
RUNS_MAX: Final = 1_000_000
_DEAD_LETTERS_SINCE: Final = 2  # The level of share.version.
_FENCED: Final = (ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_LEADER_EPOCH)


class SharePartitions:
    """The table of a Handler's share partitions.

    group_configs: returns the configs of a group by their names.
    """

    def __init__(self, services: Services, group_configs: Callable[[str], Mapping[str, str]]) -> None:
        self._services = services
        self._group_configs = group_configs
        self._by_key: dict[SharePartitionKey, SharePartition] = {}
        self._settings: dict[
            str, tuple[int, ShareSettings]
        ] = {}  # By group, with the version of the metadata.
        self._calls = StateCalls(services)
        self._dead_letters = DeadLetterWriter(services, self._archive)
        self._deadlines: Deadlines[SharePartition] = Deadlines()  # In monotonic ms.
        self._unwritten: dict[SharePartition, None] = {}
        self._timer: _Timer | None = None
        self._runs: dict[SharePartition, int] = {}
        self._run_count = 0

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def has_room(self) -> bool:
        """False if the Handler's records in flight have reached their limit. New ones are not acquired then."""
        return self._run_count < RUNS_MAX

    def now_ms(self) -> int:
        """Return the monotonic time, by which locks end."""
        return self._services.clock.now_ns() // NS_PER_MS

    # -- share partitions --------------------------------------------------------------------------------------

    def get(self, key: SharePartitionKey, *, adds: bool = True) -> tuple[SharePartition, OwnedPartition]:
        """Return a share partition and its log. Begin to read its state if that is not known.

        Without `adds`, an unknown or failed share partition is an error: nobody can hold its records.

        Raises PartitionMoving if the log is not here yet, KafkaError if we do not own it or cannot open it, Corrupt or
        OSError for a damaged log.
        """
        topic = self._services.image.topics_by_id.get(key.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        if not 0 <= key.partition < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        image = topic.partitions[key.partition]
        if image.owner != self._services.handler_index:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        owned = self._services.owner.partitions.get(topic.name, image)
        settings = self.settings_of(key.group_id)
        partition = self._by_key.get(key)
        if not adds and (partition is None or partition.error is not None):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
            )
        if partition is None:
            partition = self._add(key, topic.name, image, settings)
        elif partition.settings is not settings:
            partition.apply_settings(settings)
        partition.leader_epoch = image.leader_epoch
        partition.used_ms = self.now_ms()
        return partition, owned

    def find(self, key: SharePartitionKey) -> SharePartition | None:
        """Return a share partition if it is in memory."""
        return self._by_key.get(key)

    def settings_of(self, group_id: str) -> ShareSettings:
        """Return the present settings of a group."""
        version = self._services.image.version
        known = self._settings.get(group_id)
        if known is None or known[0] != version:
            settings = share_settings(
                self._group_configs(group_id),
                self._services.config,
                allows_dead_letters=share_version(self._services.image) >= _DEAD_LETTERS_SINCE,
            )
            if known is not None and known[1] == settings:
                settings = known[1]
            if known is None and len(self._settings) >= PARTITIONS_MAX:
                self._settings.clear()  # Clients choose the groups' names.
            self._settings[group_id] = known = version, settings
        return known[1]

    def changed(self, partition: SharePartition) -> None:
        """Take note of a change: of records to write, of locks, and of the memory that the records take."""
        records = partition.records
        if records is None:
            return
        count = records.run_count
        self._run_count += count - self._runs.get(partition, 0)
        self._runs[partition] = count
        self._deadlines.bring_forward(partition, records.next_deadline_ms())
        if partition.has_write:
            self._unwritten[partition] = None
        self._arm()

    def _add(
        self, key: SharePartitionKey, topic: str, image: PartitionImage, settings: ShareSettings
    ) -> SharePartition:
        if len(self._by_key) >= PARTITIONS_MAX and not self._drop_idle():
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker has too many share partitions in use"
            )
        partition = SharePartition(key, topic, image.leader_epoch, settings, self.now_ms())
        self._by_key[key] = partition
        self._deadlines.bring_forward(partition, partition.used_ms + IDLE_MS)
        self._calls.send(READ_STATE, [(partition, ReadState(image.leader_epoch))], self._on_read)
        return partition

    def _drop_idle(self) -> bool:
        """Drop the share partition that was not used for the longest time, if one is idle."""
        idle = [each for each in self._by_key.values() if each.is_idle]
        if idle:
            self._drop(min(idle, key=lambda each: each.used_ms))
        return bool(idle)

    def _drop(self, partition: SharePartition) -> None:
        del self._by_key[partition.key]
        self._deadlines.discard(partition)
        self._unwritten.pop(partition, None)
        self._run_count -= self._runs.pop(partition, 0)
        partition.drop()
        self._wake(partition)

    def _wake(self, partition: SharePartition) -> None:
        """Let watches look at a share partition again."""
        self._services.owner.purgatory.check(watch_key(partition.key))

    # -- changes of the cluster --------------------------------------------------------------------------------

    def on_image(self) -> None:
        """Drop the share partitions whose partition has another owner, or whose topic is deleted."""
        image, me = self._services.image, self._services.handler_index
        for partition in list(self._by_key.values()):
            now = partition_now(image, partition.key.topic_id, partition.key.partition)
            if now is None or now.owner != me:
                self._drop(partition)

    def release_home(self, handler: int) -> None:
        """Release the records of all sessions of a Handler that has died or left."""
        for partition in list(self._by_key.values()):
            partition.release_sessions(lambda holder: holder.home == handler)
            self.changed(partition)

    def release_session(self, session: ShareHolder) -> None:
        """Release the records of a session that has ended."""
        for partition in list(self._by_key.values()):
            if partition.key.group_id == session.group_id:
                partition.release_sessions(lambda holder: holder == session)
                self.changed(partition)

    # -- the state at the coordinator --------------------------------------------------------------------------

    def _on_read(self, partition: SharePartition, outcome: PersistedState | int) -> None:
        if isinstance(outcome, int):
            self._fail(partition, outcome)
        elif outcome.start_offset != NO_OFFSET:
            self._load(partition, outcome, NO_OFFSET)
        else:
            timestamp = partition.settings.start_timestamp(self._services.clock.wall_ms())
            self._choose_start(partition, outcome, timestamp)

    def _choose_start(self, partition: SharePartition, state: PersistedState, timestamp: int) -> None:
        def on_answers(answers: list[dict[str, Any]]) -> None:
            answer = answers[0]
            if partition.is_dropped:
                return
            if answer["error_code"]:
                self._fail(partition, answer["error_code"])
            elif answer["offset"] < 0 and timestamp != LATEST:
                # No record is as new as the duration of share.auto.offset.reset allows.
                self._choose_start(partition, state, LATEST)
            else:
                self._load(partition, state, answer["offset"])

        part = partition.topic, partition.key.partition, (timestamp, -1, 0)
        gather(self._services, "list_offsets", [part], on_answers)

    def _load(self, partition: SharePartition, state: PersistedState, first_offset: int) -> None:
        key = partition.key
        image = partition_now(self._services.image, key.topic_id, key.partition)
        assert image is not None, "a deleted topic drops its share partitions"
        try:
            log = self._services.owner.partitions.get(partition.topic, image).log.state
        except (KafkaError, Corrupt, OSError) as error:
            code = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
            self._fail(partition, int(code))
            return
        letters = partition.load(state, first_offset, log.start_offset, log.end_offset)
        self.changed(partition)
        self._dead_letters.write(partition, letters)
        self._wake(partition)

    def _fail(self, partition: SharePartition, code: int) -> None:
        """Let requests fail, because a state could not be read or begun, and try it again after a while."""
        logger.warning("cannot load the state of share partition %s: error %d", partition.name, code)
        partition.error = _client_error(code)
        self._deadlines.move(partition, self.now_ms() + _FAILED_MS)
        self._arm()
        self._wake(partition)

    def _on_written(self, partition: SharePartition, outcome: int) -> None:
        if not outcome:
            letters = partition.finish_write()
            self.changed(partition)
            self._dead_letters.write(partition, letters)
            self._wake(partition)
        elif outcome in _FENCED:
            # Another owner has read the state, or the group coordinator has replaced it. Read it again.
            self._drop(partition)
        elif partition.is_start_new:
            self._fail(partition, outcome)
        else:
            logger.warning("cannot write the state of share partition %s: error %d", partition.name, outcome)
            partition.fail_write(_client_error(outcome))
            self.changed(partition)

    def _archive(self, partition: SharePartition, first: int, last: int) -> None:
        """Archive records that were written as dead letters."""
        partition.finish_dead_letters(first, last)
        self.changed(partition)

    # -- the timer ---------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Have `work` run at the next deadline, or at the end of this duty cycle if there is something to write."""
        due_ns = self._services.clock.now_ns() if self._unwritten else self._deadlines.first * NS_PER_MS
        if self._timer is not None and self._timer.is_parked:
            if self._timer.deadline_ns <= due_ns:
                return
            self._services.owner.purgatory.cancel(self._timer)
        if self._unwritten or self._deadlines.first != NEVER:
            self._timer = _Timer(self, due_ns)
            self._services.owner.purgatory.watch(self._timer, ())

    def work(self) -> None:
        """Release the records whose locks have ended, drop what is idle, and write what has changed."""
        now_ms = self.now_ms()
        for partition in self._deadlines.pop_due(now_ms):
            partition.expire(now_ms)
            if partition.error is not None or self._is_unused(partition, now_ms):
                self._drop(partition)
                continue
            # One that is used by a watch alone is looked at again after half of the time.
            self._deadlines.bring_forward(partition, max(partition.used_ms, now_ms - IDLE_MS // 2) + IDLE_MS)
            self.changed(partition)
        writes = [(partition, partition.take_write()) for partition in self._unwritten if partition.has_write]
        self._unwritten.clear()
        if writes:
            self._calls.send(WRITE_STATE, writes, self._on_written)
        self._arm()

    def _is_unused(self, partition: SharePartition, now_ms: int) -> bool:
        is_watched = self._services.owner.purgatory.is_watched(watch_key(partition.key))
        return now_ms - partition.used_ms >= IDLE_MS and not is_watched and partition.is_idle


def watch_key(key: SharePartitionKey) -> tuple[str, SharePartitionKey]:
    """Return the key by which watches wait for a share partition."""
    return "share", key


def _client_error(code: int) -> KafkaError:
    """Return the error for clients of a read or write of a state that failed, as Kafka's SharePartition has it."""
    if code in _FENCED or code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    known = (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
    return KafkaError(ErrorCode(code) if code in known else ErrorCode.UNKNOWN_SERVER_ERROR)


class _Timer(DelayedOperation):
    """The next time at which the table has work."""

    __slots__ = ("_table",)

    def __init__(self, table: SharePartitions, due_ns: int) -> None:
        super().__init__(due_ns)
        self._table = table

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        self._table.work()
