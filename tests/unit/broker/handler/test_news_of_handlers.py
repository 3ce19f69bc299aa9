"""News of other Handlers over the control socket, and their calls over rings, arrive in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.role.roles import handler_id
from kproc.wire.header import ApiKey
from tests.support.handler_rig import Answer, HandlerRig, parts_of
from tests.support.links import LINK_PARAMS
from tests.support.raw import batch, fetch_fields, produce_fields, values_of

PRODUCE_VERSION, FETCH_VERSION = 9, 12
NO_ID = bytes(16)


@pytest.fixture(params=LINK_PARAMS)
def rig(request: pytest.FixtureRequest, start: Callable[..., HandlerRig]) -> HandlerRig:
    """Two Handlers and a topic with one partition at each."""
    made = start(handlers=2, link_kind=request.param)
    made.create_topic("t", partitions=2)
    assert sorted(made.owner("t", index) for index in range(2)) == [0, 1]
    return made


def send_produce(rig: HandlerRig) -> None:
    """To the first Handler, for the partition of the second."""
    there = [index for index in range(2) if rig.owner("t", index) == 1]
    fields = produce_fields([("t", NO_ID, [(there[0], batch(b"v"))])])
    rig.processors[0].send(ApiKey.PRODUCE, PRODUCE_VERSION, fields)


def produced(answer: Answer) -> tuple[int, int]:
    """(error code, base offset)"""
    topic: dict[str, Any] = answer.fields(ApiKey.PRODUCE, PRODUCE_VERSION)["responses"][0]
    (row,) = topic["partition_responses"]
    return row["error_code"], row["base_offset"]


def test_reply_sent_before_owner_died_is_used(rig: HandlerRig) -> None:
    send_produce(rig)
    rig.handler(0).do_work(0)
    rig.handler(1).do_work(0)  # It has appended and answered.
    rig.kill(1)
    (answer,) = rig.processors[0].answers()
    assert produced(answer) == (0, 0)
    assert not len(parts_of(rig.handler(0)).calls)


def test_handler_with_late_link_is_waited_for(rig: HandlerRig) -> None:
    there = next(index for index in range(2) if rig.owner("t", index) == 1)
    rig.handler(0).detach(handler_id(1))
    rig.handler(0).is_called = False
    send_produce(rig)
    fields = fetch_fields([("t", NO_ID, [(there, 0)])], max_wait_ms=500)
    rig.processors[0].send(ApiKey.FETCH, FETCH_VERSION, fields)
    rig.handler(0).do_work(0)
    assert rig.handler(0).is_called, "its control socket is to be read before anything else"
    near, far = rig.links.make(handler_id(0), handler_id(1))
    rig.handler(0).attach(near)
    rig.handler(1).attach(far)
    first, second = rig.processors[0].answers()
    assert produced(first) == (0, 0)
    (row,) = second.fields(ApiKey.FETCH, FETCH_VERSION)["responses"][0]["partitions"]
    assert (row["error_code"], [value for _, value in values_of(row["records"])]) == (0, [b"v"])
    assert not len(parts_of(rig.handler(0)).calls)
