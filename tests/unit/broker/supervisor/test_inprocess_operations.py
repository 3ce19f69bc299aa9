"""Requests of the controller that a broker without processes handles: time, snapshots, and those it rejects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kproc.broker.role.control_requests import MOVE_TIME, SNAPSHOTS
from kproc.broker.role.roles import CLEANER, CONTROLLER
from kproc.broker.supervisor.inprocess_operations import InProcessOperations
from kproc.broker.supervisor.role_threads import RoleThreads
from kproc.broker.supervisor.snapshots import Snapshots
from kproc.broker.transport.agent import AgentId
from kproc.common.clock import SystemClock
from kproc.common.movable_clock import MovableClock
from tests.support.scripted_agent import ScriptedAgent


class Roles:
    """The operations of a broker whose roles are scripted, and the replies to the controller."""

    def __init__(self, data: Path, movable: MovableClock | None = None) -> None:
        self.controller, self.handler, self.cleaner = self.agents = [
            ScriptedAgent(agent_id=each) for each in (CONTROLLER, AgentId("handler", 0), CLEANER)
        ]
        self.replies: list[dict[str, Any]] = []
        self.wakes = 0
        self.restores = 0
        threads = RoleThreads({})
        self.operations = InProcessOperations(
            self.agents,
            threads,
            movable,
            snapshots=Snapshots(data, threads.pause_writers, self._restore),
            wake_main=self._wake_main,
        )

    def send(self, what: str, **body: Any) -> None:
        self.operations.handle(what, body, self.replies.append)

    def _restore(self) -> None:
        self.restores += 1

    def _wake_main(self) -> None:
        self.wakes += 1


def test_change_of_the_number_of_roles_is_rejected(tmp_path: Path) -> None:
    roles = Roles(tmp_path)
    roles.send("scale", processors=2)
    [reply] = roles.replies
    assert reply["counts"] == {"processors": 0, "handlers": 1}
    assert "kproc.transport=process can" in reply["error"]


def test_time_without_a_movable_clock_is_not_moved(tmp_path: Path) -> None:
    roles = Roles(tmp_path)
    roles.send(MOVE_TIME, action="freeze", ms=0)
    assert "kproc.time.movable=true" in roles.replies[0]["error"]
    assert not roles.handler.following


def test_moved_time_reaches_the_cleaner_after_all_other_roles(tmp_path: Path) -> None:
    roles = Roles(tmp_path, MovableClock(SystemClock()))
    roles.send(MOVE_TIME, action="show", ms=0)
    assert [reply["is_frozen"] for reply in roles.replies] == [False]
    roles.send(MOVE_TIME, action="freeze", ms=0)
    roles.controller.following.pop()()
    assert not roles.cleaner.following
    roles.handler.following.pop()()
    assert len(roles.replies) == 1
    roles.cleaner.following.pop()()
    assert [reply["is_frozen"] for reply in roles.replies] == [False, True]


def test_snapshot_is_made_by_the_main_thread(tmp_path: Path) -> None:
    roles = Roles(tmp_path)
    (tmp_path / "t-0").mkdir()
    roles.send(SNAPSHOTS, do="snapshot", snapshot=None)
    assert (roles.wakes, roles.replies) == (1, [])
    roles.operations.handle_snapshot_requests()
    name = roles.replies[0]["snapshot"]
    roles.send(SNAPSHOTS, do="restore", snapshot=name)
    roles.operations.handle_snapshot_requests()
    assert (roles.replies[1:], roles.restores) == ([{}], 1)
