"""HeartbeatMonitor: detects roles that hang without dying, by the heartbeats in their rows of the slab.

A busy role stores its row about ten times a second, an idle one twice. A role that does not is stopped (SIGSTOP, a
debugger), stuck in a loop, or waits for a disk. `kproc status` reports it, and the log has one line when it begins to
hang and one when it continues. It is killed only with kproc.hung.kill, because a kill loses requests that a pause would
not lose, and a Handler that recovers a large log does not store its row either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kproc.broker.role.roles import CLEANER
from kproc.broker.supervisor.children import Children
from kproc.broker.supervisor.roles_table import ManagedRole

logger = logging.getLogger(__name__)

_CHECK_NS: Final = 500_000_000
# If the supervisor's own loop did not run for this long, all processes may have been stopped, for example with the
# host. Heartbeats from before then count as new.
_GAP_NS: Final = 2_500_000_000


class HeartbeatMonitor:
    """Marks hung roles. One per supervisor, which calls `check` at every turn of its loop, at least once a second."""

    def __init__(self, children: Children, *, on_change: Callable[[], None]) -> None:
        config = children.plan.config
        self._children = children
        self._clock = children.plan.clock
        self._hung_ns = config.kproc_hung_ms * 1_000_000
        self._kills = config.kproc_hung_kill
        self._on_change = on_change
        self._next_ns = 0
        self._seen_ns = self._since_ns = self._clock.now_ns()

    def check(self) -> None:
        """Compare every ready role's last heartbeat with the clock, at most once per _CHECK_NS."""
        now_ns = self._clock.now_ns()
        if now_ns < self._next_ns or not self._hung_ns:
            return
        # A laptop that slept or a paused container stopped the roles together with us. Without this, all of them would
        # count as hung for the first moment.
        if now_ns - self._seen_ns > _GAP_NS:
            self._since_ns = now_ns
        self._next_ns, self._seen_ns = now_ns + _CHECK_NS, now_ns
        for role in self._children.table:
            if role.child is not None and role.is_ready:
                self._check_role(role, now_ns)

    def silent(self, limit_ns: int) -> str | None:
        """Return a running role without a duty cycle for that long, or None.

        The cleaner does not count: no client waits for it, and after a restart it would do the same work again.
        """
        now_ns = self._clock.now_ns()
        for role in self._children.table:
            if role.agent == CLEANER or role.child is None or not role.is_ready:
                continue
            if self._silent_ns(role, now_ns) >= limit_ns:
                return f"{role.agent} (pid {role.child.pid})"
        return None

    def _silent_ns(self, role: ManagedRole, now_ns: int) -> int:
        beat_ns = self._children.regions.heartbeat_ns(role.agent)
        # The row survives a restart, so the beat in it may be the predecessor's.
        return now_ns - max(beat_ns, role.started_ns, self._since_ns)

    def _check_role(self, role: ManagedRole, now_ns: int) -> None:
        silent_ns = self._silent_ns(role, now_ns)
        was_hung = role.hung_ms > 0
        role.hung_ms = silent_ns // 1_000_000 if silent_ns >= self._hung_ns else 0
        if role.hung_ms and not was_hung:
            assert role.child is not None
            logger.warning(
                "%s (pid %d) hangs: no duty cycle for %d ms", role.agent, role.child.pid, role.hung_ms
            )
            if self._kills:
                logger.error("killing %s: kproc.hung.kill is set", role.agent)
                role.child.kill()
        elif was_hung and not role.hung_ms:
            logger.warning("%s runs again after a hang", role.agent)
        if role.hung_ms or was_hung:
            self._on_change()
