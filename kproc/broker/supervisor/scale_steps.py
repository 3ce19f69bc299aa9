"""ScaleSteps: the steps of one change of the numbers of Processors and Handlers, or of the listeners.

A change is a generator. It yields a condition to wait for, and the Scaler (scale.py) continues it when the condition is
true. Every condition also becomes true when the role concerned dies, so a change always ends, in a consistent state:
children.py restarts a role that stays and does not restart a role that leaves. A new role that cannot start makes its
change fail.

listener, new        bind, tell Handlers, start its Acceptor
                     (if it cannot be opened, it is skipped until `listeners` changes again; kproc status shows it)
listener, gone       close the port, end its Acceptor, close its connections
Processors, more     start, link, ready; tell the Acceptors; spread connections
Processors, fewer    Acceptors stop using them; they migrate connections to other Processors, drain, close, detach
Handlers, more       start, link, ready; the routing table includes them, partitions are transferred
Handlers, fewer      the routing table excludes them; they transfer partitions and park no requests any more;
                     Processors assign their connections another home; drained and unused, close, detach

If one part of a change fails, the other parts are carried out. The failed part is retried when the settings change
again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import Any, Final

import msgspec

from kproc.broker.cluster.dynamic_settings import listeners_in_force, processors_in_force
from kproc.broker.cluster.role_counts import IO_THREADS
from kproc.broker.config import Config, EndPoint
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.role.roles import (
    ACCEPTOR,
    CONTROLLER,
    PROCESSOR,
    acceptor_id,
    handler_id,
    is_control,
    processor_id,
)
from kproc.broker.supervisor.balance import Balancer
from kproc.broker.supervisor.children import Children
from kproc.broker.supervisor.listener_set import NO_PLACES, ListenerSet
from kproc.broker.supervisor.roles_table import ManagedRole
from kproc.common.clock import NS_PER_MS
from kproc.common.errors import FatalError

logger = logging.getLogger(__name__)

Condition = Callable[[], bool]
Steps = Generator[Condition, None, None]
_START_NS: Final = 30_000_000_000
# Longest drain of a leaving role. A request can take any time, for example a Produce that waits for a slow disk. After
# this time the role is closed, and its remaining connections are closed as if it had died.
_LEAVE_NS: Final = 60_000_000_000
_CLOSE_NS: Final = 10_000_000_000


class ScaleFailed(Exception):
    """A part of a change failed. The message names the reason."""


class TargetState(msgspec.Struct):
    """The numbers of Processors and Handlers, and the listeners, that the settings in force require."""

    handlers: int
    pools: dict[str, int]  # By listener; "" is the common set, of all listeners without a set of their own.
    listeners: dict[str, EndPoint]

    @classmethod
    def of(cls, config: Config, settings: DynamicSettings) -> TargetState:
        """Return the state that the settings require. Skip sets of Processors whose listener does not exist."""
        listeners = {each.name: each for each in listeners_in_force(config, settings)}
        pools = processors_in_force(config, settings)
        return cls(settings.integer(IO_THREADS, config.num_io_threads), pools, listeners)


class ScaleSteps:
    """The steps of changes, one object per supervisor. `change` returns a change as a generator.

    The other public fields have its results.
    """

    def __init__(self, children: Children, listeners: ListenerSet) -> None:
        self._children = children
        self._table = children.table
        self._clock = children.plan.clock
        self._listeners = listeners
        self._deadline_ns = 0  # The end of the present wait; 0: it has none.
        self._is_late = False  # True if the present wait has passed its deadline.
        self.balancer = Balancer(children)
        self.done: list[dict[str, Any]] = []  # The parts that were carried out, for `kproc scale`.
        self.errors: list[str] = []  # Errors of the last change.
        # Listeners that could not be opened, with the reasons. They are retried only after `listeners` has changed.
        self.skipped: dict[EndPoint, str] = {}

    def fail(self, why: str) -> None:
        """Record an error of the present change."""
        logger.error("%s", why)
        self.errors.append(why)

    def reachable(self, wanted: TargetState) -> dict[str, EndPoint]:
        """Return the wanted listeners without those that could not be opened."""
        return {name: each for name, each in wanted.listeners.items() if each not in self.skipped}

    def should_continue(self, condition: Condition) -> bool:
        """Return True if the condition that the change waits for is true, or the deadline of the wait has passed."""
        self._is_late = bool(self._deadline_ns) and self._clock.now_ns() >= self._deadline_ns
        return self._is_late or condition()

    # -- one change --------------------------------------------------------------------------------------------

    def change(self, wanted: TargetState) -> Steps:
        """Carry out one change in an order that always leaves roles to which connections and partitions can move.

        Roles are added before others are removed. Listeners change before the sets of Processors that serve them.
        """
        yield from self._change_listeners(wanted)
        if wanted.handlers > (have := len(self._table.handlers())):
            yield from self._part("handlers", have, wanted.handlers, self._add_handlers(wanted.handlers))
        before = self._table.pools()
        for pool, count in wanted.pools.items():
            if count > (have := before.get(pool, 0)):
                what = f"processors {pool}".rstrip()
                yield from self._part(what, have, count, self._add_processors(pool, count - have))
        for pool, have in before.items():
            if (count := wanted.pools.get(pool, 0)) < have:
                what = f"processors {pool}".rstrip()
                yield from self._part(what, have, count, self._remove_processors(pool, have - count))
        if wanted.handlers < (have := len(self._table.handlers())):
            yield from self._part("handlers", have, wanted.handlers, self._remove_handlers(wanted.handlers))

    def _part(self, what: str, before: int, after: int, steps: Steps) -> Steps:
        """Carry out one part of a change: run `steps` to bring the number of `what` from `before` to `after`.

        If the part fails, record the error, so that the other parts are still carried out.
        """
        try:
            yield from self._logged_part(what, before, after, steps)
        except ScaleFailed as failure:
            self.fail(str(failure))

    def _logged_part(self, what: str, before: int, after: int, steps: Steps) -> Steps:
        began_ns = self._clock.now_ns()
        logger.info("scaling %s: from %d to %d", what, before, after)
        yield from steps
        took_ms = (self._clock.now_ns() - began_ns) // NS_PER_MS
        logger.info("scaled %s: from %d to %d in %d ms", what, before, after, took_ms)
        self.done.append({"what": what, "from": before, "to": after, "took_ms": took_ms})

    def _wait(self, condition: Condition, timeout_ns: int) -> Generator[Condition, None, bool]:
        """Wait until a condition is true. Return False if the condition is still false after `timeout_ns`."""
        self._deadline_ns = self._clock.now_ns() + timeout_ns
        yield condition
        self._deadline_ns = 0
        return not self._is_late or condition()

    # -- Processors --------------------------------------------------------------------------------------------

    def _add_processors(self, pool: str, count: int) -> Steps:
        taken = {role.agent.index for role in self._table.of(PROCESSOR) if not is_control(role.agent)}
        # Use the lowest free indexes, because each index has its own row in the slab, and rows are never removed.
        free = [index for index in range(len(taken) + count) if index not in taken]
        yield from self._start([self._table.add(processor_id(index), pool=pool) for index in free[:count]])
        self.assign_acceptors()
        yield from self.balancer.spread(pool)

    def _remove_processors(self, pool: str, count: int) -> Steps:
        """Remove the Processors with the highest indexes of a set.

        If no Processor of the set remains, their connections migrate to the common set.
        """
        roles = self._table.processors(pool)
        leaving = roles[len(roles) - count :]
        for role in leaving:
            role.mark_leaving()
        staying = self._table.processors(pool) or self._table.processors("")
        assert staying, "no count is below 1"
        # First let the Acceptors stop using the leaving Processors. Otherwise these would get new connections while
        # they migrate theirs.
        self.assign_acceptors()
        for role in leaving:
            role.targets = tuple(each.agent for each in staying)
            for target in staying:
                self._children.connect_migration(role, target)
            self._children.send(role, {"do": "leave", "targets": role.targets})
        if not (
            yield from self._wait(lambda: all(r.child is None or r.is_drained for r in leaving), _LEAVE_NS)
        ):
            logger.warning("closing Processors, and with them connections that did not migrate in time")
        yield from self._close(leaving)

    def assign_acceptors(self) -> None:
        """Send each Acceptor the list of Processors that serve its listener."""
        listeners = self._listeners.names()
        pools = self._table.pools()
        for role in self._table.of(ACCEPTOR):
            if is_control(role.agent) or role.is_leaving:
                continue
            pool = listeners[role.agent.index].lower()
            serving = self._table.processors(pool if pool in pools else "")
            role.serving = tuple(each.agent for each in serving)
            self._children.send(role, role.serving_message())

    # -- listeners ---------------------------------------------------------------------------------------------

    def _change_listeners(self, wanted: TargetState) -> Steps:
        """Close removed listeners before opening new ones, which may use their ports.

        If no new listener can be opened, reopen the old ones, so that clients can connect and correct the setting.
        """
        names = self._listeners.names()
        before = {name: self._listeners.configured_endpoint(at) for at, name in names.items()}
        new = [each for name, each in self.reachable(wanted).items() if name not in before]
        if not (yield from self._listeners.has_free_indexes(len(new))):
            for end_point in new:
                self._skip_listener(end_point, f"listeners: cannot add {end_point}: {NO_PLACES}")
            new = []
        if not self.reachable(wanted):
            return  # Keep the present listeners, because without any no client could correct the setting.
        for index in [at for at, name in names.items() if name not in wanted.listeners]:
            yield from self._part(f"listener {names[index]}", 1, 0, self._remove_listener(index))
        yield from self._try_listeners(new)
        if not self._listeners.names():
            logger.error(
                "listeners: none of the new listeners can be opened; opening the previous ones again"
            )
            yield from self._try_listeners(list(before.values()))
        self._children.on_change()

    def _try_listeners(self, end_points: list[EndPoint]) -> Steps:
        """Open these listeners. Skip a listener that cannot be opened, so that the rest of the change goes on."""
        for end_point in end_points:
            try:
                yield from self._logged_part(
                    f"listener {end_point.name}", 0, 1, self._add_listener(end_point)
                )
                self.skipped.pop(end_point, None)
            except ScaleFailed as failure:
                self._skip_listener(end_point, str(failure))

    def _skip_listener(self, end_point: EndPoint, why: str) -> None:
        logger.error("%s", why)
        self.skipped[end_point] = why

    def _add_listener(self, end_point: EndPoint) -> Steps:
        try:
            role = yield from self._listeners.add(end_point)
        except FatalError as error:
            raise ScaleFailed(str(error)) from error
        try:
            yield from self._start([role])
        except ScaleFailed:
            self._listeners.close(role.agent.index)
            yield from self._listeners.release_index(role.agent.index)
            raise
        self.assign_acceptors()

    def _remove_listener(self, index: int) -> Steps:
        role = self._table[acceptor_id(index)]
        role.mark_leaving()
        self._listeners.close(index)
        self._children.send(role, {"do": "stop"})
        yield from self._wait(lambda: role.child is None or role.is_drained, _CLOSE_NS)
        yield from self._close([role])
        yield from self._listeners.release_index(index)

    # -- Handlers ----------------------------------------------------------------------------------------------

    def _add_handlers(self, count: int) -> Steps:
        have = len(self._table.handlers())
        new = [self._table.add(handler_id(index)) for index in range(have, count)]
        yield from self._start(new)
        try:
            yield from self._count_handlers(count)
        except ScaleFailed:
            # The controller rejected the new count, so the routing table lacks the new Handlers, and they would never
            # own a partition. Remove them.
            yield from self._dismiss_handlers(new)
            raise

    def _remove_handlers(self, count: int) -> Steps:
        # Change the owners of partitions first, because leaving Handlers are drained only when others have claimed
        # their partitions.
        yield from self._count_handlers(count)
        yield from self._dismiss_handlers(self._table.handlers()[count:])

    def _dismiss_handlers(self, leaving: list[ManagedRole]) -> Steps:
        """Close Handlers that the routing table excludes, once they are drained and no Processor uses them."""
        for role in leaving:
            role.mark_leaving()
            self._children.send(role, {"do": "leave"})
            for user in self._table.of(PROCESSOR):
                if not is_control(user.agent) and user.child is not None:
                    role.users.add(user.agent)
                    self._children.send(user, {"do": "handler_leaving", "peer": role.agent})

        def is_free() -> bool:
            return all(role.child is None or (not role.users and role.is_drained) for role in leaving)

        if not (yield from self._wait(is_free, _LEAVE_NS)):
            logger.warning(
                "closing Handlers, although they have unfinished requests or Processors still use them"
            )
        yield from self._close(leaving)

    def _count_handlers(self, count: int) -> Steps:
        """Let the controller set the number of Handlers. Repeat the request if the controller dies before it replies.

        Raises ScaleFailed if the controller rejects the number.
        """
        # Set the number before the request, so that a controller that is restarted meanwhile starts with the new
        # number.
        before, self._children.handler_count = self._children.handler_count, count
        controller = self._table[CONTROLLER]
        while True:
            replies: list[dict[str, Any]] = []
            yield lambda: controller.is_ready and controller.child is not None
            self._children.send_request(controller, "set_handler_count", {"count": count}, replies.append)
            yield lambda replies=replies: bool(replies)  # type: ignore[misc]
            if not replies[0].get("lost"):
                if "failure" in replies[0]:
                    self._children.handler_count = before
                    raise ScaleFailed(
                        f"the controller cannot set the number of Handlers to {count}: {replies[0]['failure'][1]}"
                    )
                return

    # -- both --------------------------------------------------------------------------------------------------

    def _start(self, roles: list[ManagedRole]) -> Steps:
        """Start new roles and wait until they are ready. If one fails, remove all of them and raise ScaleFailed."""
        # Mark the roles as on trial: if one ends before it is ready, it gets no successor (Children._on_exit).
        for role in roles:
            role.is_trial = True
        problem = None
        try:
            for role in roles:
                # Start with is_restart, because the new Handler's partitions may be open in another Handler, or unclean
                # after another one's death.
                self._children.start(role, is_restart=True)
            for role in roles:
                self._children.introduce(role)
        except (OSError, FatalError) as error:
            problem = str(error)
        if problem is None:
            in_time = yield from self._wait(
                lambda: all(r.is_ready or r.child is None for r in roles), _START_NS
            )
            if all(role.is_ready and role.child is not None for role in roles):
                for role in roles:
                    role.is_trial = False
                return
            problem = "a new role ended at once" if in_time else "a new role was not ready in time"
        yield from self._close(roles)
        raise ScaleFailed(f"cannot start {', '.join(str(role.agent) for role in roles)}: {problem}")

    def _close(self, roles: list[ManagedRole]) -> Steps:
        """Let roles close their files and end. Kill a role that takes longer than _CLOSE_NS."""
        for role in roles:
            self._children.send(role, {"do": "close", "is_clean": True})
            if role.child is None and self._table.get(role.agent) is role:
                # The role was never forked, or died before it was marked as leaving. No exit event will remove it from
                # the table, so remove it now.
                self._children.discard(role)
        if not (yield from self._wait(lambda: all(role.child is None for role in roles), _CLOSE_NS)):
            for role in roles:
                if role.child is not None:
                    logger.warning("%s did not end in time: killing it", role.agent)
                    role.child.kill()
            yield lambda: all(role.child is None for role in roles)
