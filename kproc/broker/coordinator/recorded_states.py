"""States of groups that only records change: appending records to such a state, and replaying it from the log.

A group coordinator has one object for the groups of each protocol, for example ConsumerGroups. These objects use
`append_and_apply` and `StateReplay`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.coordinator.rules import Code, KeyAndValue, Write, write_error
from kproc.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kproc.broker.coordinator.coordinator_log import CoordinatorLog


class RecordedState(Protocol):
    """The state of one group, built from its records."""

    @property
    def members(self) -> Mapping[str, Any]:
        """The members by their ids."""

    @property
    def epoch(self) -> Any:
        """The record's value with the group's `epoch`."""

    @property
    def target_epoch(self) -> Any:
        """The record's value with the `epoch` for which the target assignment was computed."""

    @property
    def is_written(self) -> bool:
        """True if the log has a record of the group itself, not only of its members."""

    def apply(self, key: RecordKey, value: Any) -> None:
        """Apply one record of this group that is in the log. A value of None is a tombstone."""

    def drop_incomplete_members(self) -> None:
        """Remove members without a subscription in the log. A crash has cut off a part of their tombstones."""


S = TypeVar("S", bound=RecordedState)


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


class StateReplay(Generic[S]):
    """The states of the groups of one protocol while the log is replayed."""

    def __init__(self, create: Callable[[str], S]) -> None:
        self._create = create
        self._states: dict[str, S] = {}

    def replay(self, key: RecordKey, value: Any) -> None:
        """Replay the last record of a key. Records of different keys come in any order."""
        # CoordinatorReplay yields no tombstones, so this is a record of a type whose values are ignored (RecordCodec).
        if value is None:
            return
        state = self._states.get(key.group_id)
        if state is None:
            state = self._states[key.group_id] = self._create(key.group_id)
        state.apply(key, value)

    def pop(self) -> list[S]:
        """Remove and return the states of the groups that exist after the replay."""
        states, self._states = list(self._states.values()), {}
        for state in states:
            # A crash can cut a series of tombstones of one member. What is left must not become a member
            # without a subscription.
            state.drop_incomplete_members()
        return [state for state in states if state.is_written]
