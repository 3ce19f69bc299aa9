"""Children: when a role that died is restarted, and what its links and successors get."""

from __future__ import annotations

import pytest

from kproc.broker.role.roles import CONTROLLER, handler_id, processor_id
from kproc.broker.supervisor.children import Children, describe_exit
from kproc.broker.supervisor.roles_table import ManagedRole, RolesTable
from kproc.broker.transport.agent import AgentId
from kproc.common.clock import ManualClock

SECOND_NS = 1_000_000_000


class Planner(Children):
    """Plans only: it forks nobody."""

    def __init__(self) -> None:
        self._clock = ManualClock()
        self.failures: list[str] = []
        self._on_failure = self.failures.append
        self.table = RolesTable()
        self.regions = FakeRegions()  # type: ignore[assignment]
        self.is_stopping = self.has_started = False
        self.changes = 0
        self.on_change = self._count_change

    def _count_change(self) -> None:
        self.changes += 1

    def start(self, role: ManagedRole, *, is_restart: bool) -> None:
        raise AssertionError(f"{role.agent} is started")

    def deaths(self, role: ManagedRole, *lived_ns: int) -> list[float]:
        """Milliseconds until the next start, after each death."""
        delays = []
        for each in lived_ns:
            self._plan_restart(role, each)
            delays.append((role.restart_at_ns - self._clock.now_ns()) / 1e6)
        return delays


def test_role_that_was_killed_starts_again_at_once() -> None:
    assert Planner().deaths(ManagedRole(handler_id(0)), *[60 * SECOND_NS] * 20) == [0.0] * 20


def test_role_dying_after_start_waits_longer_each_time() -> None:
    planner, role = Planner(), ManagedRole(handler_id(0))
    delays = planner.deaths(role, *[SECOND_NS // 10] * 8)
    assert delays == [0.0, 200.0, 400.0, 800.0, 1600.0, 3200.0, 5000.0, 5000.0]
    assert planner.failures == []


def test_ninth_quick_death_ends_broker_that_was_never_ready() -> None:
    planner, role = Planner(), ManagedRole(handler_id(0))
    planner.deaths(role, *[0] * 9)
    (failure,) = planner.failures
    assert "handler-0 ended 9 times in a row" in failure


def test_role_that_keeps_dying_never_ends_a_broker_that_serves() -> None:
    planner = Planner()
    planner.has_started = True
    role = planner.table.add(handler_id(0))
    assert planner.deaths(role, *[0] * 100)[8:12] == [25_600.0, 51_200.0, 60_000.0, 60_000.0]
    assert planner.failures == []
    assert role.state == "down"
    assert planner.problem == "handler-0 ended 100 times in a row right after its start"
    assert planner.next_restart_ns() == planner._clock.now_ns() + 60 * SECOND_NS
    role.child = object()  # type: ignore[assignment]
    assert planner.problem is None, "it is given another try"
    role.child = None
    planner.deaths(role, 3 * SECOND_NS)
    assert role.state == "restarting"
    assert planner.problem is None


def test_stop_waits_for_no_restart() -> None:
    """The supervisor would look at once, again and again, until everything is drained."""
    planner = Planner()
    planner.has_started = True
    planner.deaths(planner.table.add(handler_id(0)), SECOND_NS // 10)
    assert planner.next_restart_ns() == planner._clock.now_ns()
    planner.is_stopping = True
    planner.restart_due()
    assert planner.next_restart_ns() is None


def test_role_that_lived_for_a_while_is_forgiven() -> None:
    planner, role = Planner(), ManagedRole(handler_id(0))
    planner.deaths(role, *[0] * 8)
    assert planner.deaths(role, 3 * SECOND_NS) == [0.0]
    assert planner.deaths(role, *[0] * 8)[-1] == 5000.0
    assert planner.failures == []


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exit status 0"),
        (70, "exit status 70"),
        (-9, "killed by SIGKILL"),
        (-200, "killed by signal 200"),
    ],
)
def test_exit_status_of_child_is_described(status: int, words: str) -> None:
    assert describe_exit(status) == words


def test_two_processors_share_one_pair_while_both_live() -> None:
    """A second pair would end the first, and what was under way on it would be in two hands."""
    planner = Planner()
    pairs = planner.regions
    one, two = (ManagedRole(processor_id(index), child=object()) for index in range(2))  # type: ignore[arg-type]
    planner.connect_migration(one, two)
    planner.connect_migration(two, one)
    assert isinstance(pairs, FakeRegions)
    assert len(pairs.pairs) == 1
    two.reset(0)  # Its successor.
    one.migrations.discard(two.agent)  # As at each exit.
    planner.connect_migration(one, two)
    assert len(pairs.pairs) == 2


def test_leaving_role_is_not_restarted() -> None:
    planner = Planner()
    role = planner.table.add(handler_id(0))
    planner.deaths(role, 0)
    assert planner.next_restart_ns() is not None
    role.mark_leaving()
    assert planner.next_restart_ns() is None
    planner.restart_due()


def test_restarted_controller_learns_roles_before_calls() -> None:
    events: list[str] = []

    class Restarter(Planner):
        def start(self, role: ManagedRole, *, is_restart: bool) -> None:
            assert is_restart
            events.append("start")
            role.child, role.restart_at_ns = FakeChild(), 0  # type: ignore[assignment]

        def introduce(self, role: ManagedRole) -> None:
            events.append("introduce")

    children = Restarter()
    children.on_change = lambda: events.append("tell")
    children.deaths(children.table.add(CONTROLLER), 0)
    children.restart_due()
    assert events == ["start", "tell", "introduce"]


def test_discarded_role_is_forgotten_after_its_death() -> None:
    planner = Planner()
    dead, user, controller, away = (
        planner.table.add(agent) for agent in (handler_id(1), processor_id(0), CONTROLLER, processor_id(1))
    )
    user.child, controller.child = FakeChild(), FakeChild()  # type: ignore[assignment]
    user.migrations.add(dead.agent)
    planner.discard(dead)
    for role in (user, controller):
        assert role.child.control.sent == [{"do": "detach", "peer": dead.agent, "is_final": True}]
    assert not user.migrations
    assert away.child is None
    assert planner.regions.released == [(dead.agent, True)]
    assert dead.agent not in planner.table
    assert planner.changes == 1, "what is shown has changed"


class FakeChild:
    """What is sent to it is kept."""

    def __init__(self) -> None:
        self.control = self
        self.sent: list[dict[str, object]] = []

    def send(self, message: dict[str, object]) -> None:
        self.sent.append(message)


class FakeRegions:
    def __init__(self) -> None:
        self.pairs: list[tuple[object, object]] = []
        self.released: list[tuple[AgentId, bool]] = []

    def release(self, agent: AgentId, *, is_final: bool = False) -> None:
        self.released.append((agent, is_final))

    def connect_migration(self, one: object, other: object) -> None:
        self.pairs.append((one, other))

    def close(self) -> None:
        """Nothing is left to release."""


class HungChild:
    """A child that does not end by itself."""

    def __init__(self) -> None:
        self.is_killed = False

    def kill(self) -> None:
        self.is_killed = True

    def reap(self) -> int:
        assert self.is_killed, "reaping a child that runs would block"
        return -9


@pytest.mark.parametrize(("was_stopped", "lines"), [(True, 1), (False, 0)])
def test_only_stopped_children_are_reported_as_late(
    caplog: pytest.LogCaptureFixture, was_stopped: bool, lines: int
) -> None:
    """A start that fails, such as by a bad note of a reload, kills its children without a line about them."""
    planner, child = Planner(), HungChild()
    role = planner.table.add(CONTROLLER)
    role.child = child  # type: ignore[assignment]
    if was_stopped:
        planner.kill_all()
    planner.close()
    assert (child.is_killed, role.child, planner.is_stopping) == (True, None, True)
    assert ["did not end in time" in record.message for record in caplog.records] == [True] * lines
