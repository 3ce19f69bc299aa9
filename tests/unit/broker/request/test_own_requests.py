"""kproc's own operations as requests: odd and unknown ones get an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from kproc.broker.request.own_requests import PRIVATE_API_KEY
from kproc.broker.role.roles import CONTROLLER
from kproc.broker.transport.envelope import FLAG_LOOPBACK, SEND
from tests.support.handler_rig import HandlerRig, parts_of

ODD = [
    b"",
    b"5",
    b"null",
    b'"op"',
    b"[]",
    b"{}",
    b'{"op":5}',
    b'{"op":null}',
    b'{"op":true}',
    b'{"op":1.5}',
    b'{"op":[]}',
    b'{"op":["status"]}',
    b'{"op":{"a":1}}',
    b'{"op":"\\ud800"}',
    b'{"op":"no-such"}',
    b'{"op":' + b"9" * 400 + b"}",
    b'{"op":"scale","processors":"x"}',
    b'{"op":"scale","handlers":true}',
    b'{"op":"scale","handlers":1.5}',
    b'{"op":"scale","handlers":{"a":[]}}',
    b'{"op":"scale","processors":1e400}',
    b'{"op":"scale","processors":2147483648}',
    b'{"op":"scale","handlers":1' + b"0" * 45 + b"}",
    b'{"op":"scale","handlers":-1' + b"0" * 45 + b"}",
    b'{"op":"scale","ticket":5}',
    b'{"op":"kill-client"}',
    b'{"op":"kill-client","id":null}',
    b'{"op":"kill-client","id":{"a":1}}',
    b'{"op":"status"',
    b'{"op":"status"}x',
    b'{"op":"status\xff"}',
    b"[" * 30_000,
    b'{"op":"dance","a":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    b'{"op":"' + b"x" * 60_000 + b'"}',
    b'{"op":"scale","ticket":"' + b"x" * 70_000 + b'"}',
]


class Scene:
    """A Handler and its local client."""

    def __init__(self, rig: HandlerRig) -> None:
        self.rig = rig

    def ask(self, body: bytes) -> dict[str, Any] | None:
        """The answer to a body, or None if it went to the controller."""
        head = PRIVATE_API_KEY.to_bytes(2, "big") + bytes(2) + (7).to_bytes(4, "big") + b"\0\1c"
        processor, frame = self.rig.processors[0], head + body
        processor.send_frames([len(frame).to_bytes(4, "big") + frame], flags=FLAG_LOOPBACK)
        answers = processor.answers()
        if not answers:
            return None
        (answer,) = answers
        assert answer.kind == SEND
        found: dict[str, Any] = orjson.loads(answer.frame[8:])
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(stack.enter_context(HandlerRig(tmp_path)))


def test_odd_operations_are_answered_with_invalid_request(scene: Scene) -> None:
    """They are no bugs of ours, so they are not counted as contained failures."""
    for body in ODD:
        answer = scene.ask(body)
        assert answer is not None, body[:60]
        error = answer["error"]
        assert error.startswith("the request is invalid: "), (body[:60], answer)
        assert "\n" not in error
        assert len(error) < 200
        assert answer["result"] is None
    assert parts_of(scene.rig.handler()).services.containment.count == 0
    assert scene.rig.controller_calls == []


def test_unknown_operation_is_named(scene: Scene) -> None:
    answer = scene.ask(b'{"op":"dance"}')
    error = "the request is invalid: unknown operation 'dance'"
    assert answer == {"error": error, "result": None, "is_retriable": False}


def test_share_records_are_counted_by_handlers_only(scene: Scene) -> None:
    """The controller, which handles the requests of a control listener, calls no owners of partitions."""
    body = b'{"op":"share-records","group":"g","partitions":[["t",0]]}'
    assert scene.ask(body) == {"error": None, "result": {"partitions": []}, "is_retriable": False}
    parts_of(scene.rig.handler()).services.clients.count_share_records = None
    answer = scene.ask(body)
    assert answer is not None
    assert answer["error"] == "a control listener does not count records of share groups: use another listener"
    assert scene.rig.controller_calls == []


def test_lost_controller_is_a_retriable_error(scene: Scene) -> None:
    assert scene.ask(b'{"op":"clients"}') is None
    scene.rig.handler().detach(CONTROLLER)
    scene.rig.settle()
    (answer,) = scene.rig.processors[0].answers()
    assert orjson.loads(answer.frame[8:]) == {
        "error": "the controller is being restarted", "result": None, "is_retriable": True
    }  # fmt: skip
