"""LentBlocks: blocks of requests that wait are recalled."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.processor_rig import Client, ProcessorRig, framed
from tests.support.unfinished_frames import begin_frames

Start = Callable[..., ProcessorRig]
MIB = 1 << 20
MALLORY, ALICE = "10.0.0.66", "10.0.0.1"


def closed(clients: list[Client]) -> int:
    return sum(each.is_closed() for each in clients)


# -- while a request is handled ------------------------------------------------------------------------------


def test_block_of_waiting_request_is_recalled_once(start: Start) -> None:
    """A request may wait in its Handler for as long as its client says. The arena does not wait with it."""
    rig = start()
    client = rig.connect()
    client.send_through(framed(bytes(100_000)))
    (request,) = rig.handler.take()
    for _ in range(3):
        rig.advance_ms(1000)
    rig.step()
    assert rig.handler.take() == []
    assert rig.handler.recalled == [(request.connection_id, request.sequence)]
    assert rig.arena.lent_count() == 1, "the Handler may still read it"
    rig.handler.free_block(request)
    rig.step()
    assert rig.arena.lent_count() == 0
    for _ in range(3):
        rig.advance_ms(1000)
    rig.step()
    assert rig.handler.take() == []
    assert len(rig.handler.recalled) == 1
    rig.handler.answer(request, framed(b"done"))
    rig.step()
    assert client.received() == framed(b"done")


def test_block_of_fast_request_is_not_recalled(start: Start) -> None:
    rig = start()
    client = rig.connect()
    for _ in range(4):
        client.send_through(framed(bytes(100_000)))
        for request in rig.handler.take():
            rig.handler.answer(request, framed(b""))
        rig.advance_ms(1000)
    assert rig.handler.take() == []
    assert rig.handler.recalled == []


def test_large_request_gets_memory_of_many_frames(start: Start) -> None:
    """More than one frame gives way for it, not more than it needs, and waiting frames may be among them."""
    rig = start(arena_bytes=4 * MIB)
    frames = begin_frames(rig, 60, 70_000, 65_000, MALLORY)
    rig.advance_ms(1000)
    rig.advance_ms(1000)
    honest = rig.connect(host=ALICE)
    honest.send(framed(b"a" * 1_000_000)[:20_000])
    rig.advance_ms(200)
    honest.send_through(framed(b"a" * 1_000_000)[20_000:])
    assert rig.handler.bodies() == [b"a" * 1_000_000]
    assert 0 < closed(frames) < 40
