"""Roles of a broker that cannot be killed or paused, or do not come back. Success: clients/test_process_faults."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from kproc.client import ClientError
from kproc.common.sessions import start_ticks, stat_fields
from kproc.embedded import BrokerFailed, roles
from kproc.embedded.roles import PausedRoles, kill_role
from tests.support.wait import wait_until


class ScriptedStatus:
    """Clients of a broker whose status a test writes. Each answer is an error or rows of processes."""

    def __init__(self, *answers: list[dict[str, Any]] | ClientError) -> None:
        self._answers = list(answers)
        self.timeout_ms = 0

    def __call__(self) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def operate(self, name: str) -> dict[str, Any]:
        assert name == "status"
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(found, ClientError):
            raise found
        return {"transport": "process", "processes": found}


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as running:
        yield running
        running.kill()


def row(pid: int, ticks: int | None = None, state: str = "running") -> dict[str, Any]:
    started = start_ticks(pid) if ticks is None else ticks
    return {"role": "handler", "index": 0, "pid": pid, "start_ticks": started, "state": state}


def test_pid_of_another_process_gets_no_signal(child: subprocess.Popen[bytes]) -> None:
    """The role has died since the status, and the kernel has given its pid to another process."""
    with pytest.raises(BrokerFailed, match="handler 0 has just ended by itself"):
        kill_role(ScriptedStatus([row(child.pid, ticks=1)]), "handler", 0, wait=True, timeout_s=1)
    assert child.poll() is None


def test_role_that_ends_before_its_pause_is_reported(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role dies after the check of its start time, and gets no signal any more."""

    def last_ticks(pid: int) -> int:
        ticks = start_ticks(pid)
        child.kill()
        child.wait()
        return ticks

    status = ScriptedStatus([row(child.pid)])
    monkeypatch.setattr(roles, "start_ticks", last_ticks)
    with pytest.raises(BrokerFailed, match="handler 0 has just ended by itself"):
        PausedRoles(status).pause("handler", 0, ttl_ms=60_000)


def test_role_without_successor_is_reported_with_its_state(child: subprocess.Popen[bytes]) -> None:
    states = [[row(child.pid)], ClientError("lost"), [row(0, ticks=0, state="restarting")]]
    with pytest.raises(BrokerFailed, match=r"handler 0 does not serve after 0\.05 s: it is restarting"):
        kill_role(ScriptedStatus(*states), "handler", 0, wait=True, timeout_s=0.05)
    assert child.wait() == -signal.SIGKILL
    with pytest.raises(BrokerFailed, match="handler 0 has no process now: it is restarting"):
        kill_role(ScriptedStatus(states[-1]), "handler", 0, wait=True, timeout_s=1)


def test_paused_role_that_is_killed_meanwhile_needs_a_successor(child: subprocess.Popen[bytes]) -> None:
    answers = ScriptedStatus([row(child.pid)], [row(child.pid, state="hung")], [row(os.getpid())])
    with PausedRoles(answers).paused("handler", 0, wait=True, timeout_s=60):
        child.kill()
        child.wait()


def test_block_of_a_role_that_a_stop_has_resumed_is_left(child: subprocess.Popen[bytes]) -> None:
    """The broker is gone then. A stop would otherwise wait for the paused role until its timeout."""
    roles = PausedRoles(ScriptedStatus([row(child.pid)], ClientError("the broker is gone")))
    with roles.paused("handler", 0, wait=True, timeout_s=60):
        assert stat_fields(child.pid)[0] == b"T"
        roles.resume_all()
        wait_until(lambda: stat_fields(child.pid)[0] != b"T", what="the role continues")
