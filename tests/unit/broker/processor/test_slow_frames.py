"""SlowFrames: frames that arrive too slowly are closed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.processor_rig import Client, ProcessorRig, framed
from tests.support.unfinished_frames import begin_frames

Start = Callable[..., ProcessorRig]
MIB = 1 << 20
MALLORY = "10.0.0.66"


def closed(clients: list[Client]) -> int:
    return sum(each.is_closed() for each in clients)


# -- time ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("announced", [9, 10_000, 500_000])
def test_frame_must_arrive_within_receive_timeout(start: Start, announced: int) -> None:
    """A byte a second does not help, although no client waits. Clients that send whole requests stay."""
    rig = start(receive_ms_max=10_000)
    slow = begin_frames(rig, 3, announced, 5, MALLORY)
    idle, busy = rig.connect(), rig.connect()
    for second in range(12):
        for each in slow:
            if not each.is_closed() and announced > 100:
                each.send(b"0")
        busy.send(framed(b"x"))
        rig.advance_ms(1000)
        for request in rig.handler.take():
            rig.handler.answer(request, framed(b""))
        assert closed(slow) in (0, 3), "all at once"
        assert second >= 9 or closed(slow) == 0
    assert closed(slow) == 3
    assert not idle.is_closed()
    assert not busy.is_closed()
    assert rig.metric("slow_frames_closed") == 3


def test_receive_timeout_excludes_time_when_not_read(start: Start) -> None:
    """The Processor does not read a connection whose answers its client does not take; that is not slow sending."""
    rig = start(receive_ms_max=10_000)
    client = rig.connect()
    client.send(framed(b"first") + framed(b"second")[:5])
    (request,) = rig.handler.take()
    rig.handler.throttle(request, 60_000)
    rig.handler.answer(request, framed(b""))
    for _ in range(30):
        rig.advance_ms(1000)
    assert not client.is_closed()
    for _ in range(31):
        rig.advance_ms(1000)
    client.send(framed(b"second")[5:])
    assert rig.handler.bodies() == [b"second"]


def test_slow_frames_are_closed_at_once_when_others_wait(start: Start) -> None:
    rig = start(arena_bytes=MIB)
    slow = begin_frames(rig, 7, 100_000, 60_000, MALLORY)
    for _ in range(8):
        rig.advance_ms(1000)
    assert closed(slow) == 0, "nobody waits"
    honest = rig.connect(host=MALLORY)
    honest.send(framed(b"x" * 400_000)[:20_000])
    for _ in range(2):
        rig.advance_ms(1000)
    assert closed(slow) == 7
    honest.send_through(framed(b"x" * 400_000)[20_000:])
    assert rig.handler.bodies() == [b"x" * 400_000]


def test_frame_above_minimum_rate_is_left_alone_when_others_wait(start: Start) -> None:
    rig = start(arena_bytes=2_000_000)
    sender, waiting = rig.connect(), rig.connect()
    frame = framed(bytes(1_000_000))
    for at in range(0, 550_000, 50_000):
        sender.send(frame[at : at + 50_000])
        rig.settle()
    for at in (0, 70_000):
        waiting.send(framed(bytes(MIB))[at : at + 70_000])
        rig.settle()
    assert [len(each) for each in rig.processor.table.awaiting_block.values()] == [1]
    for at in range(550_000, 946_000, 66_000):
        sender.send(frame[at : at + 66_000])
        rig.advance_ms(1000)
    assert rig.metric("slow_frames_closed") == 0
    sender.send_through(frame[946_000:])
    (request,) = rig.handler.take()
    assert request.body == bytes(1_000_000)
