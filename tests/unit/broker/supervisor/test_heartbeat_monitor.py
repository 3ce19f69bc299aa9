"""HeartbeatMonitor: roles without a duty cycle are marked, reported once, and killed only where that is set."""

from __future__ import annotations

import pytest

from kproc.broker.config import Config
from kproc.broker.role.roles import CLEANER, handler_id
from kproc.broker.supervisor.heartbeat_monitor import HeartbeatMonitor
from kproc.broker.transport.agent import AgentId
from kproc.common.clock import ManualClock
from tests.support.scale_rig import FakeChildren, FakeRegions

HUNG_MS, TURN_MS = 5_000, 500
HANDLER = handler_id(0)


class Beats(FakeRegions):
    """Beats that are new, except for those of the roles that hang."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.last_ns: dict[AgentId, int] = {}

    def heartbeat_ns(self, agent: AgentId) -> int:
        return self.last_ns.get(agent, super().heartbeat_ns(agent))


class Killable(FakeChildren):
    pid = 77
    kills = 0

    def kill(self) -> None:
        self.kills += 1


class Rig:
    def __init__(self, **settings: object) -> None:
        config = Config.build({"kproc.hung.ms": HUNG_MS, **settings})
        self.children = Killable(config)
        self.beats = self.children.regions = Beats(self.children.clock)
        self.monitor = HeartbeatMonitor(self.children, on_change=self.children.on_change)  # type: ignore[arg-type]
        self.role = self.children.table.get(HANDLER)

    def hang(self, agent: AgentId = HANDLER) -> None:
        self.beats.last_ns[agent] = self.children.clock.now_ns()

    def pass_ms(self, duration_ms: int, *, turn_ms: int = TURN_MS) -> None:
        for _ in range(duration_ms // turn_ms):
            self.children.clock.advance_ms(turn_ms)
            self.monitor.check()


def test_role_without_a_beat_is_marked_until_it_beats_again(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.hang()
    rig.pass_ms(HUNG_MS - TURN_MS)
    assert (rig.role.hung_ms, rig.children.changes) == (0, 0)
    rig.pass_ms(2 * TURN_MS)
    assert rig.role.hung_ms == HUNG_MS + TURN_MS
    assert rig.children.changes == 2
    del rig.beats.last_ns[HANDLER]
    rig.pass_ms(2 * TURN_MS)
    assert (rig.role.hung_ms, rig.children.changes) == (0, 3)
    assert [record.message.split(":")[0] for record in caplog.records] == [
        f"{HANDLER} (pid 77) hangs",
        f"{HANDLER} runs again after a hang",
    ]
    assert rig.children.kills == 0


def test_hung_role_is_killed_once_if_that_is_set() -> None:
    rig = Rig(**{"kproc.hung.kill": True})
    rig.hang()
    rig.pass_ms(2 * HUNG_MS)
    assert rig.children.kills == 1


def test_hung_ms_0_switches_the_check_off() -> None:
    rig = Rig(**{"kproc.hung.ms": 0})
    rig.hang()
    rig.pass_ms(20_000)
    assert rig.role.hung_ms == 0


def test_roles_stopped_with_the_supervisor_are_not_hung() -> None:
    rig = Rig()
    rig.hang()
    rig.pass_ms(60_000, turn_ms=60_000)
    assert rig.role.hung_ms == 0
    rig.pass_ms(HUNG_MS - TURN_MS)
    assert rig.role.hung_ms == 0
    rig.pass_ms(TURN_MS)
    assert rig.role.hung_ms == HUNG_MS


def test_beat_of_a_dead_predecessor_does_not_count() -> None:
    rig = Rig()
    rig.hang()
    rig.pass_ms(HUNG_MS - TURN_MS)
    rig.role.started_ns = rig.children.clock.now_ns()
    rig.pass_ms(HUNG_MS - TURN_MS)
    assert rig.role.hung_ms == 0


def test_role_that_starts_or_is_away_is_not_checked() -> None:
    rig = Rig()
    other = rig.children.table.get(handler_id(1))
    rig.hang()
    rig.hang(handler_id(1))
    rig.role.is_ready, other.child = False, None
    rig.pass_ms(2 * HUNG_MS)
    assert (rig.role.hung_ms, other.hung_ms) == (0, 0)
    assert rig.monitor.silent(1_000_000) is None


def test_silent_names_a_role_without_a_beat_but_not_the_cleaner() -> None:
    rig = Rig()
    rig.hang(CLEANER)
    rig.pass_ms(2_000)
    assert rig.monitor.silent(1_000_000_000) is None
    rig.hang()
    rig.pass_ms(1_000)
    assert rig.monitor.silent(1_000_000_001) is None
    assert rig.monitor.silent(1_000_000_000) == f"{HANDLER} (pid 77)"
