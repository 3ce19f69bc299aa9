"""A partition given from one Handler to another goes on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kproc.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import batch, fetch_fields, produce_fields, values_of
from tests.unit.server.rig import HandlerRig

Start = Callable[..., HandlerRig]
NO_ID = bytes(16)


def produce(rig: HandlerRig, handler: int, records: bytes) -> tuple[int, int]:
    """(error code, base offset), asked of that Handler's Processor."""
    fields = produce_fields([("t", NO_ID, [(0, records)])])
    answer = rig.processors[handler].ask(ApiKey.PRODUCE, 9, fields)
    (row,) = answer["responses"][0]["partition_responses"]
    return row["error_code"], row["base_offset"]


def route_to(rig: HandlerRig, owner: int) -> None:
    """The routing table names another owner, as a delta of the controller would say."""
    for index in range(len(rig.handlers)):
        handler = rig.handler(index)
        handler._services.image.topics_by_name["t"].partitions[0].owner = owner
        handler._forget_shapes()


def hand_over(rig: HandlerRig, source: int, target: int) -> None:
    route_to(rig, target)
    state = rig.partitions(source).export(("t", 0))
    assert state is not None
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(state))
    topic = rig.handler(target)._services.image.topics_by_name["t"]
    rig.partitions(target).import_state(topic, topic.partitions[0], travelled)


def sequenced(number: int) -> bytes:
    return batch(b"%d" % number, producer_id=7, producer_epoch=0, base_sequence=number)


def test_offsets_and_producers_go_along(start: Start) -> None:
    rig = start(handlers=2)
    rig.create_topic("t")
    source = rig.owner("t")
    target = 1 - source
    for number in range(6):
        assert produce(rig, source, sequenced(number)) == (0, number)
    hand_over(rig, source, target)
    assert len(rig.partitions(source)) == 0
    assert produce(rig, target, sequenced(1)) == (0, 1), (
        "the fifth batch from the end is known as a duplicate"
    )
    assert produce(rig, target, sequenced(8))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(rig, target, sequenced(6)) == (0, 6)
    # And by way of the Handler that owned it before, which forwards now.
    assert produce(rig, source, sequenced(7)) == (0, 7)
    answer = rig.processors[source].ask(ApiKey.FETCH, 12, fetch_fields([("t", NO_ID, [(0, 0)])]))
    (row,) = answer["responses"][0]["partitions"]
    assert [value for _, value in values_of(row["records"])] == [b"%d" % number for number in range(8)]


def test_it_can_go_back(start: Start) -> None:
    rig = start(handlers=2)
    rig.create_topic("t")
    source = rig.owner("t")
    assert produce(rig, source, sequenced(0)) == (0, 0)
    hand_over(rig, source, 1 - source)
    assert produce(rig, 1 - source, sequenced(1)) == (0, 1)
    hand_over(rig, 1 - source, source)
    assert produce(rig, source, sequenced(1)) == (0, 1)
    assert produce(rig, source, sequenced(2)) == (0, 2)


def test_a_parked_fetch_of_a_partition_that_leaves_is_answered_retriable(start: Start) -> None:
    rig = start(handlers=2)
    rig.create_topic("t")
    source = rig.owner("t")
    assert produce(rig, source, sequenced(0)) == (0, 0)
    waiting = fetch_fields([("t", NO_ID, [(0, 1)])]) | {"max_wait": 60_000, "min_bytes": 1}
    rig.processors[source].send(ApiKey.FETCH, 12, waiting)
    assert rig.processors[source].answers() == []
    hand_over(rig, source, 1 - source)
    (answer,) = rig.processors[source].answers()
    (row,) = answer.fields(ApiKey.FETCH, 12)["responses"][0]["partitions"]
    assert row["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_log_in_a_sync_round_stays_until_the_round_ends(start: Start) -> None:
    rig = start(handlers=2, settings={"kproc.flush": "group"})
    rig.create_topic("t")
    source = rig.owner("t")
    fields = produce_fields([("t", NO_ID, [(0, sequenced(0))])]) | {"acks": -1}
    rig.processors[source].send(ApiKey.PRODUCE, 9, fields)
    assert rig.processors[source].answers() == []
    route_to(rig, 1 - source)
    assert rig.partitions(source).export(("t", 0)) is None
    rig.syncers[source].end_round()
    (answer,) = rig.processors[source].answers()
    (row,) = answer.fields(ApiKey.PRODUCE, 9)["responses"][0]["partition_responses"]
    assert (row["error_code"], row["base_offset"]) == (0, 0)
    assert rig.partitions(source).export(("t", 0)) is not None


def test_what_was_never_opened_has_nothing_to_hand_over(start: Start) -> None:
    rig = start(handlers=2)
    rig.create_topic("t")
    assert rig.partitions(rig.owner("t")).export(("t", 0)) is None
