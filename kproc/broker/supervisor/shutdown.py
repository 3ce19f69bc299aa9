"""Shutdown: the order in which a broker's roles stop, and the time limit of each.

Acceptors, Processors and Handlers accept no new requests and drain within one deadline. Then Acceptors and Processors
close, then the Handlers, then the controller, each wave within its own time limit. The cleaner closes last, because it
writes the checkpoints.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from kproc.broker.role.roles import CLEANER, HANDLER
from kproc.broker.supervisor.children import Children
from kproc.broker.supervisor.roles_table import ManagedRole
from kproc.broker.supervisor.topology import CLOSE_WAVES, DRAIN_WAVES, WRITERS
from kproc.common.clock import NS_PER_MS, Clock

logger = logging.getLogger(__name__)

_CLOSE_NS: Final = 1_000_000_000  # Time to close that each wave has at least.
_TURN_MS_MAX: Final = 100


class Shutdown:
    """One stop of a broker: the order in which its roles drain and close.

    `turn(ms)` runs one turn of the supervisor's loop, which waits for events for at most `ms`.
    """

    def __init__(self, children: Children, clock: Clock, turn: Callable[[int], None]) -> None:
        self._children = children
        self._table = children.table
        self._clock = clock
        self._turn = turn

    def run(self, drain_ns: int, *, is_clean: bool) -> None:
        """Drain all roles within `drain_ns`, close them wave by wave, reap them, and kill the rest.

        `is_clean` is False if the broker stops because it failed. In that case no role may mark its files as clean.
        """
        deadline_ns = self._clock.now_ns() + drain_ns
        for role in self._table:
            role.is_drained = False  # A leaving role may have reported "drained" before this stop.
        for wave in DRAIN_WAVES:
            self._send(wave, {"do": "stop"})
        draining = tuple(role for wave in DRAIN_WAVES for role in wave)
        # Acceptors, Processors and Handlers share one deadline, because a client's request passes through all three
        # kinds.
        is_drained = self._await(lambda role: role.is_drained, draining, deadline_ns)
        if not is_drained:
            logger.warning("stopping although requests are unanswered: kproc.drain.timeout.ms is over")
        for wave in CLOSE_WAVES:
            expected = self._table.of(*wave)
            # A role that is dead by now has not closed its files. The cleaner writes the marker of a clean stop only if
            # Handlers and controller have closed theirs cleanly.
            if wave[0] in WRITERS:
                is_clean = is_clean and all(role.child is not None for role in expected)
            self._send(wave, {"do": "close", "is_clean": is_clean})
            # Give each wave its own time limit, because a role that hangs must not use up the time in which the next
            # wave syncs and closes its logs.
            own_ns = max(_CLOSE_NS, drain_ns // 2 if wave[0] == HANDLER else 0)
            until_ns = max(deadline_ns, self._clock.now_ns() + own_ns)
            self._await(lambda role: role.child is None, wave, until_ns)
            if wave[0] in WRITERS and wave[0] != CLEANER.role:
                is_clean = is_clean and all(role.is_closed and role.closed_cleanly for role in expected)
        self._children.kill_all()
        # If no Handler was ever started, no log was written and the marker of the last clean stop still exists.
        if not is_clean and self._table.of(HANDLER):
            logger.warning("the stop was not clean: the next start recovers all logs")

    def _send(self, wave: tuple[str, ...], message: dict[str, Any]) -> None:
        for role in self._table.of(*wave):
            self._children.send(role, message)

    def _await(self, is_done: Callable[[ManagedRole], bool], wave: tuple[str, ...], deadline_ns: int) -> bool:
        """Run the supervisor's loop until `is_done` holds for every live role of the wave.

        Return False at the deadline.
        """
        while True:
            waiting = [r for r in self._table.of(*wave) if r.child is not None and not is_done(r)]
            if not waiting:
                return True
            left_ms = (deadline_ns - self._clock.now_ns()) // NS_PER_MS
            if left_ms <= 0:
                return False
            self._turn(min(_TURN_MS_MAX, left_ms))
