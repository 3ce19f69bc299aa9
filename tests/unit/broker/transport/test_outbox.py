"""Outbox and Inbox over both kinds of link: what is sent arrives, whole and in order, however full it is."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections import deque
from collections.abc import Iterator

import pytest

from kproc.broker.transport.agent import AgentId, Link
from kproc.broker.transport.envelope import CALL, CHUNK, HINT, REPLY, SEND
from kproc.broker.transport.outbox import Inbox, Outbox
from tests.support.links import LINK_KINDS, LINK_PARAMS, CountingWaker, LinkMaker

CAPACITY = 1 << 14


@pytest.fixture(params=LINK_PARAMS)
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Link, Link]]:
    with LinkMaker(request.param) as maker:
        yield maker.make(AgentId("sender", 0), AgentId("receiver", 0), CAPACITY)


class Conversation:
    """An Outbox, the Inbox at its other end, and an agent there that releases only what it was given."""

    def __init__(self, ends: tuple[Link, Link]) -> None:
        near, far = ends
        self.waker = CountingWaker()
        self.outbox = Outbox(near.sender, self.waker)
        self.inbox = Inbox(far.receiver)
        self.received: list[tuple[int, bytes]] = []

    def take(self, limit: int = 64) -> int:
        """One duty cycle of the receiving agent, as every role does it."""
        batch = self.inbox.poll(limit)
        if not batch:
            return 0
        self.received += [(kind, bytes(view)) for kind, view in batch]
        self.inbox.release()
        return len(batch)

    def run(self, limit: int = 64) -> list[tuple[int, bytes]]:
        """Both agents in turn until nothing moves; what arrived."""
        for _ in range(10_000):
            self.outbox.flush()
            if not self.take(limit) and not self.outbox.has_overflow:
                return self.received
        raise AssertionError(f"stuck with {self.outbox.overflow_count()} records that wait")


@pytest.fixture
def talk(ends: tuple[Link, Link]) -> Conversation:
    return Conversation(ends)


def test_message_is_seen_at_flush_and_not_before(talk: Conversation) -> None:
    talk.outbox.push(SEND, b"he", b"llo")
    assert talk.take() == 0
    talk.outbox.flush()
    talk.take()
    assert talk.received == [(SEND, b"hello")]


def test_one_flush_wakes_the_peer_once_and_an_idle_one_never(talk: Conversation) -> None:
    for _ in range(5):
        talk.outbox.push(SEND, b"x")
    talk.outbox.flush()
    assert talk.waker.count == 1
    talk.outbox.flush()
    assert talk.waker.count == 1


def test_flush_goes_on_waking_while_something_still_waits(talk: Conversation) -> None:
    talk.outbox.push(SEND, bytes(2 * CAPACITY))
    talk.outbox.flush()
    talk.outbox.flush()
    assert talk.outbox.has_overflow
    assert talk.waker.count == 2


def test_empty_message_is_a_message(talk: Conversation) -> None:
    talk.outbox.push(SEND)
    talk.outbox.push(HINT, b"")
    assert talk.run() == [(SEND, b""), (HINT, b"")]


@pytest.mark.parametrize("excess", [-1, 0, 1])
@pytest.mark.parametrize("records", [1, 2, 3])
def test_message_around_a_whole_number_of_records_arrives_whole(
    talk: Conversation, records: int, excess: int
) -> None:
    message = random.Random(1).randbytes(records * talk.outbox._record_bytes_max + excess)
    talk.outbox.push(REPLY, message[:7], message[7:])
    assert talk.run() == [(REPLY, message)]


def test_message_longer_than_the_ring_arrives_whole(talk: Conversation) -> None:
    """The receiver gives room back although it was handed no message yet; else both sides wait for ever."""
    message = random.Random(2).randbytes(20 * CAPACITY + 13)
    talk.outbox.push(CALL, message)
    assert talk.run() == [(CALL, message)]


@pytest.mark.parametrize("limit", [1, 2, 64])
def test_pieces_that_come_in_several_polls_are_joined(talk: Conversation, limit: int) -> None:
    message = random.Random(3).randbytes(3 * CAPACITY)
    talk.outbox.push(SEND, b"before")
    talk.outbox.push(REPLY, message)
    talk.outbox.push(SEND, b"after")
    assert talk.run(limit) == [(SEND, b"before"), (REPLY, message), (SEND, b"after")]


def test_beginning_of_a_message_is_not_delivered(talk: Conversation) -> None:
    talk.outbox._try_push(CHUNK, b"half")
    talk.outbox._sender.publish()
    assert talk.take() == 0
    assert talk.inbox.is_empty()


def test_full_ring_keeps_the_order_and_tells_of_it(talk: Conversation) -> None:
    sent = [(SEND, bytes([number]) * 1000) for number in range(100)]
    for kind, message in sent:
        talk.outbox.push(kind, message)
    assert talk.outbox.has_overflow
    assert 0 < talk.outbox.overflow_count() < 100
    assert talk.run() == sent
    assert not talk.outbox.has_overflow
    assert talk.outbox.overflow_count() == 0


def test_small_message_does_not_overtake_what_waits(talk: Conversation) -> None:
    talk.outbox.push(REPLY, bytes(2 * CAPACITY))
    talk.outbox.flush()
    talk.take()
    assert talk.outbox.has_overflow  # And there is room in the ring again.
    talk.outbox.push(SEND, b"small")
    assert [kind for kind, _ in talk.run()] == [REPLY, SEND]


@pytest.mark.parametrize("size", [10, CAPACITY // 2, 3 * CAPACITY], ids=["fits", "in pieces", "overflows"])
def test_caller_may_reuse_its_buffer_after_push(talk: Conversation, size: int) -> None:
    buffer = bytearray(b"x" * size)
    talk.outbox.push(SEND, memoryview(buffer))
    buffer[:] = b"y" * size
    assert talk.run() == [(SEND, b"x" * size)]


def test_push_of_a_long_message_does_not_copy_it(talk: Conversation) -> None:
    """Copying an answer of 16 MiB takes 15 ms in one duty cycle."""
    message = bytes(4 << 20)
    tracemalloc.start()
    try:
        talk.outbox.push(SEND, b"head", message)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 0.1 * len(message)
    assert talk.run() == [(SEND, b"head" + message)]


def test_views_of_one_batch_stay_readable_until_release(talk: Conversation) -> None:
    talk.outbox.push(SEND, b"one")
    talk.outbox.push(REPLY, bytes(CAPACITY // 2))
    talk.outbox.push(SEND, b"two")
    talk.outbox.flush()
    batch = talk.inbox.poll(64)
    assert [len(view) for _, view in batch] == [3, CAPACITY // 2, 3]
    assert bytes(batch[0][1]) == b"one"
    assert bytes(batch[2][1]) == b"two"


def test_fill_is_what_the_peer_has_not_given_back(talk: Conversation) -> None:
    assert talk.outbox.fill_bytes() == 0
    talk.outbox.push(SEND, bytes(1000))
    talk.outbox.flush()
    assert 1000 <= talk.outbox.fill_bytes() <= 1016
    batch = talk.inbox.poll(64)
    assert batch
    assert talk.outbox.fill_bytes() >= 1000
    del batch
    talk.inbox.release()
    assert talk.outbox.fill_bytes() == 0
    assert talk.outbox.capacity == CAPACITY


def test_closed_outbox_drops_messages_and_releases_link(
    ends: tuple[Link, Link], talk: Conversation
) -> None:
    talk.outbox.push(SEND, bytes(4 * CAPACITY))
    assert talk.outbox.has_overflow
    talk.outbox.flush()
    talk.outbox.close()
    for _ in range(3):
        talk.outbox.push(SEND, bytes(4 * CAPACITY))
        talk.outbox.flush()
    assert not talk.outbox.has_overflow
    assert not talk.outbox.is_dirty
    assert (talk.outbox.overflow_count(), talk.outbox.waiting(9), talk.outbox.fill_bytes()) == (0, 0, 0)
    held = gc.get_referents(talk.outbox)
    sender = ends[0].sender
    assert not [
        each for each in held if each in (sender, talk.waker) or getattr(each, "__self__", 0) is sender
    ]


def test_messages_unread_by_ended_peer_are_returned_whole(talk: Conversation) -> None:
    long = random.Random(1).randbytes(3 * CAPACITY)
    talk.outbox.push(CALL, b"taken")
    talk.outbox.flush()
    assert talk.take() == 1
    talk.outbox.push(REPLY, b"short")
    talk.outbox.push(CALL, long)
    talk.outbox.flush()
    talk.outbox.push(CALL, b"last")
    assert talk.outbox.has_overflow
    assert talk.outbox.untaken() == []
    talk.inbox.finish()
    assert talk.outbox.untaken() == [(REPLY, b"short"), (CALL, long), (CALL, b"last")]


def test_partial_message_to_ended_peer_is_not_untaken(talk: Conversation) -> None:
    """What is left begins in the middle of it."""
    talk.outbox.push(CALL, bytes(3 * CAPACITY))
    talk.outbox.push(CALL, b"last")
    talk.outbox.flush()
    assert talk.take() == 0
    talk.inbox.finish()
    assert talk.outbox.untaken() == []


@pytest.mark.parametrize("seed", range(8))
def test_any_mixture_of_sizes_and_turns_arrives_in_order(talk: Conversation, seed: int) -> None:
    source = random.Random(seed)
    sent: deque[tuple[int, bytes]] = deque()
    for number in range(300):
        size = source.choice([0, 1, 7, 100, 1000, CAPACITY // 4, CAPACITY // 2, 2 * CAPACITY])
        message = number.to_bytes(4, "big") + bytes(size)
        sent.append((source.choice([SEND, REPLY, CALL]), message))
        talk.outbox.push(*sent[-1])
        if source.random() < 0.5:
            talk.outbox.flush()
        if source.random() < 0.4:
            talk.take(source.randint(1, 20))
    assert talk.run() == list(sent)


def test_link_kinds_take_records_of_the_same_length() -> None:
    """What is chunked on one transport is chunked on all, or a comparison of them compares something else."""
    limits = []
    for kind in LINK_KINDS:
        with LinkMaker(kind) as maker:
            sender = maker.make(AgentId("a", 0), AgentId("b", 0), CAPACITY)[0].sender
            assert sender.try_push(SEND, bytes(sender.record_bytes_max))
            for refused in (sender.reserve, lambda length, to=sender: to.try_push(SEND, bytes(length))):
                with pytest.raises(ValueError, match="record of"):
                    refused(sender.record_bytes_max + 1)
            limits.append(sender.record_bytes_max)
    assert len(set(limits)) == 1
