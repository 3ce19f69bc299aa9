"""TransactionExpiry: aborts transactions whose timeout is over, and removes transactional ids that nobody uses.

Both run in steps (coordinator/steps.py), because a coordinator can have very many ids. The counterparts in Kafka are
the scheduled tasks transaction-abort (TransactionCoordinator) and transactionalId-expiration (TransactionStateManager).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.coordinator.rules import Write
from kproc.broker.coordinator.steps import Work
from kproc.broker.transaction.records import encode_key
from kproc.broker.transaction.state import IDLE
from kproc.common.bounded import short_name
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.coordinator.coordinator_log import CoordinatorLog
    from kproc.broker.transaction.coordinator import TransactionCoordinator
    from kproc.broker.transaction.entry import Entry, Environment

logger = logging.getLogger(__name__)

# Costs of work that runs in steps, in units of about 1 us: to check one transactional id, and to write one record.
_CHECK_COST: Final = 5
_WRITE_COST: Final = 60


class TransactionExpiry:
    """Aborts the abandoned transactions of one TransactionCoordinator, and removes its unused transactional ids.

    `entries` are all ids of the coordinator.
    """

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        entries: Mapping[str, Entry],
        environment: Environment,
        log: CoordinatorLog[Any],
    ) -> None:
        self._coordinator = coordinator
        self._entries = entries
        self._config = environment.config
        self._wall_ms = environment.timing.wall_ms
        self._now_ms = environment.timing.now_ms
        self._log = log

    def abort_timed_out(self, ongoing: Mapping[str, int]) -> Work:
        """Abort transactions that are older than their timeout.

        `ongoing` has the ids of all ongoing transactions, and the monotonic time in ms since which each is known.
        """
        wall_ms, now_ms = self._wall_ms(), self._now_ms()
        for name in list(ongoing):
            if name not in ongoing:
                continue  # It has ended since the first step.
            entry = self._entries[name]
            # As in Kafka, skip an id whose state is being written (`settled` is None). The next check looks at it
            # again.
            current = entry.settled
            # An abandoned transaction stops the last stable offset of its partitions, so read_committed consumers would
            # wait for ever. The monotonic time counts, too, because the start in the record is in the future after the
            # host's clock was set back.
            if current is not None and (
                wall_ms > current.ends_at_ms or now_ms - ongoing[name] > current.timeout_ms
            ):
                logger.info(
                    "aborting the transaction of transactional id %s: its timeout has expired",
                    short_name(name),
                )
                self._coordinator.fence(
                    entry, partial(_log_error, "the abort of a transaction after its timeout")
                )
                yield _WRITE_COST
            yield _CHECK_COST

    def remove_unused(self) -> Work:
        """Remove ids that were unused for transactional.id.expiration.ms."""
        unused_since_ms = self._wall_ms() - self._config.transactional_id_expiration_ms
        for name in list(self._entries):
            entry = self._entries.get(name)
            current = entry.settled if entry is not None else None
            if (
                entry is not None
                and current is not None
                and current.state in IDLE
                and current.updated_ms <= unused_since_ms
            ):
                self._remove(entry)
                yield _WRITE_COST
            yield _CHECK_COST

    def _remove(self, entry: Entry) -> None:
        entry.start_removal()

        def apply(_number: int, _offset: int) -> None:
            self._coordinator.set_appended(entry, None)

        def on_written(code: int) -> None:
            # The pending state DEAD rejects requests until the tombstone is written. So no client uses an id that
            # disappears.
            self._coordinator.finish_write(entry)
            _log_error("the removal of an unused transactional id", code)

        tombstone = encode_key(entry.name), None
        self._log.write(Write([tombstone], on_written, apply, is_awaited=False))


def _log_error(what: str, code: int) -> None:
    """Log the error of a write that no request waits for. The next check or sweep tries to write again."""
    if code:
        logger.warning("%s failed, trying again later: %s", what, ErrorCode(code).name)
