"""The cost of a Handler's pass, in bytecodes: a bound on what every request pays.

The counts depend on the version of Python, and on nothing that the host does meanwhile. Lower a bound when
a pass has become cheaper; raising one needs a reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from kproc.wire import codec
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import TRANSACTIONAL
from tests.support.bytecodes import count_bytecodes
from tests.support.fetch_frames import filled
from tests.support.fetch_frames import frame as fetch_frame
from tests.support.handler_rig import HandlerRig
from tests.support.handler_transactions import TOPIC, Producer, begun, cluster
from tests.support.raw import batch, produce_fields

pytestmark = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions have other bytecodes")

PRODUCER, CONSUMER = 1, 2  # Connections.
NEWEST = 120  # Where the records of the fixture end.
IDLE_MAX = 388
PRODUCE_MAX = 1663  # Each append moves and publishes the high watermark.
FETCH_MAX = 1374
# The Fetch that parks, and the Produce that wakes it: two passes. A request that waits keeps its identity, 9 bytecodes.
PARKED_MAX = 4114
# As librdkafka makes one: an add, a Produce to each of 3 partitions, an end, all in passes of their own.
TRANSACTION_MAX = 36_560


@pytest.fixture
def rig(start: Callable[..., HandlerRig]) -> HandlerRig:
    """One whose producer and consumer are known, and wait for nothing."""
    made = filled(start)
    for _ in range(3):
        send_produce(made)
        send_fetch(made, NEWEST)
        assert len(made.processors[0].answers()) == 2
    return made


def send_produce(rig: HandlerRig) -> None:
    fields = produce_fields([("t", bytes(16), [(0, batch(b"value"))])])
    frame = codec.encode_request(ApiKey.PRODUCE, 9, 7, "test", fields)
    rig.processors[0].send_frames([frame], connection=PRODUCER)


def send_fetch(rig: HandlerRig, offset: int) -> None:
    frame = fetch_frame(rig, 12, offset, max_wait_ms=60_000)
    rig.processors[0].send_frames([frame], connection=CONSUMER)


def transaction_frames(producer: Producer) -> list[list[bytes]]:
    """What a producer sends in a transaction, by passes."""
    ids = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    named = {"transactional_id": producer.name, **ids}
    topics = [{"name": TOPIC, "partitions": [0, 1, 2]}]
    added = {f"v3_and_below_{name}": value for name, value in named.items()} | {"v3_and_below_topics": topics}
    records = batch(b"value", **ids, base_sequence=0, flags=TRANSACTIONAL)
    produced = [produce_fields([(TOPIC, bytes(16), [(index, records)])], acks=-1) for index in range(3)]
    requests = [
        [(ApiKey.ADD_PARTITIONS_TO_TXN, 0, added)],
        [(ApiKey.PRODUCE, 10, fields | {"transactional_id": producer.name}) for fields in produced],
        [(ApiKey.END_TXN, 1, named | {"committed": True})],
    ]
    return [[codec.encode_request(*each[:2], 7, "test", each[2]) for each in pass_] for pass_ in requests]


def cost(rig: HandlerRig) -> int:
    """Of one pass, which ends in a short sleep."""
    return count_bytecodes(lambda: rig.handler().do_work(1), unless_in=__file__)


def test_pass_that_finds_nothing(rig: HandlerRig) -> None:
    assert cost(rig) <= IDLE_MAX


def test_produce_of_a_lone_client(rig: HandlerRig) -> None:
    send_produce(rig)
    count = cost(rig)
    assert len(rig.processors[0].answers(settles=False)) == 1
    assert count <= PRODUCE_MAX


def test_fetch_of_a_lone_client(rig: HandlerRig) -> None:
    send_fetch(rig, NEWEST)
    count = cost(rig)
    assert len(rig.processors[0].answers(settles=False)) == 1
    assert count <= FETCH_MAX


def test_fetch_that_waits_for_the_next_record(rig: HandlerRig) -> None:
    send_fetch(rig, rig.open("t").log.state.end_offset)
    parks = cost(rig)
    assert rig.processors[0].answers(settles=False) == []
    send_produce(rig)
    wakes = cost(rig)
    assert len(rig.processors[0].answers(settles=False)) == 2
    assert parks + wakes <= PARKED_MAX


def test_transaction_of_a_lone_producer(start: Callable[..., HandlerRig]) -> None:
    rig = cluster(start, handlers=1)
    producer = begun(rig)
    for is_counted in (False, True):
        count = 0
        for frames in transaction_frames(producer):
            rig.processors[0].send_frames(frames)
            count += cost(rig)
            assert len(rig.processors[0].answers()) == len(frames)
        assert count <= TRANSACTION_MAX or not is_counted
        assert producer.describe()["transaction_state"] == "CompleteCommit"
        assert producer.init() == 0  # Its sequences begin anew.
