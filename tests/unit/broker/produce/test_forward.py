"""Produce over several Handlers: the owner appends, whichever Handler received the request."""

from __future__ import annotations

import gc
import random

import pytest

from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC
from kproc.broker.coordinator.topic_coordinators import partition_for
from kproc.broker.request.routing import OWNER, body_key
from kproc.broker.role.roles import handler_id
from kproc.broker.transport.envelope import CLOSE, NO_OP
from kproc.broker.transport.outbox import Outbox
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey, parse_request_header
from tests.support.groups import join_fields
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.links import LINK_PARAMS
from tests.support.raw import batch, produce_fields
from tests.support.several_handlers import (
    NO_ID,
    NOT_LEADER,
    PARTITIONS,
    PRODUCE_VERSION,
    UNKNOWN,
    Start,
    assert_nothing_waits,
    at,
    fetched,
    produce,
    send_fetch,
    three_handlers,
)


@pytest.fixture(params=LINK_PARAMS)
def rig(request: pytest.FixtureRequest, start: Start) -> HandlerRig:
    return three_handlers(start, request.param)


# -- Produce -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("home", [0, 1, 2])
def test_produce_reaches_the_owner_from_any_home(rig: HandlerRig, home: int) -> None:
    for index in range(PARTITIONS):
        assert produce(rig, home, index) == [(index, 0, 0)]
        assert rig.open("t", index).log.state.end_offset == 1
    assert_nothing_waits(rig)


def test_request_over_all_owners_is_answered_once_in_order(rig: HandlerRig) -> None:
    order = [4, 0, 5, 2, 1, 3]
    assert produce(rig, 1, *order) == [(index, 0, 0) for index in order]
    assert [rig.open("t", index).log.state.end_offset for index in range(PARTITIONS)] == [1] * PARTITIONS


def test_errors_of_some_partitions_leave_the_others_alone(rig: HandlerRig) -> None:
    here, there = at(rig, 0), at(rig, 1)
    fields = produce_fields(
        [
            ("t", NO_ID, [(there, batch(b"a")), (99, batch(b"b")), (here, b"garbage"), (at(rig, 2), None)]),
            ("unknown", NO_ID, [(0, batch(b"c"))]),
        ]
    )
    first, second = rig.processors[0].ask(ApiKey.PRODUCE, PRODUCE_VERSION, fields)["responses"]
    codes = [row["error_code"] for row in first["partition_responses"]]
    assert codes == [0, UNKNOWN, int(ErrorCode.CORRUPT_MESSAGE), int(ErrorCode.INVALID_RECORD)]
    assert second["partition_responses"][0]["error_code"] == UNKNOWN


def test_forwarded_produce_teaches_the_router(rig: HandlerRig) -> None:
    there = at(rig, 2)
    fields = produce_fields([("t", NO_ID, [(there, batch(b"v"))])])
    processor = rig.processors[0]
    processor.ask(ApiKey.PRODUCE, PRODUCE_VERSION, fields)
    frame = memoryview(codec.encode_request(ApiKey.PRODUCE, PRODUCE_VERSION, 7, "test", fields))[4:]
    key = body_key(PRODUCE_VERSION, frame[parse_request_header(frame)[1] :])
    assert key is not None
    assert processor.hints == [OWNER.pack(2) + key]
    produce(rig, 0, at(rig, 0))
    assert len(processor.hints) == 1, "its own partitions need no hint"


def test_forwarded_acks_0_is_silent_and_its_error_closes(rig: HandlerRig) -> None:
    processor, there = rig.processors[0], at(rig, 1)
    for records, kind in ((batch(b"v"), NO_OP), (b"garbage" * 20, CLOSE)):
        fields = produce_fields([("t", NO_ID, [(there, records)])], acks=0)
        processor.send(ApiKey.PRODUCE, PRODUCE_VERSION, fields)
        (answer,) = processor.answers()
        assert answer.kind == kind


def test_death_of_the_owner_closes_the_connection(rig: HandlerRig) -> None:
    """An error would let the requests behind this one be refused for their sequences."""
    there = at(rig, 1)
    both = produce_fields([("t", NO_ID, [(there, batch(b"v")), (at(rig, 0), batch(b"v"))])])
    one = produce_fields([("t", NO_ID, [(there, batch(b"v"))])])
    for fields in (both, one):
        rig.processors[0].send(ApiKey.PRODUCE, PRODUCE_VERSION, fields)
    rig.handler(0).do_work(0)  # It has asked, and the owner has not answered.
    rig.kill(1)
    assert [answer.kind for answer in rig.processors[0].answers()] == [CLOSE, CLOSE]
    rig.processors[0].send(ApiKey.PRODUCE, PRODUCE_VERSION, one)
    assert [answer.kind for answer in rig.processors[0].answers()] == [CLOSE], "and at once while it is away"
    rig.start_handler(1, is_restart=True)
    assert produce(rig, 0, there) == [(there, 0, 0)]
    assert_nothing_waits(rig)


def test_dead_handlers_link_is_released_while_join_waits(rig: HandlerRig) -> None:
    rig.cluster.do("auto_create_topics", names=[GROUP_METADATA_TOPIC])
    rig.tell()
    group = next(
        name
        for name in map(str, range(99))
        if rig.owner(GROUP_METADATA_TOPIC, partition_for(name, rig.plan.config.offsets_topic_num_partitions))
        == 0
    )
    rig.processors[1].send(ApiKey.JOIN_GROUP, 3, join_fields(group))
    rig.settle()
    assert rig.processors[1].answers() == [], "the first rebalance waits for more members"
    (call,) = parts_of(rig.handler(0)).services.owner.forwarded
    sender = parts_of(rig.handler(0)).peers[handler_id(1)].link.sender
    rig.kill(1)
    rig.settle()
    assert [each for each in gc.get_referrers(sender) if isinstance(each, Outbox)] == []
    call.finish()
    rig.settle()


def test_absent_owners_partitions_fail_and_others_are_served(rig: HandlerRig) -> None:
    there, here = at(rig, 1), at(rig, 0)
    rig.kill(1)
    one = produce_fields([("t", NO_ID, [(there, batch(b"v"))])])
    rig.processors[0].send(ApiKey.PRODUCE, PRODUCE_VERSION, one)
    assert [answer.kind for answer in rig.processors[0].answers()] == [CLOSE], (
        "it may only be being restarted"
    )
    rig.advance_ms(1000)
    assert produce(rig, 0, there, here) == [(there, NOT_LEADER, -1), (here, 0, 0)]
    assert produce(rig, 0, there) == [(there, NOT_LEADER, -1)]
    send_fetch(rig, 0, there, here)
    assert fetched(rig, 0) == {there: (NOT_LEADER, []), here: (0, [b"v"])}
    rig.start_handler(1, is_restart=True)
    assert produce(rig, 0, there) == [(there, 0, 0)]
    assert_nothing_waits(rig)


def test_idempotent_retry_after_owners_death_is_no_duplicate(rig: HandlerRig) -> None:
    there = at(rig, 1)
    once = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    assert produce(rig, 0, there, **once) == [(there, 0, 0)]
    rig.kill(1)
    rig.start_handler(1, is_restart=True)
    assert produce(rig, 0, there, **once) == [(there, 0, 0)]
    assert rig.open("t", there).log.state.end_offset == 1


def test_successor_continues_where_the_dead_owner_was(rig: HandlerRig) -> None:
    there = at(rig, 2)
    for offset in range(5):
        assert produce(rig, 0, there, value=b"v%d" % offset) == [(there, 0, offset)]
    rig.kill(2)
    rig.start_handler(2, is_restart=True)
    send_fetch(rig, 1, there)
    assert fetched(rig, 1) == {there: (0, [b"v%d" % offset for offset in range(5)])}


def test_produce_that_is_longer_than_the_links_ring_is_forwarded(rig: HandlerRig) -> None:
    """A message longer than the ring goes in pieces, and the owner gives their room back as they come."""
    there = at(rig, 1)
    assert produce(rig, 0, there, value=random.Random(1).randbytes(900_000)) == [(there, 0, 0)]
    send_fetch(rig, 0, there)
    assert fetched(rig, 0) == {there: (0, [random.Random(1).randbytes(900_000)])}
