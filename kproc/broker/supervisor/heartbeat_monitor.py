"""HeartbeatMonitor: detects roles that hang without dying, by the heartbeats in their rows of the slab.

A busy role stores its row about ten times a second, an idle one twice. A role that stores no row for kproc.hung.ms is
stopped (SIGSTOP, a debugger), stuck in a loop, or waits for a disk. `kproc status` reports it, and the log has one line
when the role begins to hang and one when it continues. Only kproc.hung.kill lets the supervisor kill it, because a kill
loses requests that a pause does not lose. A Handler that recovers a large log stores no row either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kproc.broker.role.roles import CLEANER
from kproc.broker.supervisor.children import Children
from kproc.broker.supervisor.roles_table import ManagedRole
from kproc.common.clock import NS_PER_MS

logger = logging.getLogger(__name__)

_CHECK_NS: Final = 500_000_000
# If the supervisor's own loop did not run for this long, all processes may have been stopped, for example with the
# host. Heartbeats before such a gap count as new.
_GAP_NS: Final = 2_500_000_000


class HeartbeatMonitor:
    """Marks and logs hung roles, and kills them if kproc.hung.kill is set.

    One per supervisor, which calls `check` at every turn of its loop, at least once a second.
    """

    def __init__(self, children: Children, *, on_change: Callable[[], None]) -> None:
        config = children.plan.config
        self._children = children
        self._clock = children.plan.clock
        self._hung_ns = config.kproc_hung_ms * NS_PER_MS
        self._kills = config.kproc_hung_kill
        self._on_change = on_change
        self._next_ns = 0
        self._seen_ns = self._since_ns = self._clock.now_ns()

    def check(self) -> None:
        """Compare every ready role's last heartbeat with the clock, at most once per _CHECK_NS."""
        now_ns = self._clock.now_ns()
        if now_ns < self._next_ns or not self._hung_ns:
            return
        # A suspended laptop or a paused container stops the roles together with the supervisor. After such a gap
        # measure from now, or all roles would count as hung.
        if now_ns - self._seen_ns > _GAP_NS:
            self._since_ns = now_ns
        self._next_ns, self._seen_ns = now_ns + _CHECK_NS, now_ns
        for role in self._children.table:
            if role.child is not None and role.is_ready:
                self._check_role(role, now_ns)

    def silent(self, limit_ns: int) -> str | None:
        """Return the name and pid of a running role without a duty cycle for `limit_ns`, or None if every role had one.

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
        # The slab row survives a restart, so its heartbeat may be the dead predecessor's. Count from the start then.
        return now_ns - max(beat_ns, role.started_ns, self._since_ns)

    def _check_role(self, role: ManagedRole, now_ns: int) -> None:
        silent_ns = self._silent_ns(role, now_ns)
        was_hung = role.hung_ms > 0
        role.hung_ms = silent_ns // NS_PER_MS if silent_ns >= self._hung_ns else 0
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
