"""Fetch over several Handlers: the owners read and wake, whichever Handler received the request."""

from __future__ import annotations

import pytest

from kproc.broker.transport.envelope import NO_OP
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.in_memory_controller import topic
from tests.support.links import LINK_PARAMS
from tests.support.raw import batch, fetch_fields, produce_fields, values_of
from tests.support.several_handlers import (
    FETCH_VERSION,
    NO_ID,
    NOT_LEADER,
    PARTITIONS,
    PRODUCE_VERSION,
    UNKNOWN,
    WAIT_MS,
    Start,
    assert_nothing_waits,
    at,
    fetched,
    produce,
    rows_of,
    send_fetch,
    three_handlers,
)


@pytest.fixture(params=LINK_PARAMS)
def rig(request: pytest.FixtureRequest, start: Start) -> HandlerRig:
    return three_handlers(start, request.param)


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


def test_offset_out_of_range_at_other_owner_answers_at_once(rig: HandlerRig) -> None:
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
