"""Records of a Handler that cannot be read end the connection that they are about, and never the Processor."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kproc.broker.transport.agent import STORE_MS
from kproc.broker.transport.envelope import (
    AUTHENTICATED,
    BLOCK_FREE,
    CLOSE,
    HEAD,
    HINT,
    METERED,
    MOVED,
    NOTE,
    SEND,
    SEND_PARTS,
    SENDS,
    THROTTLE,
    TIMES,
)
from tests.support.processor_rig import ProcessorRig, framed

Start = Callable[..., ProcessorRig]
KINDS = (AUTHENTICATED, BLOCK_FREE, CLOSE, METERED, MOVED, NOTE, SEND, SEND_PARTS, SENDS, THROTTLE, TIMES)


@pytest.mark.parametrize("seed", range(6))
def test_damaged_record_ends_no_more_than_its_connection(start: Start, seed: int) -> None:
    chance = random.Random(seed)
    rig = start()
    other = rig.connect()
    for _ in range(60):
        victim = rig.connect()
        victim.send(framed(b"x"))
        (request,) = rig.handler.take()
        head = HEAD.pack(request.connection_id, request.sequence, 0, 0)
        record = head + chance.randbytes(chance.randrange(40))
        if chance.random() < 0.1:
            record = record[: chance.randrange(len(head))]
        rig.handler.outbox.push(chance.choice(KINDS), record)
        rig.handler.outbox.flush()
        rig.step(3)
        rig.handler.take()
    other.send(framed(b"still here"))
    (request,) = rig.handler.take()
    rig.handler.answer(request, framed(b"yes"))
    rig.step()
    assert other.received() == framed(b"yes")
    rig.advance_ms(STORE_MS)
    assert rig.metric("contained_failures") > 0


def test_hint_that_cannot_be_read_closes_no_connection(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint has no head. Its first bytes can look like the id of any connection."""

    class Router:
        def learn(self, _hint: memoryview) -> None:
            raise ValueError("not a hint")

    rig = start()
    client = rig.connect()
    (connection,) = rig.processor.table.by_fd.values()
    monkeypatch.setattr(rig.processor.handlers, "router", Router())
    rig.handler.outbox.push(HINT, HEAD.pack(connection.id, 0, 0, 0))
    rig.handler.outbox.flush()
    rig.step(3)
    assert not client.is_closed()
    rig.advance_ms(STORE_MS)
    assert rig.metric("contained_failures") == 1
