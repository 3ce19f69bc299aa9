"""A controller without its process, and two Handlers as its peers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kproc.broker.role.roles import handler_id
from tests.support.controller_rig import ControllerRig, ScriptedPeer


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ControllerRig]:
    with ExitStack() as stack:
        yield ControllerRig(stack, tmp_path)


@pytest.fixture
def peers(rig: ControllerRig) -> tuple[ScriptedPeer, ScriptedPeer]:
    return rig.attach(handler_id(0)), rig.attach(handler_id(1))
