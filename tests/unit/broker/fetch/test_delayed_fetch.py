"""Parked Fetches of the fast path: the same responses at the same moments as on the general path."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kproc.broker.cluster.client_quotas import CONSUMER_BYTE_RATE
from kproc.broker.role.roles import processor_id
from kproc.broker.transport.envelope import DISCONNECTED, FLAG_MOVED, HEAD, MOVE_OUT, MOVED, SEND_PARTS
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.fetch_frames import SOME, Asker, fill, filled, frame, id_of, make_small_segments
from tests.support.handler_quotas import set_quota
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.logs import batch
from tests.support.parked_fetches import END, GENERAL, KNOWN, answers_alike, operations, park

Start = Callable[..., HandlerRig]


@pytest.fixture
def rig(start: Start) -> HandlerRig:
    return filled(start)


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("version", SOME)
def test_an_append_answers(rig: HandlerRig, version: int, isolation: int) -> None:
    park(rig, version, isolation_level=isolation)
    append(rig, 300)
    row = answers_alike(rig, version)
    assert row is not None
    assert (row["error_code"], row["high_watermark"]) == (0, END + 1)
    assert row["records"]


def append(rig: HandlerRig, value_bytes: int, partition: int = 0) -> None:
    owned = rig.open("t", partition)
    owned.log.append([batch(bytes(value_bytes))])
    owned.after_append()


@pytest.mark.parametrize("version", SOME)
def test_the_deadline_answers_without_records(rig: HandlerRig, version: int) -> None:
    park(rig, version)
    rig.advance_ms(499)
    assert answers_alike(rig, version) is None
    rig.advance_ms(2)
    row = answers_alike(rig, version)
    assert row is not None
    assert (row["error_code"], row["high_watermark"], row["records"]) == (0, END, b"")


def test_less_than_min_bytes_waits_until_deadline(rig: HandlerRig) -> None:
    park(rig, 11, min_bytes=1000)
    append(rig, 300)
    assert answers_alike(rig, 11) is None
    append(rig, 300)
    assert answers_alike(rig, 11) is None
    rig.advance_ms(501)
    row = answers_alike(rig, 11)
    assert row is not None
    assert len(row["records"]) > 600


def test_enough_bytes_answer_before_the_deadline(rig: HandlerRig) -> None:
    park(rig, 11, min_bytes=1000)
    append(rig, 300)
    assert answers_alike(rig, 11) is None
    append(rig, 700)
    assert answers_alike(rig, 11) is not None


def test_some_records_are_there_when_it_comes(rig: HandlerRig) -> None:
    """It waits for more of them."""
    park(rig, 12, offset=END - 1, min_bytes=3000, partition_max_bytes=6000)
    append(rig, 2800)
    row = answers_alike(rig, 12)
    assert row is not None
    assert row["high_watermark"] == END + 1


def test_min_bytes_0_never_waits(rig: HandlerRig) -> None:
    ask = Asker(rig)
    for _ in range(3):
        ask.same(frame(rig, 11, 30, max_wait_ms=500, min_bytes=0))
    assert not ask.same(frame(rig, 11, END, max_wait_ms=500, min_bytes=0))
    assert operations(rig) == []


def test_a_segment_that_begins_meanwhile(rig: HandlerRig) -> None:
    """What was awaited lies in two files: the general way goes on from there."""
    park(rig, 11, min_bytes=900)
    log = make_small_segments(rig, "t", rig.open("t").log.state.active.size + 500)
    append(rig, 300)
    assert answers_alike(rig, 11) is None
    append(rig, 600)
    assert log.state.segment_count == 2
    row = answers_alike(rig, 11)
    assert row is not None
    assert len(row["records"]) > 900


@pytest.mark.parametrize("version", [11, 12, 13, 17])
def test_a_topic_that_is_deleted(rig: HandlerRig, version: int) -> None:
    park(rig, version)
    rig.delete_topic("t")
    row = answers_alike(rig, version)
    assert row is not None
    assert row["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_log_that_goes_offline(rig: HandlerRig) -> None:
    park(rig, 11)
    owned = rig.open("t")
    owned.log.state.set_offline("a test says so")
    owned.after_append()
    row = answers_alike(rig, 11)
    assert row is not None
    assert row["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR


def test_records_that_are_deleted_meanwhile(rig: HandlerRig) -> None:
    """Its offset is below the log's start when it looks again."""
    park(rig, 11, offset=END - 1, min_bytes=5000, partition_max_bytes=9000)
    append(rig, 300)
    owned = rig.open("t")
    owned.log.retention.advance_start(END + 1)
    owned.after_append()
    row = answers_alike(rig, 11)
    assert row is not None
    assert row["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_partition_that_goes_to_another_handler(start: Start) -> None:
    rig = start(handlers=2, link_kind="ring")
    rig.set_handler_count(1)
    rig.create_topic("t", partitions=4)
    for partition in range(4):
        fill(rig, 40, partition=partition)
    for partition in range(4):
        ask = Asker(rig)
        more = {"partition": partition, "max_wait_ms": 500}
        for connection, knows in ((partition, True), (GENERAL + partition, False)):
            if knows:
                ask.one(frame(rig, 11, 30, **more), connection=connection)
            assert ask.one(frame(rig, 11, END, **more), connection=connection) == []
    assert sorted(operations(rig)) == [False] * 4 + [True] * 4
    rig.set_handler_count(2)
    assert {rig.owner("t", partition) for partition in range(4)} == {0, 1}
    for partition in range(4):
        append(rig, 300, partition=partition)
        answers = {each.connection_id: each for each in rig.processors[0].answers()}
        assert set(answers) == {partition, GENERAL + partition}
        assert answers[partition].frame == answers[GENERAL + partition].frame
        row = answers[partition].fields(ApiKey.FETCH, 11)["responses"][0]["partitions"][0]
        assert (row["error_code"], row["high_watermark"]) == (0, END + 1)
    assert operations(rig) == operations(rig, 1) == []


def test_a_client_that_leaves_is_forgotten(rig: HandlerRig) -> None:
    park(rig, 11)
    rig.processors[0].disconnect(KNOWN)
    rig.processors[0].answers()
    assert operations(rig) == [False]
    append(rig, 300)
    assert [each.connection_id for each in rig.processors[0].answers()] == [GENERAL]


def test_a_handler_that_stops_answers_what_waits(rig: HandlerRig) -> None:
    park(rig, 11)
    rig.handler().drain()
    row = answers_alike(rig, 11)
    assert row is not None
    assert row["records"] == b""


def test_a_connection_that_moves_gets_its_answer_where_it_goes(rig: HandlerRig) -> None:
    park(rig, 11)
    processor = rig.processors[0]
    processor.outbox.push(MOVE_OUT, HEAD.pack(KNOWN, 1, 0, 0))
    processor.outbox.flush()
    rig.settle()
    assert [kind for kind, _ in processor.inbox.poll(10)] == [MOVED]
    processor.inbox.release()
    processor.outbox.push(DISCONNECTED, HEAD.pack(KNOWN, 0, 0, FLAG_MOVED))
    processor.outbox.flush()
    append(rig, 300)
    assert [each.connection_id for each in processor.answers()] == [GENERAL]
    requests = rig.handler()._clients[processor_id(0)].requests
    moving = parts_of(rig.handler()).requests.moving
    moving.move_in(requests, KNOWN, [1])
    (answer,) = processor.answers()
    assert (answer.kind, answer.connection_id, answer.sequence) == (SEND_PARTS, KNOWN, 1)


def test_other_shape_of_connection_keeps_parked_fetch(rig: HandlerRig) -> None:
    """A client may ask for a second partition while the first one's Fetch waits."""
    fill(rig, 60, partition=1)  # It has the offset that is waited for.
    park(rig, 11)
    ask = Asker(rig)
    before = ask.known
    for offset in (3, 6, 9):
        (answer,) = ask.one(frame(rig, 11, offset, partition=1, max_wait_ms=500), connection=KNOWN)
        (row,) = answer.fields(ApiKey.FETCH, 11)["responses"][0]["partitions"]
        assert (row["partition_index"], row["high_watermark"]) == (1, 180)
    assert ask.known > before
    append(rig, 300)
    row = answers_alike(rig, 11)
    assert row is not None
    assert (row["partition_index"], row["high_watermark"]) == (0, END + 1)


@pytest.mark.parametrize("connection", [KNOWN, GENERAL])
def test_a_quota_that_comes_meanwhile_counts_the_answer(rig: HandlerRig, connection: int) -> None:
    park(rig, 11)
    set_quota(rig, CONSUMER_BYTE_RATE, 1.0)
    rig.processors[0].disconnect(KNOWN + GENERAL - connection)
    rig.processors[0].answers()
    append(rig, 300)
    (answer,) = rig.processors[0].answers()
    assert (answer.connection_id, answer.kind) == (connection, SEND_PARTS)
    assert parts_of(rig.handler()).rates._accounts


@pytest.mark.parametrize("version", [11, 12, 17])
def test_a_leader_epoch_that_is_raised_meanwhile_fences(rig: HandlerRig, version: int) -> None:
    park(rig, version, current_leader_epoch=rig.image_of("t").leader_epoch)
    rig.cluster.do("raise_leader_epochs", topic_id=id_of(rig, "t"), partitions=[0])
    rig.tell()
    append(rig, 300)
    row = answers_alike(rig, version)
    assert row is not None
    assert row["error_code"] == ErrorCode.FENCED_LEADER_EPOCH


def test_fetch_in_ring_at_stop_is_answered_in_same_turn(rig: HandlerRig) -> None:
    Asker(rig).one(frame(rig, 11, 30, max_wait_ms=500), connection=KNOWN)
    rig.handler().drain()
    for connection in (KNOWN, GENERAL):
        rig.processors[0].send_frames([frame(rig, 11, END, max_wait_ms=500)], connection=connection)
    rig.handler().do_work(0)
    answers = rig.processors[0].answers(settles=False)
    assert sorted(each.connection_id for each in answers) == [KNOWN, GENERAL]
    assert rig.handler().is_drained()


def test_client_leaving_during_next_owner_call_is_answered_once(start: Start) -> None:
    rig = start(handlers=2, link_kind="ring")
    rig.set_handler_count(1)
    rig.create_topic("t", partitions=4)
    ask = Asker(rig)
    for partition in range(4):
        fill(rig, 40, partition=partition)
        more = {"partition": partition, "max_wait_ms": 500}
        ask.one(frame(rig, 11, 30, **more), connection=partition)
        for connection in (partition, GENERAL + partition):
            assert ask.one(frame(rig, 11, END, **more), connection=connection) == []
    assert sorted(operations(rig)) == [False] * 4 + [True] * 4
    rig.set_handler_count(2, settles=False)
    rig.handler(0).do_work(0)
    for partition in range(4):
        rig.processors[0].disconnect(partition)
        rig.processors[0].disconnect(GENERAL + partition)
    rig.handler(0).do_work(0)
    rig.advance_ms(600)
    answered = [(each.connection_id, each.sequence) for each in rig.processors[0].answers()]
    assert len(answered) == len(set(answered)) == 8
    assert operations(rig) == operations(rig, 1) == []


@pytest.mark.parametrize("seed", range(12))
def test_known_and_general_ones_side_by_side(rig: HandlerRig, seed: int) -> None:
    """The same answers at the same moments, whatever happens to the log."""
    chance, ask = random.Random(seed), Asker(rig)
    version = chance.choice((5, 8, 11, 12, 16))
    more = {
        "max_wait_ms": chance.choice((1, 200, 500)),
        "min_bytes": chance.choice((1, 500, 3000, 10**6)),
        "isolation_level": chance.randint(0, 1),
        "partition_max_bytes": chance.choice((1, 700, 2500, 10**6)),
        "max_bytes": chance.choice((1, 50_000)),
    }
    ask.one(frame(rig, version, 30, **more), connection=KNOWN)
    rig.advance_ms(1000)
    rig.processors[0].answers()
    log, knew = rig.open("t").log, 0
    for _ in range(40):
        state = log.state
        ends = (
            state.end_offset,
            state.end_offset - 1,
            state.end_offset + chance.randint(0, 3),
            state.start_offset - 1,
        )
        offset = chance.choice((*ends, log.state.end_offset, chance.randint(0, log.state.end_offset)))
        answers: dict[int, list[bytes]] = {KNOWN: [], GENERAL: []}
        rig.forget_fast_paths(GENERAL)
        for connection in (KNOWN, GENERAL):
            rig.processors[0].send_frames([frame(rig, version, offset, **more)], connection=connection)
        for what in (0, *(chance.randint(1, 5) for _ in range(chance.randint(0, 4))), 6):
            if what in (1, 2, 3):
                append(rig, chance.choice((10, 300, 2000)))
            elif what == 4:
                log.retention.advance_start(
                    min(log.state.end_offset, log.state.start_offset + chance.randint(0, 20))
                )
            elif what:
                rig.advance_ms(600 if what == 6 else chance.randint(1, 300))
            for each in rig.processors[0].answers():
                answers[each.connection_id].append(each.frame)
            assert answers[KNOWN] == answers[GENERAL], offset
            knew += True in operations(rig)
        assert len(answers[KNOWN]) == 1
        assert operations(rig) == []
    assert knew
