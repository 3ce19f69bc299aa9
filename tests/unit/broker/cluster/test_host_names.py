"""Host names in changes are resolved before the change is decided."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kproc.broker.role.lookups import Lookups
from kproc.broker.role.roles import handler_id
from tests.support.controller_rig import ControllerRig, Reply, ScriptedPeer
from tests.support.wait import PATIENCE_SECONDS


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ControllerRig]:
    with ExitStack() as stack:
        yield ControllerRig(stack, tmp_path)


@pytest.fixture
def peers(rig: ControllerRig) -> tuple[ScriptedPeer, ScriptedPeer]:
    return rig.attach(handler_id(0)), rig.attach(handler_id(1))


def set_quota(peer: ScriptedPeer, host: str) -> list[Reply]:
    op = {"key": "connection_creation_rate", "value": 5.0, "remove": False}
    entry = {"entity": [{"entity_type": "ip", "entity_name": host}], "ops": [op]}
    return peer.ask("alter_client_quotas", entries=[entry], validate_only=False)


def test_host_name_lookup_delays_no_other_change(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]
) -> None:
    answers = threading.Event()

    def look_up(host: str) -> list[str]:
        answers.wait(PATIENCE_SECONDS)
        if host == "nowhere.example":
            raise OSError("Name or service not known")
        return ["10.0.0.1"]

    lookups = rig.controller._lookups = Lookups(rig.clock.now_ns, look_up)

    hosts = ("one.example", "nowhere.example", "10.0.0.2")
    named, unknown, literal = (set_quota(peers[0], each) for each in hosts)
    rig.settle()
    assert literal[0]["entries"][0]["error_code"] == 0, "it waits for no name server"
    assert named == unknown == []
    assert not rig.controller.is_drained()
    answers.set()
    lookups.wait(PATIENCE_SECONDS)
    rig.settle()
    assert named[0]["entries"][0]["error_code"] == 0
    assert "nowhere.example is not a valid IP or resolvable host" in unknown[0]["entries"][0]["error_message"]
    assert rig.settings[-1].ip_rates == {"10.0.0.2": 5.0, "one.example": 5.0}


def test_scope_of_missing_interface_is_rejected(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]
) -> None:
    """Kafka calls InetAddress.getByName, which accepts any number as a scope."""
    hosts = ("fe80::1%lo", "::1%lo", "fe80::1%4711", "fe80::1%nosuch")
    *known, missing = (set_quota(peers[0], each) for each in hosts)
    listeners = {"name": "listeners", "config_operation": 0, "value": "PLAINTEXT://[::1%nosuch]:0"}
    resource = {"resource_type": 4, "resource_name": "1", "configs": [listeners]}
    bound = peers[0].ask("incremental_alter_configs", resources=[resource], validate_only=False)
    rig.settle()
    rig.controller._lookups.wait(PATIENCE_SECONDS)
    rig.settle()
    assert [each[0]["entries"][0]["error_code"] for each in known] == [0, 0, 0]
    message = missing[0]["entries"][0]["error_message"]
    assert message == "fe80::1%nosuch is not a valid IP or resolvable host."
    assert "cannot resolve the host of PLAINTEXT://[::1%nosuch]:0" in bound[0]["responses"][0]["error_message"]
