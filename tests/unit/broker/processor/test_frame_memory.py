"""Memory for requests that have begun: it grows with what arrived, is shared by addresses, and ends in time."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kproc.broker.ipc.layout import PAGE_BYTES
from kproc.broker.processor.frame_memory import FIRST_BYTES
from kproc.broker.processor.pending_login import LoginLimits
from kproc.broker.role.handoff import pack_address, share_key
from kproc.broker.transport.envelope import FLAG_SASL
from tests.support.processor_rig import Client, ProcessorRig, framed

Start = Callable[..., ProcessorRig]
MIB = 1 << 20
MALLORY, ALICE, BOB = "10.0.0.66", "10.0.0.1", "10.0.0.2"


def begin_frames(rig: ProcessorRig, count: int, announced: int, sent: int, host: str) -> list[Client]:
    """Open connections that send the first bytes of a frame each."""
    clients = []
    for _ in range(count):
        client = rig.connect(host=host)
        client.send(framed(bytes(announced))[:sent])
        clients.append(client)
    rig.settle()
    return clients


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


# -- shares --------------------------------------------------------------------------------------------------


def test_address_that_holds_most_memory_gives_way(start: Start) -> None:
    """Mallory sends fast enough never to be slow. A client of another host gets its memory all the same."""
    rig = start(arena_bytes=MIB)
    frames = begin_frames(rig, 14, 70_000, 65_000, MALLORY)
    rig.advance_ms(1000)
    rig.advance_ms(1000)
    assert closed(frames) == 0
    for host in (ALICE, BOB):
        honest = rig.connect(host=host)
        honest.send(framed(host.encode() * 20_000)[:20_000])
        rig.advance_ms(200)
        honest.send_through(framed(host.encode() * 20_000)[20_000:])
        assert rig.handler.bodies() == [host.encode() * 20_000]
    assert 0 < closed(frames) < 14
    assert rig.metric("slow_frames_closed") == closed(frames)


def test_equal_shares_close_no_connection(start: Start) -> None:
    """Closing a frame would only exchange one victim for another."""
    rig = start(arena_bytes=MIB)
    hosts = [f"10.0.1.{number}" for number in range(16)]
    begun = [begin_frames(rig, 1, 70_000, 65_000, host)[0] for host in hosts]
    late = rig.connect(host=ALICE)
    late.send(framed(bytes(70_000))[:20_000])
    for _ in range(4):
        rig.advance_ms(1000)
    assert closed(begun) == 0
    assert not late.is_closed()


def test_young_frames_of_largest_share_are_left_alone(start: Start) -> None:
    rig = start(arena_bytes=MIB)
    frames = begin_frames(rig, 14, 70_000, 65_000, MALLORY)
    honest = rig.connect(host=ALICE)
    honest.send(framed(bytes(100_000))[:20_000])
    rig.advance_ms(200)
    assert closed(frames) == 0


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::9", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
    ],
)
def test_share_key_is_host_or_ipv6_network(one: str, other: str, is_same: bool) -> None:
    assert (share_key(pack_address(one)) == share_key(pack_address(other))) is is_same


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
