"""kill -9 of either end of a ring, at chosen and at random moments: nothing half-written is ever seen."""

from __future__ import annotations

import os
import random
import signal
import socket
import zlib

import pytest

from kproc.broker.ipc.arena import Arena, ArenaReader
from kproc.broker.ipc.fdpass import make_socket_pair, recv_fd, send_fd
from kproc.broker.ipc.layout import RING_HEADER
from kproc.broker.ipc.link import create_link, open_first_end, open_second_end
from kproc.broker.ipc.region import Region, RegionKind, RegionMismatch
from kproc.broker.ipc.ring import RingConsumer, RingProducer
from tests.support.proc import open_descriptors
from tests.support.ring_pair import Forked, make_ring
from tests.support.wait import wait_until

pytestmark = pytest.mark.faults

CAPACITY = 4096
HEAD = RING_HEADER.word["head"]


def say_and_stop(ready: int) -> None:
    """Tell the parent that the moment has come, then wait for SIGKILL."""
    os.write(ready, b"!")
    while True:
        signal.pause()


def kill_when_ready(body) -> None:
    """Fork `body(ready)` and kill it in the middle of what it is doing when it says so."""
    read_end, write_end = os.pipe()
    child = Forked(lambda: body(write_end))
    assert os.read(read_end, 1) == b"!"
    child.kill()
    os.close(read_end)
    os.close(write_end)


def checked(number: int, length: int) -> bytes:
    body = number.to_bytes(4, "little") * (length // 4)
    return zlib.crc32(body).to_bytes(4, "little") + body


def check(view: memoryview, number: int) -> None:
    body = view[4:]
    assert zlib.crc32(body).to_bytes(4, "little") == bytes(view[:4]), "torn"
    assert int.from_bytes(body[:4], "little") == number, "out of order"


@pytest.mark.parametrize("last_step", ["reserved", "half filled", "committed", "pushed", "padded"])
def test_killed_ring_producer_leaves_only_published_records(last_step):
    with make_ring(CAPACITY) as region:

        def produce(ready: int) -> None:
            producer = RingProducer(region)
            for number in range(3):
                producer.try_push(1, checked(number, 400))
            producer.publish()
            if last_step == "padded":
                while producer.try_push(2, bytes(producer.record_bytes_max // 2)):
                    pass
            elif last_step == "pushed":
                producer.try_push(2, bytes(400))
            else:
                room = producer.reserve(400)
                if last_step != "reserved":
                    room[:200] = b"\xff" * 200
                if last_step == "committed":
                    producer.commit(400, 2)
            say_and_stop(ready)

        kill_when_ready(produce)
        consumer = RingConsumer(region)
        batch = consumer.poll(100)
        assert len(batch) == 3
        for number, (kind, view) in enumerate(batch):
            assert kind == 1
            check(view, number)
        consumer.release()
        assert consumer.is_empty()
        assert consumer.poll(100) == []


def test_producer_killed_at_random_moments_never_tears_a_record():
    rounds = int(os.environ.get("KPROC_TEST_KILLS", "6"))
    chance = random.Random(20_240)
    for _ in range(rounds):
        with make_ring(CAPACITY) as region:

            def produce(region: Region = region, seed: int = chance.getrandbits(32)) -> None:
                producer, lengths = RingProducer(region), random.Random(seed)
                number = 0
                while True:
                    record = checked(number, lengths.randrange(4, 1000, 4))
                    room = producer.reserve(len(record))
                    if room is None:
                        producer.publish()
                        continue
                    room[:] = record
                    producer.commit(len(record), 1)
                    number += 1
                    if number % 3 == 0:
                        producer.publish()

            child = Forked(produce)
            consumer = RingConsumer(region)
            number, enough = 0, chance.randrange(1, 2000)
            is_killed = False
            while True:
                batch = consumer.poll(5)
                for _, view in batch:
                    check(view, number)
                    number += 1
                consumer.release()
                if number >= enough and not is_killed:
                    child.kill()
                    is_killed = True
                elif is_killed and not batch:
                    break
            assert number >= enough


def test_killed_ring_consumer_releases_nothing_unfinished():
    with make_ring(CAPACITY) as region:
        producer = RingProducer(region)
        for number in range(8):
            assert producer.try_push(1, checked(number, 400))
        producer.publish()

        def consume(ready: int) -> None:
            consumer = RingConsumer(region)
            check(consumer.poll(1)[0][1], 0)
            consumer.release()
            polled = consumer.poll(2)
            check(polled[0][1], 1)
            say_and_stop(ready)

        kill_when_ready(consume)
        # One record came back; the two it died over and those behind them did not.
        refused_at = 0
        while producer.try_push(2, checked(100 + refused_at, 400)):
            refused_at += 1
        assert producer.reserve(producer.record_bytes_max) is None
        assert refused_at == 2
        assert region.words[HEAD] == 416
        survivor = RingConsumer(region)
        for number, (_, view) in enumerate(survivor.poll(100), 1):
            check(view, number)


def test_ring_producer_survives_consumer_killed_at_random():
    chance = random.Random(7)
    for _ in range(10):
        with make_ring(CAPACITY) as region:

            def consume(region: Region = region) -> None:
                consumer = RingConsumer(region)
                number = 0
                while True:
                    for _, view in consumer.poll(4):
                        check(view, number)
                        number += 1
                    consumer.release()

            producer = RingProducer(region)
            child = Forked(consume)
            pushed, enough = 0, chance.randrange(100, 3000)
            while pushed < enough:
                if producer.try_push(1, checked(pushed, 200)):
                    pushed += 1
                producer.publish()
            child.kill()
            # What remains is whole and in order: from some record to the last one published.
            producer.publish()
            rest = RingConsumer(region).poll(1000)
            for number, (_, view) in enumerate(rest, pushed - len(rest)):
                check(view, number)
            assert 0 <= producer.free_bytes() <= CAPACITY


def test_ring_of_new_generation_replaces_that_of_dead_role():
    """The whole replacement: new region, new descriptor over a socket, the late old one refused."""
    before = open_descriptors()
    supervisor, role = make_socket_pair()
    old = create_link(CAPACITY, CAPACITY, generation=1)
    requests, responses = open_first_end(old)
    requests.try_push(1, b"in flight")
    requests.publish()

    def die(ready: int) -> None:
        producer, consumer = open_second_end(old)
        assert len(consumer.poll(1)) == 1
        producer.reserve(100)[:] = b"\xee" * 100
        say_and_stop(ready)

    kill_when_ready(die)
    assert responses.poll(10) == []

    def serve() -> bytes:
        role.setblocking(True)
        _, late_fd = recv_fd(role, 100)
        with pytest.raises(RegionMismatch, match="generation 1, expected 2"):
            Region.attach(late_fd, kind=RegionKind.LINK, generation=2)
        _, fd = recv_fd(role, 100)
        with Region.attach(fd, kind=RegionKind.LINK, generation=2) as region:
            producer, consumer = open_second_end(region)
            wait_until(lambda: not consumer.is_empty())
            [(_, view)] = consumer.poll(10)
            request = bytes(view)
            consumer.release()
            producer.try_push(2, b"answer to " + request)
            producer.publish()
            return request

    new = create_link(CAPACITY, CAPACITY, generation=2)
    assert send_fd(supervisor, b"link", old.fd)
    assert send_fd(supervisor, b"link", new.fd)
    assert old.close()
    requests, responses = open_first_end(new)
    requests.try_push(1, b"again")
    requests.publish()
    assert Forked(serve).result() == b"again"
    assert [bytes(view) for _, view in responses.poll(10)] == [b"answer to again"]
    assert new.close()
    supervisor.close()
    role.close()
    assert open_descriptors() == before


def test_arena_block_of_killed_reader_can_be_released():
    near, far = socket.socketpair()
    arena = Arena.create(1 << 20, 1, warm_bytes=0)
    offset = arena.allocate(100_000)
    arena.view(offset, 100_000)[:] = b"b" * 100_000

    def read(ready: int) -> None:
        reader = ArenaReader.attach(os.dup(arena.fd), generation=1)
        assert bytes(reader.view(offset, 5)) == b"bbbbb"
        say_and_stop(ready)

    with near, far:
        kill_when_ready(read)
    arena.free(offset)
    assert arena.resident_bytes() == 4096
    assert arena.allocate(1 << 20) == 0
    assert arena.close()
