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

    def quota(host: str) -> list[Reply]:
        op = {"key": "connection_creation_rate", "value": 5.0, "remove": False}
        entry = {"entity": [{"entity_type": "ip", "entity_name": host}], "ops": [op]}
        return peers[0].ask("alter_client_quotas", entries=[entry], validate_only=False)

    named, unknown, literal = quota("one.example"), quota("nowhere.example"), quota("10.0.0.2")
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
