"""/health/live and /health/ready, from the rows of the roles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from kproc.broker.observe import health
from kproc.broker.observe.status import Status

Rows = list[dict[str, Any]]


def row(
    role: str, index: int = 0, state: str = "running", restarts: int = 0, pool: str = ""
) -> dict[str, Any]:
    return {
        "role": role, "index": index, "pid": 7, "state": state, "restarts": restarts, "hung_ms": 0, "pool": pool,
    }  # fmt: skip


def ask(path: str, rows: Rows, *, phase: str = health.RUNNING, full: str | None = None) -> tuple[int, Any]:
    status = SimpleNamespace(
        processes=rows, phase=phase, problem=None, disk=SimpleNamespace(problem=full)
    )  # fmt: skip
    found = health.answer(f"/health/{path}", cast(Status, status))
    assert found is not None
    return found[0], orjson.loads(found[1])


WELL = [
    row("supervisor"),
    row("controller"),
    row("acceptor"),
    row("processor"),
    row("handler"),
    row("handler", 1),
]


def test_broker_whose_roles_run_is_alive_and_ready() -> None:
    for path in ("live", "ready"):
        code, body = ask(path, WELL)
        assert (code, body["status"], body["roles_not_running"]) == (200, "ok", [])


@pytest.mark.parametrize("state", ["hung", "down", "restarting"])
def test_role_not_running_makes_broker_not_ready_and_is_named(state: str) -> None:
    rows = [*WELL[:-1], row("handler", 1, state)]
    code, body = ask("ready", rows)
    assert code == 503
    assert [(each["role"], each["index"], each["state"]) for each in body["roles_not_running"]] == [
        ("handler", 1, state)
    ]
    assert ask("live", rows)[0] == 200, "starting it again would cost more than it brings"


def test_broker_of_which_no_handler_works_is_not_alive() -> None:
    rows = [*WELL[:-2], row("handler", 0, "hung"), row("handler", 1, "down")]
    code, body = ask("live", rows)
    assert code == 503
    assert body["reason"] == "every handler hangs or is down"


def test_control_listeners_roles_serve_no_clients() -> None:
    rows = [*WELL[:3], row("processor", 0, "hung"), row("processor", 447, pool="control"), *WELL[4:]]
    assert ask("live", rows)[0] == 503


@pytest.mark.parametrize("phase", [health.STARTING, health.STOPPING])
def test_broker_is_live_but_not_ready_before_open_and_in_stop(phase: str) -> None:
    assert ask("ready", WELL, phase=phase)[0] == 503
    assert ask("ready", WELL, phase=phase)[1]["reason"] == phase
    assert ask("live", [row("handler", 0, "down")], phase=phase)[0] == 200


def test_added_role_keeps_ready_restarting_role_does_not() -> None:
    assert ask("ready", [*WELL, row("handler", 2, "starting")])[0] == 200
    assert ask("ready", [*WELL, row("handler", 2, "starting", restarts=1)])[0] == 503


def test_full_disk_is_reported_and_broker_stays_ready() -> None:
    code, body = ask("ready", WELL, full="the disk is full")
    assert (code, body["problem"]) == (200, "the disk is full")


def test_other_paths_are_not_its_business() -> None:
    assert health.answer("/metrics", cast(Status, SimpleNamespace(processes=[]))) is None
