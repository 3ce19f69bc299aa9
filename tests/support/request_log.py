"""The request log of a Handler: switch it on, read its lines."""

from __future__ import annotations

from typing import Any

import orjson

from tests.support.handler_rig import HandlerRig
from tests.support.in_memory_controller import changes

TOPIC, BROKER, LOGGER = 2, 4, 8


# -- over a Handler ------------------------------------------------------------------------------------------


def switch(rig: HandlerRig, mode: str, **more: str) -> None:
    rows = [
        ("kproc.request.log", 0, mode),
        *((key.replace("_", "."), 0, value) for key, value in more.items()),
    ]
    (answer,) = rig.cluster.alter(changes(BROKER, "", *rows))
    assert answer["error_code"] == 0, answer
    rig.tell()


def lines(rig: HandlerRig, index: int = 0) -> list[dict[str, Any]]:
    path = rig.directory / f"requests-handler-{index}.log"
    return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
