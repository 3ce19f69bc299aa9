"""The ring's rules, one by one; its behaviour as a whole is compared with a deque in tests/property."""

from __future__ import annotations

import os
import socket
import zlib

import pytest

from kproc.broker.ipc import ring as ring_module
from kproc.broker.ipc.layout import RING_CAPACITY_BYTES_MIN, RING_HEADER
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.ipc.ring import RECORD_HEADER, RECORD_ROUND, RingConsumer, RingProducer, format_ring
from kproc.common.errors import FatalError
from tests.support.cases import in_one_test
from tests.support.proc import open_descriptors
from tests.support.ring_pair import Forked, make_ring, open_ring

CAPACITY = 1024
TAIL, HEAD = RING_HEADER.word["tail"], RING_HEADER.word["head"]


def words_of(producer: RingProducer) -> memoryview:
    """The cursors, as they stand in the shared memory."""
    return producer._words


def data_of(producer: RingProducer) -> memoryview:
    """The records' bytes, as they stand in the shared memory."""
    return producer._data


def take(consumer: RingConsumer, limit: int = 1000) -> list[tuple[int, bytes]]:
    """Poll, copy, release."""
    records = [(kind, bytes(view)) for kind, view in consumer.poll(limit)]
    consumer.release()
    return records


@pytest.fixture
def ends():
    with open_ring(CAPACITY) as (producer, consumer):
        yield producer, consumer


def test_records_come_out_as_they_went_in(ends):
    producer, consumer = ends
    assert producer.try_push(7, b"one", b"", bytearray(b"two"), memoryview(b"three"))
    assert producer.try_push(8)
    room = producer.reserve(100)
    room[:4] = b"four"
    producer.commit(4, (1 << 32) - 1)
    producer.publish()
    assert take(consumer) == [(7, b"onetwothree"), (8, b""), ((1 << 32) - 1, b"four")]


def test_nothing_is_seen_before_publish(ends):
    producer, consumer = ends
    producer.reserve(10)
    assert consumer.is_empty()
    producer.commit(10, 1)
    assert producer.try_push(2, b"x")
    assert consumer.is_empty()
    assert consumer.poll(10) == []
    producer.publish()
    assert not consumer.is_empty()
    assert [kind for kind, _ in consumer.poll(10)] == [1, 2]
    assert consumer.is_empty()


def test_publish_without_anything_new_stores_nothing(ends):
    producer, _ = ends
    producer.publish()
    assert words_of(producer)[TAIL] == 0


def test_reservation_that_was_not_committed_is_dropped(ends):
    producer, consumer = ends
    producer.reserve(50)[:] = b"d" * 50
    producer.reserve(20)[:] = b"k" * 20
    producer.commit(20, 1)
    producer.reserve(30)
    assert producer.try_push(2, b"pushed")
    producer.reserve(40)
    producer.publish()
    assert take(consumer) == [(1, b"k" * 20), (2, b"pushed")]


def test_committing_what_was_not_reserved_is_our_own_mistake(ends):
    producer, _ = ends
    with pytest.raises(AssertionError):
        producer.commit(0, 1)
    producer.reserve(10)
    with pytest.raises(AssertionError):
        producer.commit(11, 1)
    with pytest.raises(AssertionError):
        producer.commit(10, 0)
    producer.commit(10, 1)
    with pytest.raises(AssertionError):
        producer.commit(10, 1)
    producer.reserve(10)
    producer.try_push(1, b"x")
    with pytest.raises(AssertionError):
        producer.commit(10, 1)
    with pytest.raises(AssertionError):
        producer.try_push(0, b"padding's kind")


def test_refused_reservation_cannot_be_committed(ends):
    producer, _ = ends
    for _ in range(4):
        producer.reserve(200)
        producer.commit(200, 1)
    assert producer.reserve(100) is not None
    assert producer.reserve(200) is None  # Drops the one before it as well.
    with pytest.raises(AssertionError):
        producer.commit(0, 1)


def test_committed_room_can_no_longer_be_written(ends):
    producer, _ = ends
    room = producer.reserve(10)
    producer.commit(10, 1)
    with pytest.raises(ValueError, match="released"):
        room[0] = 1


def fill(run: tuple[memoryview, int, int], kind: int, *bodies: bytes) -> int:
    """Write records into a run as its caller does; where the next one would begin."""
    data, at, last = run
    for body in bodies:
        assert at <= last
        RECORD_HEADER.pack_into(data, at, len(body), kind)
        data[at + RECORD_HEADER.size : at + RECORD_HEADER.size + len(body)] = body
        at += (len(body) + RECORD_ROUND) & -8
    return at


def test_run_of_records_comes_out_one_by_one(ends):
    producer, consumer = ends
    assert producer.try_push(1, b"before")
    producer.commit_run(fill(producer.reserve_run(50), 2, b"one", b"", b"three" * 10))
    assert producer.try_push(3, b"behind")
    assert consumer.is_empty()
    producer.publish()
    assert take(consumer) == [(1, b"before"), (2, b"one"), (2, b""), (2, b"three" * 10), (3, b"behind")]


def test_run_without_records_changes_nothing(ends):
    producer, consumer = ends
    _, first, _ = producer.reserve_run(50)
    producer.commit_run(first)
    producer.publish()
    assert consumer.is_empty()
    assert producer.free_bytes() == CAPACITY


def test_run_ends_where_longest_record_would_not_fit(ends):
    producer, consumer = ends
    _, first, last = producer.reserve_run(200)
    assert (first, last) == (0, CAPACITY - 208)
    producer.commit_run(first)
    for _ in range(3):
        assert producer.try_push(1, bytes(200))
    producer.publish()
    consumer.poll(2)
    consumer.release()
    # 400 bytes are left to the ring's end, and the two records before them are free again.
    _, first, last = producer.reserve_run(200)
    assert (first, last) == (624, CAPACITY - 208)
    producer.commit_run(fill((data_of(producer), first, last), 2, bytes(200)))
    # Behind that a record of 200 bytes begins at slot 0, and ends before the one that was not released.
    _, first, last = producer.reserve_run(200)
    assert (first, last) == (0, 416 - 208)
    producer.commit_run(fill((data_of(producer), first, last), 3, b"wrapped"))
    producer.publish()
    assert take(consumer) == [(1, bytes(200)), (2, bytes(200)), (3, b"wrapped")]


def test_run_is_refused_when_the_ring_is_full(ends):
    producer, consumer = ends
    for _ in range(4):
        assert producer.try_push(1, bytes(200))
    assert producer.reserve_run(200) is None
    assert producer.try_push(1, bytes(100)), "nothing is reserved"
    producer.publish()
    assert len(take(consumer)) == 5
    with pytest.raises(ValueError, match="takes"):
        producer.reserve_run(CAPACITY)


def test_while_a_run_is_open_nothing_else_may_be_written(ends):
    producer, consumer = ends
    run = producer.reserve_run(50)
    at = fill(run, 1, b"mine")
    for other in (lambda: producer.try_push(2, b"other"), lambda: producer.reserve(1), producer.free_bytes):
        with pytest.raises(AssertionError, match="not committed"):
            other()
    with pytest.raises(AssertionError, match="not committed"):
        producer.reserve_run(1)
    producer.commit_run(at)
    producer.publish()
    assert take(consumer) == [(1, b"mine")]


def test_space_reserved_after_run_holds_bytes_behind_it(ends):
    """A reader that received something else than a whole frame goes on with it from there."""
    producer, consumer = ends
    run = producer.reserve_run(50)
    at = fill(run, 1, b"whole")
    run[0][at + RECORD_HEADER.size : at + RECORD_HEADER.size + 4] = b"half"
    producer.commit_run(at)
    assert bytes(producer.reserve(50)[:4]) == b"half"
    producer.commit(4, 2)
    producer.publish()
    assert take(consumer) == [(1, b"whole"), (2, b"half")]


def test_polled_views_end_at_release(ends):
    producer, consumer = ends
    producer.try_push(1, b"first")
    producer.try_push(1, b"second")
    producer.publish()
    [(_, first)] = consumer.poll(1)
    [(_, second)] = consumer.poll(1)
    assert (bytes(first), bytes(second)) == (b"first", b"second")
    consumer.release()
    for view in (first, second):
        with pytest.raises(ValueError, match="released"):
            view[0]


def test_polled_views_are_writable_in_place(ends):
    """A Handler stamps offsets into the batch where it lies."""
    producer, consumer = ends
    producer.try_push(1, b"........")
    producer.publish()
    [(_, view)] = consumer.poll(1)
    view[:4] = b"done"
    assert bytes(view) == b"done...."


def test_poll_takes_no_more_than_its_limit(ends):
    producer, consumer = ends
    for kind in range(1, 6):
        producer.try_push(kind, b"x")
    producer.publish()
    assert consumer.poll(0) == []
    assert [kind for kind, _ in consumer.poll(2)] == [1, 2]
    assert [kind for kind, _ in consumer.poll(1)] == [3]
    assert [kind for kind, _ in consumer.poll(9)] == [4, 5]
    assert consumer.poll(9) == []


def test_polled_but_unreleased_bytes_are_not_reused(ends):
    producer, consumer = ends
    while producer.try_push(1, b"a" * 100):
        pass
    producer.publish()
    polled = consumer.poll(1000)
    assert not producer.try_push(2, b"b" * 100)
    assert producer.reserve(100) is None
    assert all(bytes(view) == b"a" * 100 for _, view in polled)
    consumer.release()
    assert producer.try_push(2, b"b" * 100)


def test_records_unread_by_ended_consumer_are_reported(ends):
    producer, consumer = ends
    for number in range(12):  # So that the next ones lie around the ring's end, with padding between them.
        assert producer.try_push(1, b"%050d" % number)
    producer.publish()
    take(consumer, 11)
    for number in range(12, 18):
        assert producer.try_push(2, b"%0100d" % number)
    assert [bytes(view) for _, view in consumer.poll(1)] == [b"%050d" % 11]
    producer.publish()
    assert producer.try_push(3, b"not published")
    assert producer.untaken() is None, (
        "it may have taken any of them, as long as it goes on or if it was killed"
    )
    consumer.finish()
    assert producer.untaken() == [
        *((2, b"%0100d" % number) for number in range(12, 18)),
        (3, b"not published"),
    ]
    assert producer.progress()[0] > CAPACITY, "there was padding"


def test_full_ring_changes_nothing_that_the_consumer_sees(ends):
    producer, consumer = ends
    count = 0
    while producer.try_push(1, count.to_bytes(100, "little")):
        count += 1
    assert not producer.try_push(1, b"x" * 100)
    assert producer.reserve(200) is None
    producer.publish()
    assert [int.from_bytes(record, "little") for _, record in take(consumer)] == list(range(count))


def test_free_bytes_include_headers_alignment_and_released(ends):
    producer, consumer = ends
    assert producer.free_bytes() == producer.capacity == CAPACITY
    producer.try_push(1, b"123456789")
    assert producer.free_bytes() == CAPACITY - 24
    producer.publish()
    consumer.poll(1)
    assert producer.free_bytes() == CAPACITY - 24
    consumer.release()
    assert producer.free_bytes() == CAPACITY


def test_every_byte_can_be_used(ends):
    producer, consumer = ends
    for _ in range(2):
        for _ in range(2):
            assert producer.try_push(1, bytes(producer.record_bytes_max))
        for _ in range(2):
            assert producer.reserve(producer.record_bytes_max) is not None
            producer.commit(producer.record_bytes_max, 1)
        assert producer.free_bytes() == 0
        assert not producer.try_push(1)
        assert producer.reserve(0) is None
        producer.publish()
        assert len(take(consumer)) == 4


def test_largest_record_fits_an_empty_ring_at_every_slot():
    """Padding may cost up to a record, so a limit above half of the ring could wait for ever."""
    for slot in range(0, CAPACITY, 8):
        with open_ring(CAPACITY, start_sequence=5 * CAPACITY + slot) as (producer, consumer):
            for fill in (b"r", b"p"):
                record = fill * producer.record_bytes_max
                if fill == b"r":
                    producer.reserve(len(record))[:] = record
                    producer.commit(len(record), 3)
                else:
                    assert producer.try_push(3, record)
                producer.publish()
                assert take(consumer) == [(3, record)]


def test_record_larger_than_the_limit_is_refused_loudly(ends):
    producer, consumer = ends
    too_long = producer.record_bytes_max + 1
    with pytest.raises(ValueError, match=f"record of {too_long} bytes; this ring takes {too_long - 1}"):
        producer.reserve(too_long)
    with pytest.raises(ValueError, match="this ring takes"):
        producer.try_push(1, bytes(too_long - 1), b"x")
    producer.publish()
    assert consumer.is_empty()


def test_sequences_beyond_32_bits_keep_working():
    with open_ring(CAPACITY, start_sequence=(1 << 40) - 64) as (producer, consumer):
        for count in range(200):
            assert producer.try_push(1, count.to_bytes(60, "little"))
            producer.publish()
            assert take(consumer) == [(1, count.to_bytes(60, "little"))]
        assert words_of(producer)[HEAD] > 1 << 40


def test_push_that_fails_halfway_leaves_nothing(ends):
    producer, consumer = ends
    with pytest.raises(TypeError):
        producer.try_push(1, b"good", ["not bytes"])
    assert producer.try_push(2, b"next")
    producer.publish()
    assert take(consumer) == [(2, b"next")]


def test_socket_receives_straight_into_the_ring(ends):
    producer, consumer = ends
    near, far = socket.socketpair()
    with near, far:
        far.sendall(b"request bytes")
        count = near.recv_into(producer.reserve(200))
    producer.commit(count, 9)
    producer.publish()
    assert take(consumer) == [(9, b"request bytes")]


def test_each_end_takes_up_where_the_words_stand(ends):
    """An end may be opened again by the same process; sequences are never reset."""
    producer, consumer = ends
    with make_ring(CAPACITY) as region:
        producer, consumer = RingProducer(region), RingConsumer(region)
        producer.try_push(1, b"one")
        producer.publish()
        producer.try_push(1, b"never published")
        producer = RingProducer(region)
        producer.try_push(1, b"two")
        producer.publish()
        assert [bytes(view) for _, view in consumer.poll(1)] == [b"one"]
        consumer = RingConsumer(region)
        assert [record for _, record in take(consumer)] == [b"one", b"two"]


@in_one_test("capacity", [0, -1024, 1000, RING_CAPACITY_BYTES_MIN // 2, 1 << 32])
def test_capacity_must_be_a_power_of_two_within_limits(capacity):
    with (
        Region.create(RegionKind.LINK, 1 << 13, 1) as region,
        pytest.raises(ValueError, match="ring capacity"),
    ):
        format_ring(region, 0, capacity)


def test_ring_must_fit_its_payload():
    with Region.create(RegionKind.LINK, 1024, 1) as region, pytest.raises(ValueError, match="does not fit"):
        format_ring(region, 0, 1024)


def test_opening_a_ring_where_none_was_made_is_fatal():
    with Region.create(RegionKind.LINK, 4096, 1) as region:
        for end in (RingProducer, RingConsumer):
            with pytest.raises(FatalError, match=r"no ring at offset 0 .*capacity 0"):
                end(region)
        with pytest.raises(FatalError, match="outside a payload"):
            RingConsumer(region, 4096)
        region.words[RING_HEADER.word["capacity"]] = 1 << 20
        with pytest.raises(FatalError, match="outside a payload"):
            RingConsumer(region)


@pytest.mark.parametrize(
    ("tail", "header"),
    [
        (16, (100, 1)),  # reaches beyond the tail
        (16, (0xFFFF_FFFF, 1)),
        (8, (0, 0)),  # an unwritten header reads as padding of no length; then nothing may follow it
        (CAPACITY + 128, (CAPACITY, 1)),  # longer than the ring
    ],
)
def test_damaged_record_is_fatal_and_never_handed_out(ends, tail, header):
    producer, consumer = ends
    ring_module._pack_header(data_of(producer), 0, *header)
    words_of(producer)[TAIL] = tail
    if header == (0, 0):
        assert consumer.poll(10) == []
        return
    with pytest.raises(FatalError, match="ring is damaged: head 0, tail"):
        consumer.poll(10)


@pytest.mark.parametrize("head", [8, 1 << 63])
def test_head_beyond_what_was_published_is_fatal(ends, head):
    producer, _ = ends
    words_of(producer)[HEAD] = head
    with pytest.raises(FatalError, match=f"ring is damaged: head {head}"):
        producer.free_bytes()


def test_head_that_moves_back_is_fatal(ends):
    producer, consumer = ends
    producer.try_push(1, b"x")
    producer.publish()
    take(consumer)
    producer.free_bytes()
    words_of(producer)[HEAD] = 0
    with pytest.raises(FatalError, match="ring is damaged"):
        producer.free_bytes()


def test_publish_and_release_are_fenced_on_weak_memory_cpu(ends, monkeypatch):
    calls: list[int] = []
    producer, consumer = ends
    monkeypatch.setattr(ring_module, "WEAKLY_ORDERED", True)
    # The fence comes before the store it protects: at that moment the word is the old one.
    monkeypatch.setattr(ring_module, "fence", lambda: calls.append(int(words_of(producer)[TAIL])))
    producer.try_push(1, b"x")
    producer.publish()
    assert calls == [0]
    consumer.poll(1)
    assert calls == [0, 16]
    monkeypatch.setattr(ring_module, "fence", lambda: calls.append(int(words_of(producer)[HEAD])))
    consumer.release()
    producer.free_bytes()
    assert calls == [0, 16, 0, 16]


def test_closing_the_region_ends_reservations_and_polled_views():
    """A peer dies in the middle of anything: the old region's memory must not wait for our next record."""
    before = open_descriptors()
    region = make_ring(CAPACITY)
    producer, consumer = RingProducer(region), RingConsumer(region)
    producer.try_push(1, b"x")
    producer.publish()
    [(_, polled)] = consumer.poll(1)
    reserved = producer.reserve(10)
    assert region.close()
    for view in (polled, reserved):
        with pytest.raises(ValueError, match="released"):
            view[0]
    assert open_descriptors() == before


@pytest.mark.long
def test_records_are_never_torn_between_processes():
    """Random lengths in a small ring: hundreds of wraps, every record checked by its CRC and its number."""
    records, capacity = 40_000, 4096
    with make_ring(capacity) as region:

        def produce() -> int:
            producer = RingProducer(region)
            refused = 0
            state = 12345
            for number in range(records):
                state = (state * 1103515245 + 12345) & 0x7FFFFFFF
                body = number.to_bytes(8, "little") * (1 + (state >> 16) % 100)
                record = zlib.crc32(body).to_bytes(4, "little") + body
                while not producer.try_push(1 + number % 5, record):
                    refused += 1
                    producer.publish()
                    os.sched_yield()
                if state & 0x30000 == 0:
                    producer.publish()
            producer.publish()
            return refused

        child = Forked(produce)
        consumer = RingConsumer(region)
        number = polls = 0
        while number < records:
            batch = consumer.poll(1 + polls % 7)
            polls += 1
            if not batch:
                os.sched_yield()
                assert polls < 50_000_000
                continue
            for kind, view in batch:
                body = view[4:]
                assert zlib.crc32(body).to_bytes(4, "little") == view[:4]
                assert int.from_bytes(body[:8], "little") == number
                assert kind == 1 + number % 5
                number += 1
            del body, view, batch
            consumer.release()
        refused = child.result()
        assert consumer.is_empty()
        assert refused > 0, "the ring was never full, so this proves little"
