"""GroupRemoval: tombstones of committed offsets and groups, when they are deleted, have expired or lost their topic.

All of it runs in steps (coordinator/steps.py), because a group can have very many offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.coordinator.rules import (
    Code,
    DeletedTopics,
    KeyAndValue,
    OnCode,
    Timing,
    Write,
    write_error,
)
from kproc.broker.coordinator.steps import STEP_COST, Work
from kproc.broker.group.offsets import GroupOffsets
from kproc.broker.group.records import OffsetKey, encode_group_key, encode_offset_key
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.config import Config
    from kproc.broker.coordinator.coordinator_log import CoordinatorLog
    from kproc.broker.group.coordinator import Group

logger = logging.getLogger(__name__)

# Tombstones of offsets that one step writes for one group.
TOMBSTONES_AT_ONCE: Final = 200
# Costs of steps, in units of about 1 us: of the check of a group, and of each tombstone.
_CHECK_COST: Final = 6
_TOMBSTONE_COST: Final = 12
_MS_PER_MINUTE: Final = 60_000


class GroupRemoval:
    """Writes the tombstones of one coordinator. `groups` and `offsets` are the coordinator's own."""

    def __init__(
        self,
        groups: Mapping[str, Group],
        offsets: GroupOffsets,
        config: Config,
        timing: Timing,
        log: CoordinatorLog[Any],
        on_removed: Callable[[str], None],
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._config = config
        self._timing = timing
        self._log = log
        self._on_removed = on_removed

    def remove(self, keys: Sequence[OffsetKey], on_done: OnCode, also: Iterable[str] = ()) -> None:
        """Write tombstones for offsets, and delete the groups in `also` with the same write.

        on_done: gets the error code of the write.
        """
        effects: list[Callable[[], None]] = [partial(self._offsets.remove, key) for key in keys]
        records: list[KeyAndValue] = [(encode_offset_key(key), None) for key in keys]
        for group_id in also:
            for key in self._group_keys(group_id):
                records.append((key, None))
                effects.append(_no_effect)
            # Remove the group from memory with its last tombstone. If that one is not in the log, the group still
            # exists and can be deleted again.
            effects[-1] = partial(self._on_removed, group_id)
        self._log.write(Write(records, on_done, lambda number, _offset: effects[number]()))

    def _group_keys(self, group_id: str) -> list[bytes]:
        """Return the keys of all records of a group, without those of its offsets."""
        group = self._groups.get(group_id)
        return [encode_group_key(group_id)] if group is None else group.record_keys()

    # -- deleted groups and topics ------------------------------------------------------------------------------

    def delete(self, group_id: str, on_done: OnCode) -> None:
        """Delete a group with all its offsets by one write."""
        keys = self._offsets.keys_of(group_id)
        self.remove(keys, lambda error: on_done(write_error(error)), also=[group_id])
        # Otherwise a heartbeat in the same duty cycle would still find the group. Its member would join a group that is
        # then deleted.
        self._log.flush()

    def delete_in_steps(self, group_id: str, pop_on_done: Callable[[], OnCode]) -> Work:
        """Delete a group with many offsets by several writes. The last of them deletes the group itself.

        The result of `pop_on_done` becomes the callback of the last write.
        """
        for topic, partitions in list(self._offsets.of_group(group_id).items()):
            keys = [OffsetKey(group_id, topic, partition) for partition in partitions]
            for first in range(0, len(keys), TOMBSTONES_AT_ONCE):
                part = keys[first : first + TOMBSTONES_AT_ONCE]
                self.remove(part, log_error)
                yield _TOMBSTONE_COST * len(part)
        self._log.flush()
        # The last write has what is left: offsets of a transaction that was committed meanwhile, and those whose
        # tombstones could not be written.
        self.delete(group_id, pop_on_done())

    def remove_deleted(self, topics: DeletedTopics) -> Work:
        """Remove the offsets of deleted topics."""
        for group_id in self._offsets.group_ids():
            keys = self._offsets.keys_of_deleted(group_id, topics)
            for first in range(0, len(keys), TOMBSTONES_AT_ONCE):
                # Check each offset again, because a client may have committed another one since the last step.
                part = keys[first : first + TOMBSTONES_AT_ONCE]
                self.remove([key for key in part if self._offsets.is_deleted(key, topics)], log_error)
                yield _TOMBSTONE_COST * len(part)
            yield _CHECK_COST + self._offsets.count(group_id)
        self._log.flush()
        # Only if no further topic was deleted meanwhile. Otherwise the offsets of that topic must stay hidden
        # until its own removal.
        if self._offsets.hidden is topics:
            self._offsets.hidden = None

    # -- expiry ------------------------------------------------------------------------------------------------

    def sweep(self) -> Work:
        """Remove expired offsets, and empty groups without offsets."""
        for group_id in list(self._groups):
            if self._offsets.has_more_than(group_id, TOMBSTONES_AT_ONCE):
                yield from self._expire_by_topic(group_id)
            expired = self._sweep_group(group_id)
            few = min(self._offsets.count(group_id), TOMBSTONES_AT_ONCE)
            yield _CHECK_COST + few + _TOMBSTONE_COST * (len(expired) + 1)

    def _expire_by_topic(self, group_id: str) -> Work:
        """Remove the expired offsets of a group with more than TOMBSTONES_AT_ONCE offsets, topic by topic."""
        for topic, partitions in list(self._offsets.of_group(group_id).items()):
            before: list[OffsetKey] = []
            while (
                len(expired := self._expired(group_id, [topic])) == TOMBSTONES_AT_ONCE and expired != before
            ):
                # The topic may have more expired offsets. The next step searches them when these tombstones are in the
                # log or have failed.
                self.remove(expired, log_error)
                before = expired
                yield STEP_COST
            if expired:
                self.remove(expired, log_error)
            yield _CHECK_COST + len(partitions) + _TOMBSTONE_COST * len(expired)
        self._log.flush()

    def _expired(self, group_id: str, topics: Iterable[str]) -> list[OffsetKey]:
        """Return up to TOMBSTONES_AT_ONCE expired offsets of a group in some topics."""
        group = self._groups.get(group_id)
        if group is None:
            return []
        found = self._offsets.expired_of(
            group_id,
            topics,
            group.offset_expires_from_ms,
            now_ms=self._timing.wall_ms(),
            retention_ms=self._config.offsets_retention_minutes * _MS_PER_MINUTE,
        )
        return list(islice(found, TOMBSTONES_AT_ONCE))

    def _sweep_group(self, group_id: str) -> list[OffsetKey]:
        """Remove the expired offsets of a group with at most TOMBSTONES_AT_ONCE offsets. Return their keys.

        Remove the group, too, if it has no members and no other offsets.
        """
        group = self._groups.get(group_id)
        if group is None or not group.can_expire or self._offsets.has_more_than(group_id, TOMBSTONES_AT_ONCE):
            return []
        expired = self._expired(group_id, self._offsets.of_group(group_id))
        # Offsets of an open transaction do not expire, so a group that has some is kept.
        is_last = (
            group.is_empty
            and not self._offsets.pending.has_group(group_id)
            and len(expired) == self._offsets.count(group_id)
        )
        if is_last and group.is_unwritten and not expired:
            self._on_removed(group_id)  # Write no tombstone, because the log has no record of the group.
        elif expired or is_last:
            self.remove(expired, log_error, also=[group_id] if is_last else ())
        return expired


def _no_effect() -> None:
    pass


def log_error(code: Code) -> None:
    """Log the error of a write that no request waits for. The next sweep tries again."""
    if code:
        logger.warning(
            "tombstones of groups or offsets were not written, the next sweep tries again: %s",
            ErrorCode(code).name,
        )
