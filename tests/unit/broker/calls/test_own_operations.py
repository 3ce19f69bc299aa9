"""kproc's own operations, API key 30000: an invalid body is answered by one line and sent to no other role."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import orjson
import pytest

from kproc.broker.calls.own_operations import InvalidOperation, KillClient, Scale, decode_operation
from tests.fuzz.values import odd_json


@pytest.mark.parametrize("body", [{"op": "scale", "processors": 2}, {"op": "kill-client", "id": "x", "y": 1}])
def test_decode_operation_accepts_what_clients_send(body: dict[str, Any]) -> None:
    assert decode_operation(memoryview(orjson.dumps(body))) in (Scale(processors=2), KillClient("x"))


@pytest.mark.parametrize("seed", range(20))
def test_random_json_is_answered_or_valid(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
        with suppress(InvalidOperation):
            decode_operation(memoryview(odd_json(chance)))
