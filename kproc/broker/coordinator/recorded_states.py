"""States of groups that only records change: appending records to such a state, and replaying it from the log.

A group coordinator has one object for the groups of each protocol, for example ConsumerGroups. Each of these objects
has its RecordedGroups.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from kproc.broker.coordinator.member_deadlines import TimedMember
from kproc.broker.coordinator.member_errors import unknown_member
from kproc.broker.coordinator.record_codec import RecordCodec, RecordKey
from kproc.broker.coordinator.rules import Code, KeyAndValue, Timing, Write, write_error
from kproc.broker.coordinator.steps import Work
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.coordinator.coordinator_log import CoordinatorLog
    from kproc.broker.coordinator.recorded_group import RecordedGroup
    from kproc.broker.group.classic.group import ClassicGroup

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=TimedMember)
T = TypeVar("T")

# Costs of the steps of a load in units of about 1 us: of a group, and of each of its members.
_BUILD_COST: Final = 25
_MEMBER_COST: Final = 5


class RecordedState(Generic[M, T]):
    """The state of one group, built from its records. Only records change it.

    M is the class of its members, and T that of a member's target assignment.
    """

    # Attributes of the subclasses: the enum of the types of the records, with equal names in all subclasses, the class
    # of the members, and the target of a member that has none yet.
    record_types: Any
    member_type: type[M]
    no_target: T
    epoch: Any  # The record's value with the group's `epoch`.
    target_epoch: Any  # The record's value with the `epoch` for which the target assignment was computed.

    __slots__ = ("epoch", "group_id", "instance_ids", "members", "target_epoch", "targets")

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.members: dict[str, M] = {}
        self.instance_ids: dict[str, str] = {}  # Instance id of a static member -> its member id.
        self.targets: dict[str, T] = {}  # By member id, as far as the log has them.

    @property
    def is_written(self) -> bool:
        """True if the log has a record of the group itself, not only of its members."""
        written: bool = self.epoch.epoch > 0
        return written

    @property
    def state_name(self) -> str:
        """The name of the group's state, as ListGroups shows it."""
        if not self.members:
            return "Empty"
        epoch = self.target_epoch.epoch
        if self.epoch.epoch > epoch:
            return "Assigning"
        members: Iterable[Any] = self.members.values()
        is_stable = all(member.state.is_reconciled(epoch) for member in members)
        return "Stable" if is_stable else "Reconciling"

    def get_member(self, member_id: str, instance_id: str | None = None) -> M:
        """Return a member by its id, and by its instance id if it is static.

        Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member has the instance id (KIP-345).
        """
        if instance_id is not None:
            known_id = self.instance_ids.get(instance_id)
            if known_id is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
            # FENCED_INSTANCE_ID ends the former process of a static member. UNKNOWN_MEMBER_ID would let it join again,
            # and the two would fence each other by turns.
            if known_id != member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {instance_id} was fenced by member {known_id}.",
                )
        member = self.members.get(member_id)
        if member is None:
            raise unknown_member(self.group_id, member_id)
        return member

    def target_of(self, member_id: str) -> T:
        """Return the target assignment of a member. It is empty before the member's first target."""
        return self.targets.get(member_id, self.no_target)

    def apply(self, key: RecordKey, value: Any) -> None:
        """Apply one record of this group that is in the log.

        value: None for a tombstone.
        """
        raise NotImplementedError

    def _member(self, member_id: str) -> M:
        """Return the member of a record. In a replay, the records of a member come in any order."""
        member = self.members.get(member_id)
        if member is None:
            member = self.members[member_id] = self.member_type(member_id)
        return member

    def drop_incomplete_members(self) -> None:
        """Remove members without a subscription in the log. A crash has cut off a part of their tombstones."""
        raise NotImplementedError

    def record_keys(self) -> Iterator[RecordKey]:
        """Yield the keys of all records of the group, in the order in which a deletion writes their tombstones.

        Subclasses add the keys of the records that name neither a member nor the target.
        """
        types = self.record_types
        names_by_type: tuple[tuple[IntEnum, Iterable[str]], ...] = (
            (types.MEMBER_STATE, self.members),
            (types.MEMBER_TARGET, self.targets),
            (types.TARGET, ("",)),
            (types.MEMBER, self.members),
        )
        for record_type, names in names_by_type:
            for name in names:
                yield RecordKey(record_type, self.group_id, name)

    def member_tombstones(self, member_ids: Iterable[str]) -> Iterator[tuple[RecordKey, None]]:
        """Yield the tombstones of the records of removed members, in Kafka's order."""
        types = self.record_types
        for member_id in member_ids:
            for record_type in (types.MEMBER_STATE, types.MEMBER_TARGET, types.MEMBER):
                yield RecordKey(record_type, self.group_id, member_id), None


S = TypeVar("S", bound=RecordedState[Any, Any])
G = TypeVar("G", bound="RecordedGroup[Any, Any, Any]")


def append_and_apply(
    log: CoordinatorLog[Any], records: list[KeyAndValue], apply: Callable[[int], None]
) -> None:
    """Append records at once, so that the next step of a request sees their effect.

    `apply` gets the index of each record that is in the log. Raises KafkaError unless all records are. The records are
    not durable yet. The coordinator answers the request when they are.
    """
    failure = ErrorCode.NONE
    count = 0

    def on_done(code: Code) -> None:
        nonlocal failure
        failure = ErrorCode(write_error(code))

    def on_appended(number: int, _offset: int) -> None:
        nonlocal count
        count += 1
        apply(number)

    log.write(Write(records, on_done, on_appended))
    log.flush()
    # A part may be in the log, for example if the disk became full between two batches. That part was
    # applied, so memory and log agree, and the next request continues from there.
    if count < len(records):
        raise KafkaError(failure or ErrorCode.COORDINATOR_NOT_AVAILABLE)


def append_conversion(
    log: CoordinatorLog[Any], records: list[KeyAndValue], apply: Callable[[int], None]
) -> None:
    """Append the records that convert a group, as `append_and_apply` does. Raises KafkaError if none is in the log.

    Records that do not fit into one batch can be appended in part. Then log and memory have different groups. This
    raises RuntimeError, and the runtime loads the coordinator again from its log.
    """
    count = 0

    def on_appended(number: int) -> None:
        nonlocal count
        count += 1
        apply(number)

    try:
        append_and_apply(log, records, on_appended)
    except KafkaError as error:
        if count:
            raise RuntimeError(
                f"{count} of {len(records)} records of a group's conversion to another protocol were appended; the "
                "coordinator is loaded again from its log"
            ) from error
        raise


class _ReplacedGroup(NamedTuple):
    """A classic group that a joining member replaces, and the records that begin the new group."""

    group: ClassicGroup
    records: Sequence[tuple[RecordKey, Any]]


class RecordedGroups(Generic[S, G]):
    """Creates and loads the groups of one protocol, and appends their records to the log.

    `groups` and `unwritten` are the coordinator's own: all groups, and the ids of those without a record in the log.
    `make_state` returns an empty state for a group id, and `make_group` a group with a state. `epoch_type` is the type
    of the records' values that contain a group's epoch.
    """

    def __init__(
        self,
        codec: RecordCodec[Any, Any],
        epoch_type: type,
        make_state: Callable[[str], S],
        make_group: Callable[[S], G],
        groups: dict[str, Any],
        unwritten: dict[str, None],
        timing: Timing,
        log: CoordinatorLog[Any],
    ) -> None:
        self.codec = codec
        self._epoch_type = epoch_type
        self._make_state = make_state
        self._make_group = make_group
        self._groups = groups
        self._unwritten = unwritten
        self._timing = timing
        self._log = log
        self._states: dict[str, S] = {}
        # Classic groups that `create` has replaced, until the log has the first record of the new group.
        self._replaced: dict[str, _ReplacedGroup] = {}
        self._rebalances = 0

    def add(self, state: S) -> G:
        """Add a group with this state. It replaces a group with the same id."""
        group = self._groups[state.group_id] = self._make_group(state)
        return group

    def create(self, group_id: str, records: Sequence[tuple[RecordKey, Any]] = ()) -> G:
        """Add a group that has no record in the log yet. In memory, it replaces a classic group with the same id.

        The first `append` also replaces the classic group in the log. Therefore a member that is rejected before
        then changes nothing in the log.

        records: all records that begin the new group, if it has the members of a classic one: its epoch, members,
        targets and target epoch.
        """
        if group_id in self._groups:
            self._replaced[group_id] = _ReplacedGroup(self._groups[group_id], records)
        self._unwritten[group_id] = None
        state = self._make_state(group_id)
        # Apply the records before they are in the log, because the heartbeat of the joining member is handled with this
        # state. The first `append` writes them, and `restore_replaced` discards the state if the member is rejected.
        for record in records:
            state.apply(*record)
        return self.add(state)

    def restore_replaced(self, group_id: str) -> None:
        """Restore the classic group that `create` has replaced, because the joining member was rejected.

        Do nothing if the log has a record of the new group.
        """
        replaced = self._replaced.pop(group_id, None)
        if replaced is not None:
            self._groups[group_id].release_memory()
            self._groups[group_id] = replaced.group
            # A group without a record stays in the table with a limit.
            if replaced.group.generation:
                self._unwritten.pop(group_id, None)

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Replay the last record of a key. Records of different keys come in any order.

        Raises Corrupt if the record cannot be decoded.
        """
        record_key, content = self.codec.decode(key, value)
        # CoordinatorReplay yields no tombstones, so this is a record of a type whose values are ignored (RecordCodec).
        if content is None:
            return
        state = self._states.get(record_key.group_id)
        if state is None:
            state = self._states[record_key.group_id] = self._make_state(record_key.group_id)
        state.apply(record_key, content)

    def restore_replayed(self) -> Work:
        """Add the groups that exist after the replay to the coordinator, in steps. Call it once."""
        states, self._states = self._states, {}
        for group_id in list(states):
            state = states.pop(group_id)
            # A crash can cut a series of tombstones of one member. What is left must not become a member
            # without a subscription.
            state.drop_incomplete_members()
            if state.is_written:
                self.add(state)
                yield _BUILD_COST + _MEMBER_COST * len(state.members)

    def append(self, group: G, records: Sequence[tuple[RecordKey, Any]]) -> None:
        """Append records of a group, and apply each one that is in the log. Raises KafkaError unless all are.

        If the group replaces a classic one, also append the records of that conversion. See `append_conversion`.
        """
        group_id = group.group_id
        replaced = self._replaced.get(group_id)
        encoded: list[KeyAndValue] = []
        if replaced is not None:
            if not replaced.group.is_unwritten:
                encoded += [(key, None) for key in replaced.group.record_keys()]
            encoded += [self.codec.encode(*record) for record in replaced.records]
        first = len(encoded)
        encoded += [self.codec.encode(*record) for record in records]

        def apply(number: int) -> None:
            self._unwritten.pop(group_id, None)
            if number >= first:
                group.state.apply(*records[number - first])

        if replaced is None:
            append_and_apply(self._log, encoded, apply)
        else:
            append_conversion(self._log, encoded, apply)
            del self._replaced[group_id]
            replaced.group.dissolve()
            group.start_sessions(self._timing.now_ms())
            if replaced.records:
                epoch = replaced.group.generation
                logger.info("group %s: became a %s group at epoch %d", group_id, group.group_type, epoch)
        self._rebalances += sum(isinstance(value, self._epoch_type) for _key, value in records)

    def drain_rebalances(self) -> int:
        """Return how often a group's epoch rose since the last call. Kafka counts these rises as rebalances."""
        rebalances, self._rebalances = self._rebalances, 0
        return rebalances
