"""BlockWaits: large frames that wait for memory all get it."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.processor_rig import ProcessorRig, framed
from tests.support.unfinished_frames import begin_frames

Start = Callable[..., ProcessorRig]
MIB = 1 << 20
ALICE = "10.0.0.1"


def test_frames_that_fill_the_memory_together_all_arrive(start: Start) -> None:
    """Each holds a part and needs the rest: they must not wait for each other for ever."""
    rig = start(arena_bytes=2 * MIB)
    body = bytes(400_000)
    clients = begin_frames(rig, 16, len(body), 60_000, ALICE)
    rest = {client: memoryview(framed(body))[60_000:] for client in clients}
    arrived = 0
    for _ in range(20_000):
        for client in list(rest):
            try:
                rest[client] = rest[client][client.sock.send(rest[client]) :]
            except BlockingIOError:
                continue
            if not rest[client]:
                del rest[client]
        rig.step()
        for request in rig.handler.take():
            assert request.body == body
            rig.handler.no_op(request)
            arrived += 1
        if arrived == 16:
            break
    assert arrived == 16
    assert rig.metric("slow_frames_closed") == 0
