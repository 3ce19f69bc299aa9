"""AddressShares: the address with the largest share gives way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.broker.role.handoff import pack_address, share_key
from tests.support.processor_rig import Client, ProcessorRig, framed
from tests.support.unfinished_frames import begin_frames

Start = Callable[..., ProcessorRig]
MIB = 1 << 20
MALLORY, ALICE, BOB = "10.0.0.66", "10.0.0.1", "10.0.0.2"


def closed(clients: list[Client]) -> int:
    return sum(each.is_closed() for each in clients)


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
