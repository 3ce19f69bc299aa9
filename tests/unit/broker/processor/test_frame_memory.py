"""Memory for requests that have begun: it grows with what arrived, is shared by addresses, and ends in time."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kproc.broker.ipc.layout import PAGE_BYTES
from kproc.broker.processor.frame_memory import FIRST_BYTES
from kproc.broker.processor.pending_login import LoginLimits
from kproc.broker.transport.envelope import FLAG_SASL
from tests.support.processor_rig import Client, ProcessorRig, framed
from tests.support.unfinished_frames import begin_frames

Start = Callable[..., ProcessorRig]
MIB = 1 << 20
MALLORY, ALICE = "10.0.0.66", "10.0.0.1"


def closed(clients: list[Client]) -> int:
    return sum(each.is_closed() for each in clients)


# -- growth --------------------------------------------------------------------------------------------------


def test_announced_length_takes_no_memory(start: Start) -> None:
    """As many clients as wish announce the largest request and send 17 kB: others are served as before.

    Beyond an eighth of the arena they get what they have sent, four times.
    """
    rig = start(arena_bytes=20 * MIB)
    silent = begin_frames(rig, 40, MIB, 17_000, MALLORY)
    assert rig.arena.lent_bytes <= 20 * MIB // 8 + 40 * (4 * 17_000 + PAGE_BYTES)
    honest = rig.connect(host=ALICE)
    honest.send_through(framed(b"x" * 500_000))
    assert rig.handler.bodies() == [b"x" * 500_000]
    assert closed(silent) == 0


@pytest.mark.parametrize("seed", range(8))
def test_frame_that_grows_arrives_unchanged(start: Start, seed: int) -> None:
    """Blocks grow in place or move, depending on what else begins and ends meanwhile."""
    rng = random.Random(seed)
    rig = start(arena_bytes=8 * MIB)
    pending: list[tuple[Client, bytes, int]] = []
    expected: list[bytes] = []
    for _ in range(60):
        if len(pending) < 5:
            body = rng.randbytes(rng.choice((17_000, 70_000, 300_000, 900_000)))
            pending.append((rig.connect(), framed(body), 0))
        client, frame, at = pending.pop(rng.randrange(len(pending)))
        step = rng.choice((1, 5_000, 60_000))
        client.send(frame[at : at + step])
        if at + step < len(frame):
            pending.append((client, frame, at + step))
        else:
            expected.append(frame[4:])
    for client, frame, at in pending:
        client.send_through(frame[at:])
        expected.append(frame[4:])
    requests = rig.handler.take()
    assert sorted(request.body for request in requests) == sorted(expected)
    for request in requests:
        rig.handler.no_op(request)
    rig.settle()
    assert rig.arena.lent_count() == 0


def test_batches_of_usual_size_are_not_moved(start: Start) -> None:
    """Sixteen producers at once: each copy of a batch would cost the Processor a fiftieth of its time."""
    rig = start(arena_bytes=200 * MIB)
    clients = begin_frames(rig, 16, 1_000_000, 20_000, ALICE)
    blocks = [each.block for each in rig.processor.table.by_fd.values()]
    offsets = [each.offset for each in blocks if each is not None]
    for client in clients:
        client.send_through(framed(bytes(1_000_000))[20_000:-1])
    assert [each.offset for each in blocks if each is not None] == offsets
    assert len(offsets) == 16
    assert all(each is not None and each.filled == 999_999 for each in blocks)


# -- before the login ----------------------------------------------------------------------------------------


def test_frames_before_login_take_no_arena_block(start: Start) -> None:
    """450 connections without a login announce the largest request that one may send, and send 17 kB."""
    rig = start(arena_bytes=MIB, ring_bytes=1 << 20, logins=LoginLimits(bytes_max=200_000))
    silent = []
    for _ in range(450):
        client = rig.connect(flags=FLAG_SASL, host=MALLORY)
        client.send(framed(bytes(200_000))[:17_000])
        silent.append(client)
    rig.settle()
    assert rig.arena.lent_bytes == 0
    honest = rig.connect(host=ALICE)
    honest.send_through(framed(b"x" * 300_000))
    assert rig.handler.bodies() == [b"x" * 300_000]


def test_memory_before_login_is_bounded_and_shared(start: Start) -> None:
    """The frames of one address fill the memory; those of another one still log in."""
    rig = start(ring_bytes=1 << 20, logins=LoginLimits(bytes_max=200_000))
    silent = []
    for _ in range(120):
        client = rig.connect(flags=FLAG_SASL, host=MALLORY)
        client.send(framed(bytes(200_000))[:150_000])
        rig.step(4)
        silent.append(client)
    owner = rig.processor._block_waits._memories.logins._owner
    assert owner.lent_bytes <= owner.capacity == 16 * MIB
    for _ in range(2):
        rig.advance_ms(1000)
    honest = rig.connect(flags=FLAG_SASL, host=ALICE)
    honest.send(framed(b"l" * 100_000)[:20_000])
    rig.advance_ms(200)
    honest.send_through(framed(b"l" * 100_000)[20_000:])
    assert b"l" * 100_000 in rig.handler.bodies()
    for each in silent:
        each.sock.close()
    rig.settle()
    rig.settle()
    rig.settle()
    assert owner.lent_bytes == 0


def test_small_frames_before_login_count_against_the_same_bound(start: Start) -> None:
    """Frames below 16 KiB, too: a connection without a login costs a few bytes beyond the bound."""
    rig = start(ring_bytes=1 << 20)
    clients = []
    for _ in range(5):
        client = rig.connect(flags=FLAG_SASL, host=MALLORY)
        client.send(framed(b"x" * 10_000)[:9_000])
        clients.append(client)
    table = rig.processor.table
    assert sum(len(each.held) for each in table.by_fd.values()) == 0
    assert rig.processor._block_waits._memories.logins._owner.lent_bytes == 5 * 10_000
    for client in clients:
        client.send(framed(b"x" * 10_000)[9_000:])
    assert rig.handler.bodies() == [b"x" * 10_000] * 5


def test_login_frame_longer_than_ring_record_is_rejected(start: Start) -> None:
    rig = start(ring_bytes=1 << 18)
    client = rig.connect(flags=FLAG_SASL)
    client.send(framed(bytes(100_000))[:17_000])
    assert client.is_closed()


def test_first_block_is_small() -> None:
    assert FIRST_BYTES == 64 * 1024
