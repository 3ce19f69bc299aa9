"""Several Handlers serve one connection: whoever got the request, the owner appends, reads and wakes."""

from __future__ import annotations

import gc
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC
from kproc.broker.coordinator.partitioning import partition_for
from kproc.broker.fetch.fetch_owners import RemoteReads
from kproc.broker.peers.owners import Join, OwnersRequest
from kproc.broker.request import registry
from kproc.broker.request.routing import OWNER, body_key
from kproc.broker.role.roles import handler_id
from kproc.broker.transport.envelope import CLOSE, NO_OP
from kproc.broker.transport.outbox import Outbox
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire import codec
from kproc.wire.header import ApiKey, parse_request_header
from tests.support.groups import join_fields
from tests.support.handler_rig import Answer, HandlerRig, parts_of
from tests.support.in_memory_controller import topic
from tests.support.raw import batch, fetch_fields, list_offsets_fields, produce_fields, values_of

Start = Callable[..., HandlerRig]
PRODUCE_VERSION, FETCH_VERSION, LIST_VERSION = 9, 12, 7
PARTITIONS = 6
NO_ID = bytes(16)
WAIT_MS = 500
NOT_LEADER, UNKNOWN = int(ErrorCode.NOT_LEADER_OR_FOLLOWER), int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@pytest.fixture(params=["ring", "pipe"])
def rig(request: pytest.FixtureRequest, start: Start) -> HandlerRig:
    """Three Handlers and a topic with two partitions at each."""
    made = start(handlers=3, link_kind=request.param)
    made.create_topic("t", partitions=PARTITIONS)
    assert sorted(made.owner("t", index) for index in range(PARTITIONS)) == [0, 0, 1, 1, 2, 2]
    return made


def at(rig: HandlerRig, owner: int) -> int:
    """The first partition of that owner."""
    return next(index for index in range(PARTITIONS) if rig.owner("t", index) == owner)


def produce(
    rig: HandlerRig, home: int, *partitions: int, acks: int = -1, value: bytes = b"v", **more: Any
) -> list[tuple[int, int, int]]:
    """(partition, error code, base offset) of a Produce that the Handler `home` got."""
    parts = [(index, batch(value, **more)) for index in partitions]
    fields = produce_fields([("t", NO_ID, parts)], acks=acks)
    answer = rig.processors[home].ask(ApiKey.PRODUCE, PRODUCE_VERSION, fields)
    rows = answer["responses"][0]["partition_responses"]
    return [(row["index"], row["error_code"], row["base_offset"]) for row in rows]


def send_fetch(rig: HandlerRig, home: int, *partitions: int, offset: int = 0, **more: Any) -> None:
    wanted = [(index, offset) for index in partitions]
    fields = fetch_fields([("t", NO_ID, wanted)], **{"max_wait_ms": WAIT_MS, **more})
    rig.processors[home].send(ApiKey.FETCH, FETCH_VERSION, fields)


def rows_of(answer: Answer) -> dict[int, tuple[int, list[bytes | None]]]:
    """Partition -> (error code, values) of a Fetch answer, in its order."""
    (topic,) = answer.fields(ApiKey.FETCH, FETCH_VERSION)["responses"]
    return {
        row["partition_index"]: (row["error_code"], [value for _, value in values_of(row["records"])])
        for row in topic["partitions"]
    }


def fetched(rig: HandlerRig, home: int) -> dict[int, tuple[int, list[bytes | None]]]:
    (answer,) = rig.processors[home].answers()
    return rows_of(answer)


def assert_nothing_waits(rig: HandlerRig) -> None:
    for handler in rig.handlers:
        if handler is not None:
            assert len(parts_of(handler).purgatory) == 0, handler.id
            assert len(parts_of(handler).calls) == 0, handler.id


# -- Produce -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("home", [0, 1, 2])
def test_produce_reaches_the_owner_whoever_got_it(rig: HandlerRig, home: int) -> None:
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


# -- Fetch ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("home", [0, 1, 2])
def test_one_fetch_reads_from_all_owners(rig: HandlerRig, home: int) -> None:
    for index in range(PARTITIONS):
        produce(rig, index % 3, index, value=b"value %d" % index)
    order = [5, 1, 3, 0, 4, 2]
    send_fetch(rig, home, *order, max_wait_ms=0)
    rows = fetched(rig, home)
    assert rows == {index: (0, [b"value %d" % index]) for index in order}
    assert list(rows) == order
    assert_nothing_waits(rig)


@pytest.mark.parametrize("owner", [0, 1, 2])
def test_append_at_any_handler_wakes_a_long_poll(rig: HandlerRig, owner: int) -> None:
    send_fetch(rig, 0, *range(PARTITIONS))
    assert rig.processors[0].answers() == []
    there = at(rig, owner)
    produce(rig, 2 if owner == 1 else 1, there, value=b"awaited")
    rows = fetched(rig, 0)
    assert rows[there] == (0, [b"awaited"])
    assert sum(len(values) for _, values in rows.values()) == 1


@pytest.mark.parametrize("owner", [0, 1])
def test_append_during_requests_to_other_owners_is_noticed(rig: HandlerRig, owner: int) -> None:
    there = at(rig, owner)
    send_fetch(rig, 0, *range(PARTITIONS))
    rig.handler(0).do_work(0)  # It has read its own and asked the others.
    fields = produce_fields([("t", NO_ID, [(there, batch(b"between"))])])
    rig.processors[owner].send(ApiKey.PRODUCE, PRODUCE_VERSION, fields, connection=2)
    rig.handler(owner).do_work(0)
    answers = [answer for answer in rig.processors[0].answers() if answer.connection_id == 1]
    assert len(answers) == 1
    assert rows_of(answers[0])[there] == (0, [b"between"])


def test_append_at_replied_owner_is_noticed_while_other_waits(rig: HandlerRig) -> None:
    """Its news comes in the middle of a round, which has read that owner already."""
    there = at(rig, 1)
    send_fetch(rig, 0, *range(PARTITIONS))
    rig.handler(0).do_work(0)  # It has asked both.
    rig.handler(1).do_work(0)  # One has read nothing, and watches.
    fields = produce_fields([("t", NO_ID, [(there, batch(b"between"))])])
    rig.processors[1].send(ApiKey.PRODUCE, PRODUCE_VERSION, fields)
    rig.handler(1).do_work(0)
    rig.handler(0).do_work(0)  # It hears of both before the other owner has said anything.
    rows = fetched(rig, 0)
    assert rows[there] == (0, [b"between"])
    rig.advance_ms(WAIT_MS)
    assert_nothing_waits(rig)


def test_answered_long_poll_is_forgotten_everywhere(rig: HandlerRig) -> None:
    send_fetch(rig, 0, *range(PARTITIONS))
    produce(rig, 2, at(rig, 1))
    assert len(fetched(rig, 0)) == PARTITIONS
    assert_nothing_waits(rig)
    rig.advance_ms(WAIT_MS)
    assert rig.processors[0].answers() == []


def test_watch_that_begins_after_the_answer_ends_at_once(rig: HandlerRig) -> None:
    here, there = at(rig, 0), at(rig, 1)
    send_fetch(rig, 0, here, there, min_bytes=2000)
    rig.settle()
    few, enough = batch(b"few"), batch(b"x" * 3000)
    for owner, partition, records in ((1, there, few), (0, here, enough)):
        # The owner tells of a little; while the home Handler asks it again, enough comes to the home itself.
        fields = produce_fields([("t", NO_ID, [(partition, records)])])
        rig.processors[owner].send(ApiKey.PRODUCE, PRODUCE_VERSION, fields, connection=2)
        rig.handler(owner).do_work(0)
        rig.handler(0).do_work(0)
    answers = [answer for answer in rig.processors[0].answers() if answer.connection_id == 1]
    assert rows_of(answers[0])[here] == (0, [b"x" * 3000])
    assert_nothing_waits(rig)


def test_long_poll_answers_with_nothing_at_its_deadline(rig: HandlerRig) -> None:
    send_fetch(rig, 0, *range(PARTITIONS))
    rig.settle()
    rig.advance_ms(WAIT_MS - 1)
    assert rig.processors[0].answers() == []
    rig.advance_ms(1)
    assert fetched(rig, 0) == {index: (0, []) for index in range(PARTITIONS)}
    assert_nothing_waits(rig)


def test_min_bytes_are_counted_over_all_owners(rig: HandlerRig) -> None:
    size = len(batch(b"v" * 100))
    send_fetch(rig, 0, *range(PARTITIONS), min_bytes=3 * size)
    for number, owner in enumerate((1, 0, 2)):
        assert rig.processors[0].answers() == [], f"after {number} appends"
        fields = produce_fields([("t", NO_ID, [(at(rig, owner), batch(b"v" * 100))])])
        rig.processors[owner].ask(ApiKey.PRODUCE, PRODUCE_VERSION, fields)
    rows = fetched(rig, 0)
    assert sum(len(values) for _, values in rows.values()) == 3


def test_min_bytes_of_remote_partition_waits_for_last_byte(rig: HandlerRig) -> None:
    there = at(rig, 2)
    size = len(batch(b"v" * 100))
    send_fetch(rig, 0, there, min_bytes=4 * size)
    for _ in range(4):
        assert rig.processors[0].answers() == []
        produce(rig, 2, there, value=b"v" * 100)
    assert fetched(rig, 0) == {there: (0, [b"v" * 100] * 4)}


def test_deadline_answers_with_less_than_min_bytes(rig: HandlerRig) -> None:
    here, there = at(rig, 0), at(rig, 1)
    send_fetch(rig, 0, here, there, min_bytes=10_000)
    produce(rig, 0, there, value=b"remote")
    produce(rig, 0, here, value=b"local")
    rig.advance_ms(WAIT_MS)
    assert fetched(rig, 0) == {here: (0, [b"local"]), there: (0, [b"remote"])}
    assert_nothing_waits(rig)


def test_max_bytes_is_shared_by_owners_but_returns_something(rig: HandlerRig) -> None:
    for index in range(PARTITIONS):
        produce(rig, 0, index, value=bytes([65 + index]) * 1000)
    send_fetch(rig, 0, *range(PARTITIONS), max_bytes=1500, max_wait_ms=0)
    rows = fetched(rig, 0)
    assert sum(len(values) for _, values in rows.values()) == 1
    send_fetch(rig, 0, *range(PARTITIONS), max_bytes=1, max_wait_ms=0)
    assert sum(len(values) for _, values in fetched(rig, 0).values()) == 1


def test_owners_death_ends_long_poll_with_retriable_error(rig: HandlerRig) -> None:
    here, there = at(rig, 0), at(rig, 1)
    send_fetch(rig, 0, here, there)
    assert rig.processors[0].answers() == []
    rig.kill(1)
    assert fetched(rig, 0) == {here: (0, []), there: (NOT_LEADER, [])}
    rig.start_handler(1, is_restart=True)
    send_fetch(rig, 0, there, max_wait_ms=0)
    assert fetched(rig, 0) == {there: (0, [])}


def test_death_of_an_owner_before_its_first_answer_is_answered(rig: HandlerRig) -> None:
    there = at(rig, 1)
    send_fetch(rig, 0, there)
    rig.handler(0).do_work(0)
    rig.kill(1)
    assert fetched(rig, 0) == {there: (NOT_LEADER, [])}


@pytest.mark.parametrize("owner", [0, 1])
def test_topic_that_is_deleted_ends_a_long_poll(rig: HandlerRig, owner: int) -> None:
    there = at(rig, owner)
    send_fetch(rig, 0, there)
    assert rig.processors[0].answers() == []
    rig.delete_topic("t")
    assert fetched(rig, 0) == {there: (UNKNOWN, [])}
    rig.advance_ms(WAIT_MS)
    assert_nothing_waits(rig)


@pytest.mark.parametrize("owner", [0, 1])
def test_topic_that_was_deleted_a_moment_ago_is_unknown(rig: HandlerRig, owner: int) -> None:
    there = at(rig, owner)
    rig.delete_topic("t")
    send_fetch(rig, 0, there)
    assert fetched(rig, 0) == {there: (UNKNOWN, [])}


@pytest.mark.parametrize("owner", [0, 1])
def test_fetch_by_topic_id_reads_nothing_of_namesake(rig: HandlerRig, owner: int) -> None:
    """The owner hears of the deletion and of the new topic first, then of what was asked before both."""
    there, old = at(rig, owner), rig.cluster.image.topics_by_name["t"].topic_id
    fields = fetch_fields([("", old, [(there, 0)])], max_wait_ms=WAIT_MS)
    rig.processors[0].send(ApiKey.FETCH, 13, fields)
    rig.handler(0).do_work(0)
    while rig.cluster.image.topics_by_name["t"].topic_id == old or rig.owner("t", there) != owner:
        rig.cluster.do("delete_topics", topics=[{"name": "t", "topic_id": NO_ID}])
        rig.cluster.create(topic("t", PARTITIONS))
    rig.tell()
    assert produce(rig, 2, there, value=b"of the namesake") == [(there, 0, 0)]
    rig.advance_ms(WAIT_MS)
    (answer,) = rig.processors[0].answers()
    (row,) = answer.fields(ApiKey.FETCH, 13)["responses"]
    assert row["topic_id"] == old
    assert values_of(row["partitions"][0]["records"]) == []
    assert row["partitions"][0]["error_code"] in (UNKNOWN, int(ErrorCode.INCONSISTENT_TOPIC_ID))
    assert_nothing_waits(rig)


def test_client_that_leaves_takes_its_long_poll_along(rig: HandlerRig) -> None:
    send_fetch(rig, 0, *range(PARTITIONS))
    rig.processors[0].answers()
    rig.processors[0].disconnect()
    rig.settle()
    assert_nothing_waits(rig)
    produce(rig, 1, at(rig, 1))
    assert all(answer.kind == NO_OP for answer in rig.processors[0].answers())
    rig.advance_ms(WAIT_MS)
    assert_nothing_waits(rig)


def test_client_leaving_before_owners_reply_is_harmless(rig: HandlerRig) -> None:
    send_fetch(rig, 0, at(rig, 1))
    rig.handler(0).do_work(0)
    rig.processors[0].disconnect()
    rig.settle()
    rig.advance_ms(WAIT_MS)
    assert_nothing_waits(rig)


def test_other_requests_of_the_client_that_left_are_not_touched(rig: HandlerRig) -> None:
    fields = fetch_fields([("t", NO_ID, [(at(rig, 0), 0)])], max_wait_ms=WAIT_MS)
    for connection in (1, 2):
        rig.processors[0].send(ApiKey.FETCH, FETCH_VERSION, fields, connection=connection)
    rig.settle()
    rig.processors[0].disconnect(1)
    produce(rig, 1, at(rig, 0), value=b"for the other")
    answers = [answer for answer in rig.processors[0].answers() if answer.kind != NO_OP]
    assert [answer.connection_id for answer in answers] == [2]


def test_answer_to_one_long_poll_keeps_other_of_connection(rig: HandlerRig) -> None:
    here, there = at(rig, 0), at(rig, 1)
    send_fetch(rig, 0, here)
    send_fetch(rig, 0, there)
    rig.settle()
    produce(rig, 1, here)
    assert [answer.sequence for answer in rig.processors[0].answers()] == [0]
    rig.processors[0].disconnect()
    rig.settle()
    assert len(parts_of(rig.handler(0)).purgatory) == 0


def test_offset_out_of_range_at_another_owner_is_told_at_once(rig: HandlerRig) -> None:
    there = at(rig, 2)
    produce(rig, 0, there)
    send_fetch(rig, 0, there, offset=17)
    assert fetched(rig, 0) == {there: (int(ErrorCode.OFFSET_OUT_OF_RANGE), [])}


def test_busy_partition_leaves_no_watch_behind_for_every_append(rig: HandlerRig) -> None:
    """min.bytes far away: each append lets the home Handler read again, and ask again."""
    there = at(rig, 1)
    send_fetch(rig, 0, there, at(rig, 0), min_bytes=10**6)
    for _ in range(50):
        produce(rig, 1, there)
        produce(rig, 1, at(rig, 0))
        assert len(parts_of(rig.handler(1)).purgatory) <= 1
        assert len(parts_of(rig.handler(0)).calls) <= 1
    rig.advance_ms(WAIT_MS)
    assert len(rig.processors[0].answers()) == 1
    assert_nothing_waits(rig)


# -- the rest ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("home", [0, 1, 2])
def test_list_offsets_asks_every_owner(rig: HandlerRig, home: int) -> None:
    for index in range(PARTITIONS):
        for _ in range(index):
            produce(rig, 0, index)
    wanted = list_offsets_fields("t", [(index, -1) for index in (3, 0, 5, 1, 4, 2)])
    (answer,) = rig.processors[home].ask(ApiKey.LIST_OFFSETS, LIST_VERSION, wanted)["topics"]
    found = [(row["partition_index"], row["error_code"], row["offset"]) for row in answer["partitions"]]
    assert found == [(index, 0, index) for index in (3, 0, 5, 1, 4, 2)]


def test_list_offsets_of_a_lost_owner_is_retriable(rig: HandlerRig) -> None:
    here, there = at(rig, 0), at(rig, 1)
    rig.kill(1)
    wanted = list_offsets_fields("t", [(here, -1), (there, -1)])
    (answer,) = rig.processors[0].ask(ApiKey.LIST_OFFSETS, LIST_VERSION, wanted)["topics"]
    assert [row["error_code"] for row in answer["partitions"]] == [0, NOT_LEADER]


def test_stopping_handler_answers_what_is_parked(rig: HandlerRig) -> None:
    send_fetch(rig, 0, *range(PARTITIONS), max_wait_ms=30_000)
    assert rig.processors[0].answers() == []
    rig.handler(0).drain()
    assert len(fetched(rig, 0)) == PARTITIONS
    assert rig.handler(0).is_drained()


def test_stopping_handler_parks_nothing_any_more(rig: HandlerRig) -> None:
    rig.handler(0).drain()
    send_fetch(rig, 0, at(rig, 0), max_wait_ms=30_000)
    assert len(rig.processors[0].answers()) == 1


@pytest.mark.long
def test_handler_whose_answers_wait_for_room_looks_again_soon(rig: HandlerRig) -> None:
    """Nobody wakes it when the Processor has made room."""
    assert rig.handler(0).next_deadline_ms() > 10
    fields = fetch_fields([("t", NO_ID, [(index, 0) for index in range(PARTITIONS)])] * 20)
    for connection in range(3000):
        rig.processors[0].send(ApiKey.FETCH, FETCH_VERSION, fields, connection=connection)
        if connection % 100 == 0:
            rig.settle()
    assert any(outbox.has_overflow for outbox in rig.handler(0)._outboxes)
    assert rig.handler(0).next_deadline_ms() <= 10
    answers = []
    while found := rig.processors[0].answers():
        answers += found
    assert rig.handler(0).next_deadline_ms() > 10


def test_frames_of_one_record_are_answered_by_their_sequence(rig: HandlerRig) -> None:
    there, here = at(rig, 1), at(rig, 0)
    frames = [
        codec.encode_request(
            ApiKey.PRODUCE, PRODUCE_VERSION, 7, "x", produce_fields([("t", NO_ID, [(index, batch(b"v"))])])
        )
        for index in (there, here, there)
    ]
    rig.processors[0].send_frames(frames)
    answers = rig.processors[0].answers()
    assert sorted(answer.sequence for answer in answers) == [0, 1, 2]
    offsets = {
        answer.sequence: answer.fields(ApiKey.PRODUCE, PRODUCE_VERSION)["responses"][0][
            "partition_responses"
        ][0]["base_offset"]
        for answer in answers
    }
    assert offsets == {0: 0, 1: 0, 2: 1}


def test_malformed_frame_closes_connection_and_skips_rest(rig: HandlerRig) -> None:
    good = codec.encode_request(
        ApiKey.PRODUCE, PRODUCE_VERSION, 7, "x", produce_fields([("t", NO_ID, [(at(rig, 0), batch(b"v"))])])
    )
    rig.processors[0].send_frames([good, b"\0\0\0\x05\0\0\0\x09x", good])
    rig.processors[0].send_frames([good], connection=2)
    answers = rig.processors[0].answers()
    assert sorted((answer.connection_id, answer.sequence, answer.kind == CLOSE) for answer in answers) == [
        (1, 0, False),
        (1, 1, True),
        (2, 0, False),
    ]
    assert rig.open("t", at(rig, 0)).log.state.end_offset == 2


def test_a_flood_of_malformed_requests_does_not_fill_the_log(
    rig: HandlerRig, caplog: pytest.LogCaptureFixture
) -> None:
    def flood(connections: range) -> None:
        for connection in connections:
            rig.processors[0].send_frames([b"\0\0\0\x05\0\0\0\x09x"], connection=connection)
            assert [answer.kind for answer in rig.processors[0].answers()] == [CLOSE]

    flood(range(2, 32))
    assert caplog.text.count("(API key 0, version 0)") == 10
    rig.advance_ms(1_000)
    flood(range(32, 33))
    assert "and 20 more connections were closed for their requests" in caplog.messages
    assert caplog.text.count("(API key 0, version 0)") == 11


@pytest.mark.parametrize("is_api", [True, False])
def test_flood_of_invalid_requests_does_not_fill_log(
    rig: HandlerRig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, is_api: bool
) -> None:
    """A Produce without an answer that fails, or an API that has no answer for errors; nothing follows the flood."""

    def refuse(*_: object) -> None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "no")

    caplog.set_level(logging.INFO)
    processor = rig.processors[0]
    for connection in range(2, 32):
        if is_api:
            api = registry.lookup(ApiKey.LIST_GROUPS)
            assert api is not None
            monkeypatch.setattr(api, "handler", refuse)
            monkeypatch.setattr(registry.Api, "error_response", None)
            processor.send(ApiKey.LIST_GROUPS, 0, {}, connection=connection)
        else:
            fields = produce_fields([("nobody", bytes(16), [(0, batch(b"v"))])], acks=0)
            processor.send(ApiKey.PRODUCE, 9, fields, connection=connection)
        assert [answer.kind for answer in processor.answers()] == [CLOSE]
    assert caplog.text.count("closing a connection") == 10
    assert "more connections" not in caplog.text
    rig.advance_ms(1_000)
    assert "and 20 more connections were closed for their requests" in caplog.messages
    rig.advance_ms(5_000)
    assert caplog.text.count("more connections") == 1, "told once"


def test_large_frame_is_read_from_arena_and_block_released(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    values = [random.Random(seed).randbytes(500_000) for seed in range(3)]
    for value in values:
        assert produce(rig, 0, 0, value=value)[0][1] == 0
        assert rig.arena.lent_count() == 0
    send_fetch(rig, 0, 0, partition_max_bytes=5_000_000)
    assert fetched(rig, 0) == {0: (0, values)}


def test_own_partition_produce_and_fetch_gather_nothing(
    rig: HandlerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = at(rig, 0)
    for kind in (Join, OwnersRequest, RemoteReads):
        monkeypatch.setattr(kind, "__init__", lambda *_: pytest.fail("made for one partition of ours"))
    for offset in range(3):  # Decoded, then of a known shape.
        assert produce(rig, 0, index) == [(index, 0, offset)]
        send_fetch(rig, 0, index)
        assert fetched(rig, 0) == {index: (0, [b"v"] * (offset + 1))}


def test_a_surprise_in_what_was_passed_on_stays_in_its_request(
    rig: HandlerRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(*_: Any) -> None:
        raise ZeroDivisionError

    fields = list_offsets_fields("t", [(at(rig, 1), -1)])
    with monkeypatch.context() as patched:
        patched.setattr("kproc.broker.api.list_offsets.find_offset", stumble)
        answer = rig.processors[0].ask(ApiKey.LIST_OFFSETS, LIST_VERSION, fields)
    assert [row["error_code"] for row in answer["topics"][0]["partitions"]] == [NOT_LEADER]
    assert "list_offsets, passed on by another role, failed" in caplog.text
    answer = rig.processors[0].ask(ApiKey.LIST_OFFSETS, LIST_VERSION, fields)
    assert [row["error_code"] for row in answer["topics"][0]["partitions"]] == [0]
