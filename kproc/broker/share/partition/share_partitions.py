"""SharePartitions: the share partitions of one Handler, with their states, locks and writes.

A share partition is created at its first use: its state is read from the share coordinator, and its start offset is
chosen if the state has none. It is removed from the table if another Handler owns the partition's log, if its state was
replaced or deleted at the coordinator, if the last session that used it has ended, or if nobody has used it for 5
minutes. Changes of a duty cycle are written together at its end, up to 200 share partitions at once.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.fetch.fetch_read import partition_now
from kproc.broker.peers.coordinator_call import Item
from kproc.broker.peers.forwarding import gather
from kproc.broker.peers.share_call import READ_STATE, RESTORE_STATE, WRITE_STATE
from kproc.broker.role.purgatory import DelayedCall
from kproc.broker.share.partition.dead_letters import DeadLetterWriter
from kproc.broker.share.partition.group_settings import SettingsCache, ShareSettings
from kproc.broker.share.partition.holder_uses import HolderUses
from kproc.broker.share.partition.share_counters import ShareCounters
from kproc.broker.share.partition.share_partition import SharePartition
from kproc.broker.share.partition.state_calls import RETRIED, RETRIES_NS, StateCalls
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

# A share partition that nobody has used for this time (ms) is removed from memory. The share coordinator has its state.
IDLE_MS: Final = 5 * 60_000
# If a state could not be read, or its start offset could not be written, requests get the error for this time (ms).
# Then the read or the write is repeated. Locks that ended during a failed write are released after this time: at once,
# the release would fail in every duty cycle.
_FAILED_MS: Final = 1_000
# Limits of one Handler. A run is a range of records with one state, and takes about 200 bytes.
PARTITIONS_MAX: Final = 10_000
RUNS_MAX: Final = 1_000_000
# A full table drops an idle share partition for a new one. It checks only this many that were not used for the longest
# time.
_CANDIDATES_MAX: Final = 16
# A session, or a watch of a ShareFetch, with more partitions is slow: a look at 100 of them takes 0.3 ms.
SLOW_PARTS: Final = 100
# Limit of the share partitions whose state is written, or whose locks end, in one duty cycle. A write takes 60 us.
PARTITIONS_AT_ONCE: Final = 200
_FENCED: Final = (ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_LEADER_EPOCH)
# Errors of a write after which the state is read again. They mean that another owner has read the state, that the group
# coordinator has replaced it, or that it was deleted with the group or the group's offsets (INVALID_REQUEST).
_REPLACED: Final = (*_FENCED, ErrorCode.INVALID_REQUEST)


class SharePartitions:
    """The table of a Handler's share partitions.

    group_configs: returns the configs of a group by their names.
    """

    def __init__(self, services: Services, group_configs: Callable[[str], Mapping[str, str]]) -> None:
        self._services = services
        # In order of use: the share partition that was not used for the longest time is the first.
        self._by_key: OrderedDict[SharePartitionKey, SharePartition] = OrderedDict()
        # An owner adds a session's use before the session acquires records.
        self.uses = HolderUses()
        self.settings = SettingsCache(services, group_configs)
        self._calls = StateCalls(services)
        self.counters = ShareCounters()
        self._dead_letters = DeadLetterWriter(services, self.counters, self._archive)
        self._deadlines: Deadlines[SharePartition] = Deadlines()  # Deadlines in monotonic ms.
        self._unwritten: dict[SharePartition, None] = {}
        self._timer: DelayedCall | None = None  # Calls `work` at the next deadline.
        self._runs: dict[SharePartition, int] = {}
        self._run_count = 0

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def run_count(self) -> int:
        """The number of runs of all share partitions: ranges of records in flight with one state."""
        return self._run_count

    @property
    def has_room(self) -> bool:
        """True if the Handler has fewer than RUNS_MAX runs.

        Otherwise members can only acquire records that were delivered before and released.
        """
        return self._run_count < RUNS_MAX

    def now_ms(self) -> int:
        """Return the monotonic time in ms, which the deadlines of locks refer to."""
        return self._services.clock.now_ns() // NS_PER_MS

    # -- share partitions --------------------------------------------------------------------------------------

    def get(self, key: SharePartitionKey, *, adds: bool = True) -> tuple[SharePartition, OwnedPartition]:
        """Return a share partition and its log. Start to read its state if it is not in memory.

        Without `adds`, an unknown or failed share partition is an error: nobody can hold its records.

        Raises PartitionMoving if this Handler does not have the log yet, KafkaError if it does not own the partition or
        cannot open the log, Corrupt or OSError for a damaged log.
        """
        topic = self._services.image.topics_by_id.get(key.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        if not 0 <= key.partition < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        image = topic.partitions[key.partition]
        # NOT_LEADER_OR_FOLLOWER is retriable: the home has older metadata than this Handler, and finds the
        # new owner.
        if image.owner != self._services.handler_index:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        owned = self._services.owner.partitions.get(topic.name, image)
        settings = self.settings.of_group(key.group_id)
        partition = self._by_key.get(key)
        if not adds and (partition is None or partition.error is not None):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
            )
        if partition is None:
            partition = self._add(key, topic.name, image, settings, owned.log.state.end_offset)
        else:
            partition.apply_settings(settings)
        partition.leader_epoch = image.leader_epoch
        partition.used_ms = self.now_ms()
        self._by_key.move_to_end(key)
        return partition, owned

    def find(self, key: SharePartitionKey) -> SharePartition | None:
        """Return a share partition if it is in memory, else None."""
        return self._by_key.get(key)

    def changed(self, partition: SharePartition, *, not_before_ms: int = 0) -> None:
        """Update the schedule and the memory count of a share partition after a change of its records.

        Schedules the write of its changes, and the release at the end of its next lock. not_before_ms: locks that end
        earlier are released only at this time.
        """
        records = partition.records
        if records is None:
            return
        count = records.run_count
        self._run_count += count - self._runs.get(partition, 0)
        self._runs[partition] = count
        lock_ms = records.next_deadline_ms()
        if lock_ms is not None:
            self._deadlines.bring_forward(partition, max(lock_ms, not_before_ms))
        if partition.has_write:
            self._unwritten[partition] = None
        self._arm()

    def _add(
        self, key: SharePartitionKey, topic: str, image: PartitionImage, settings: ShareSettings, log_end: int
    ) -> SharePartition:
        if len(self._by_key) >= PARTITIONS_MAX and not self._drop_idle():
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"the Handler of this partition has {PARTITIONS_MAX} share partitions in use, its limit; "
                "try again later",
            )
        partition = SharePartition(key, topic, image.leader_epoch, settings, log_end, self.now_ms())
        self._by_key[key] = partition
        self._deadlines.bring_forward(partition, partition.used_ms + IDLE_MS)
        on_read = partial(self._on_read, self._services.clock.now_ns() + RETRIES_NS)
        self._calls.send_in_turn(READ_STATE, partition, ReadState(image.leader_epoch), on_read)
        return partition

    def _drop_idle(self) -> bool:
        """Remove one idle share partition from the table. Return False if there is none.

        Only some share partitions are examined, the least recently used ones.
        """
        for partition in islice(self._by_key.values(), _CANDIDATES_MAX):
            if partition.is_idle:
                self._drop(partition)
                return True
        return False

    def _drop_unused(self, partition: SharePartition) -> None:
        """Remove an idle share partition from the table if no session uses it any more.

        A group without members can be deleted. A new group with the same name must not find the old group's state.
        """
        if not (partition.is_dropped or self.uses.is_used(partition.key)) and partition.is_idle:
            self._drop(partition)

    def _drop(self, partition: SharePartition) -> None:
        del self._by_key[partition.key]
        self._deadlines.discard(partition)
        self._unwritten.pop(partition, None)
        self._run_count -= self._runs.pop(partition, 0)
        partition.drop()
        self._wake(partition)

    def _wake(self, partition: SharePartition) -> None:
        """Wake the watches of a share partition. They check whether records can be acquired now."""
        self._services.owner.purgatory.check(partition.watch_keys[0])

    def drain(self) -> None:
        """Repeat no calls to share coordinators any more, because this Handler stops."""
        self._calls.drain()

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
        self._release(self.uses.pop_home(handler), lambda holder: holder.home == handler)

    def release_holder(self, holder: ShareHolder) -> None:
        """Release the records of a closed session.

        If it has used many share partitions, this happens in a later duty cycle.
        """
        if self.uses.count(holder) > SLOW_PARTS:
            # 100 clients can disconnect in one duty cycle. A duty cycle runs only one deferred function.
            self._services.owner.purgatory.defer(partial(self.release_now, holder))
        else:
            self.release_now(holder)

    def release_now(self, holder: ShareHolder) -> None:
        """Release the records of a closed session in this duty cycle."""
        self._release(self.uses.pop(holder), lambda each: each == holder)

    def _release(self, keys: Iterable[SharePartitionKey], is_closed: Callable[[ShareHolder], bool]) -> None:
        for key in keys:
            partition = self._by_key.get(key)
            if partition is not None:
                partition.apply_settings(self.settings.of_group(key.group_id))
                partition.release_holders(is_closed)
                self.changed(partition)
                self._drop_unused(partition)

    # -- the state at the coordinator --------------------------------------------------------------------------

    def _on_read(self, give_up_ns: int, partition: SharePartition, outcome: PersistedState | int) -> None:
        if outcome == ErrorCode.INVALID_REQUEST:
            self._restore(partition, give_up_ns)
        else:
            self._use_state(partition, outcome)

    def _restore(self, partition: SharePartition, give_up_ns: int) -> None:
        """Request that the group's coordinator creates a missing state again, and then read the state.

        With kproc.flush=none, a power loss can remove the state of an initialized partition. The group's coordinator
        rejects the call if the group must not have a state, for example because no member has subscribed to the topic.

        give_up_ns: until this time, the state is read again after an error that passes. Members wait meanwhile.
        """
        read = ReadState(partition.leader_epoch)

        def on_outcomes(outcomes: list[int]) -> None:
            code = outcomes[0]
            if partition.is_dropped:
                return
            # The group's coordinator is being loaded, as after a start of the broker, or it is still initializing the
            # state. Begin with the read, because the state may exist after the pause.
            gives_up = self._calls.is_stopping or self._services.clock.now_ns() >= give_up_ns
            if code in RETRIED and not gives_up:
                on_read = partial(self._on_read, give_up_ns)
                self._calls.send_after_pause(READ_STATE, partition, read, on_read)
            elif code:
                self._use_state(partition, code)
            else:
                self._calls.send(READ_STATE, [(partition, read)], self._use_state)

        key = partition.key
        RESTORE_STATE.send_for_handler(self._services, [Item(key.group_id, key)], on_outcomes)

    def _use_state(self, partition: SharePartition, outcome: PersistedState | int) -> None:
        if isinstance(outcome, int):
            self._fail(partition, _coordinator_error(outcome))
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
                # As in Kafka, members get the error of the look-up itself.
                self._fail(partition, KafkaError(ErrorCode(answer["error_code"])))
            elif answer["offset"] < 0 and timestamp != LATEST:
                # share.auto.offset.reset=by_duration: no record is as new as that. Begin at the end of the log.
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
            # A start offset that was chosen now can be behind the records that were written during the read.
            end = log.end_offset if state.start_offset == NO_OFFSET else partition.log_end
            letters = partition.load(state, first_offset, log.start_offset, end)
        except (KafkaError, Corrupt, OSError, ValueError) as error:
            # A ValueError means that the state has a record state that only a newer Kafka or a tool can have written.
            code = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
            self._fail(partition, KafkaError(code))
            return
        self.changed(partition)
        self._dead_letters.write_again(partition, letters)
        self._wake(partition)

    def _fail(self, partition: SharePartition, error: KafkaError) -> None:
        """Reject requests for a while, because the state could not be read or its start offset could not be written."""
        logger.log(
            self._failure_level,
            "cannot read the state of share partition %s of topic %s or write its start offset, rejecting its requests "
            "for now: %s",
            partition.name,
            partition.topic,
            error.code.name,
        )
        partition.error = error
        self._deadlines.move(partition, self.now_ms() + _FAILED_MS)
        self._arm()
        self._wake(partition)

    def _on_written(self, partition: SharePartition, outcome: int) -> None:
        if not outcome:
            letters = partition.finish_write()
            self.changed(partition)
            self._dead_letters.write(partition, letters)
            self._wake(partition)
            self._drop_unused(partition)
        # The state in memory is not the stored one any more. Drop it, so that the next request reads the
        # state again.
        elif outcome in _REPLACED:
            self._drop(partition)
        # Without a stored start offset a successor could choose a later one, and records in between would be
        # skipped. So no member may acquire records yet.
        elif partition.is_start_new:
            partition.fail_write(_coordinator_error(outcome))
            self._fail(partition, _coordinator_error(outcome))
        else:
            logger.log(
                self._failure_level,
                "cannot write the state of share partition %s of topic %s, trying again later: error code %d",
                partition.name,
                partition.topic,
                outcome,
            )
            partition.fail_write(_coordinator_error(outcome))
            self.changed(partition, not_before_ms=self.now_ms() + _FAILED_MS)

    @property
    def _failure_level(self) -> int:
        """The log level of a failed call. At a stop the coordinators reject calls, so an administrator need not act."""
        return logging.INFO if self._calls.is_stopping else logging.WARNING

    def _archive(
        self, partition: SharePartition, first: int, last: int, on_archived: Callable[[], None]
    ) -> None:
        """Archive records that were written as dead letters. Call `on_archived` when that is persisted or fails."""

        def on_done(error: KafkaError | None) -> None:
            # If the archiving cannot be persisted, drop the share partition: nobody would archive the records later,
            # and they would fill the window. The next load finds the dead letters, as after a crash.
            if error is not None and not partition.is_dropped:
                self._drop(partition)
            on_archived()

        partition.finish_dead_letters(first, last, on_done)
        self.changed(partition)

    # -- the timer ---------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Schedule `work`: for the end of this duty cycle if there are states to write, else for the next deadline."""
        due_ns = self._services.clock.now_ns() if self._unwritten else self._deadlines.first * NS_PER_MS
        if self._timer is not None and self._timer.is_parked:
            if self._timer.deadline_ns <= due_ns:
                return
            self._services.owner.purgatory.cancel(self._timer)
        if self._unwritten or self._deadlines.first != NEVER:
            self._timer = DelayedCall(due_ns, self.work)
            self._services.owner.purgatory.watch(self._timer, ())

    def work(self) -> None:
        """Release the records whose locks have ended, drop idle share partitions, and write changed states."""
        now_ms = self.now_ms()
        for partition in self._deadlines.pop_due(now_ms, PARTITIONS_AT_ONCE):
            # No request may have come since the group's configs were changed.
            partition.apply_settings(self.settings.of_group(partition.key.group_id))
            self.counters.expired += partition.expire(now_ms)
            if partition.error is not None and partition.has_write:
                # Its start offset could not be written. Write it again: after a new read of the state, records that
                # were written meanwhile would hide that the log has lost records.
                partition.error = None
            elif partition.error is not None or self._is_unused(partition, now_ms):
                self._drop(partition)
                continue
            # A share partition that only a watch or unfinished work keeps in memory is checked again after IDLE_MS / 2.
            self._deadlines.bring_forward(partition, max(partition.used_ms, now_ms - IDLE_MS // 2) + IDLE_MS)
            self.changed(partition)
        writes = []
        for partition in list(islice(self._unwritten, PARTITIONS_AT_ONCE)):
            del self._unwritten[partition]
            if partition.has_write:
                writes.append((partition, partition.start_write()))
        if writes:
            self._calls.send(WRITE_STATE, writes, self._on_written)
        self._arm()

    def _is_unused(self, partition: SharePartition, now_ms: int) -> bool:
        is_watched = self._services.owner.purgatory.is_watched(partition.watch_keys[0])
        return now_ms - partition.used_ms >= IDLE_MS and not is_watched and partition.is_idle


def _coordinator_error(code: int) -> KafkaError:
    """Return the error that clients get after a call to a coordinator has failed with `code`.

    The table is that of Kafka's SharePartition.fetchPersisterError: any other code is UNKNOWN_SERVER_ERROR.
    """
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
