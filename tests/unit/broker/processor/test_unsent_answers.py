"""Clients that do not read their answers take a bounded part of the Processor's memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.broker.processor import unsent_answers
from kproc.wire.header import ApiKey
from tests.support.processor_rig import Client, ProcessorRig, framed

Start = Callable[..., ProcessorRig]
MALLORY, ALICE = "10.0.0.66", "10.0.0.1"
ANSWER = framed(bytes(60_000))


def leave_unread(rig: ProcessorRig, host: str, answers: int) -> Client:
    """Open a connection whose client sends requests and reads nothing."""
    client = rig.connect(host=host)
    client.send(framed(b"r") * answers)
    for request in rig.handler.take():
        rig.handler.answer(request, ANSWER)
        rig.step()
    return client


@pytest.fixture(autouse=True)
def small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsent_answers, "UNSENT_BYTES_MAX", 1_000_000)


def test_unsent_answers_are_bounded_and_shared_by_address(start: Start) -> None:
    """Mallory holds 2.4 MB over three connections, less what the kernel took; Alice is slow, too, with 0.5 MB."""
    rig = start()
    alice = leave_unread(rig, ALICE, 8)
    for count in (20, 16, 4):
        leave_unread(rig, MALLORY, count)
    rig.advance_ms(1000)
    assert len(rig.processor.table.by_fd) == 2
    assert rig.metric("slow_readers_closed") == 2
    assert alice.receive_through(8 * len(ANSWER)) == 8 * ANSWER


def test_unsent_answers_below_bound_close_no_connection(start: Start) -> None:
    rig = start()
    client = leave_unread(rig, MALLORY, 18)
    for _ in range(5):
        rig.advance_ms(1000)
    assert rig.metric("slow_readers_closed") == 0
    assert client.receive_through(18 * len(ANSWER)) == 18 * ANSWER


@pytest.mark.parametrize(("api_key", "closed"), [(ApiKey.JOIN_GROUP, 2), (ApiKey.PRODUCE, 0)])
def test_large_requests_that_wait_in_a_handler_are_bounded(
    start: Start, monkeypatch: pytest.MonkeyPatch, *, api_key: ApiKey, closed: int
) -> None:
    """A long poll in a large request takes no arena block, and memory of its Handler all the same.

    A Produce that waits for a sync takes none: a slow disk must not close honest producers.
    """
    monkeypatch.setattr(unsent_answers, "WAITING_BYTES_MAX", 250_000)
    rig = start()
    alice, *mallory = [rig.connect(host=host) for host in (ALICE, MALLORY, MALLORY, MALLORY)]
    requests = []
    for client in (alice, *mallory):
        client.send_through(framed(api_key.to_bytes(2, "big") + bytes(100_000)))
        requests += rig.handler.take()
    for _ in range(3):
        rig.advance_ms(1000)
    rig.step()
    rig.handler.take()
    for request in requests:
        rig.handler.free_block(request)
    rig.step()
    assert rig.arena.lent_count() == 0
    rig.advance_ms(1000)
    assert [each.is_closed() for each in mallory].count(True) == closed
    assert not alice.is_closed()
    for request in requests:
        rig.handler.no_op(request)
    rig.step()
    assert rig.processor._blocks.by_request == {}
