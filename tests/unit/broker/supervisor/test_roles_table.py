"""RolesTable: the state of a managed role."""

from __future__ import annotations

from kproc.broker.role.roles import handler_id
from kproc.broker.supervisor.roles_table import ManagedRole


def test_state_of_a_role_follows_its_child() -> None:
    role = ManagedRole(handler_id(0))
    assert role.state == "restarting"
    role.child = object()  # type: ignore[assignment]
    assert role.state == "starting"
    role.is_ready = True
    assert role.state == "running"
    role.is_leaving = True
    assert role.state == "leaving"
    role.hung_ms = 5000
    assert role.state == "hung"
