"""FastPath of Produce: the same responses as on the general path, whatever comes among the known requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.broker.transport.envelope import (
    DISCONNECTED,
    FLAG_MOVED,
    FLAG_TIMED,
    HEAD,
    MOVE_OUT,
    MOVED,
    NO_OP,
    REQUEST,
    SEND,
    SENDS,
)
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.fast_path_answers import VERSIONS, offsets
from tests.support.handler_rig import HandlerRig
from tests.support.links import LINK_PARAMS
from tests.support.raw import batch, fetch_fields, produce_fields
from tests.support.request_log import lines, switch


def frame(
    version: int, *, acks: int = 1, value: bytes = b"value", partition: int = 0, number: int = 7
) -> bytes:
    fields = produce_fields([("t", bytes(16), [(partition, batch(value))])], acks=acks)
    return codec.encode_request(ApiKey.PRODUCE, version, number, "test", fields)


def damaged(version: int) -> bytes:
    """As long as the others, with a byte of its value changed: the CRC does not fit."""
    return frame(version).replace(b"value", b"valuf")


@pytest.fixture(params=LINK_PARAMS)
def rig(start: Callable[..., HandlerRig], request: pytest.FixtureRequest) -> HandlerRig:
    made = start(link_kind=request.param)
    made.create_topic("t", partitions=2)
    return made


def make_known(rig: HandlerRig, version: int, connections: int, *, acks: int = 1) -> None:
    """The first request of each connection goes the general way."""
    for connection in range(connections):
        rig.processors[0].send_frames([frame(version, acks=acks)], connection=connection)
    rig.processors[0].answers()
    assert rig.processors[0].bulk_sizes == []


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_of_pass_share_append_and_answer_record(rig: HandlerRig, version: int) -> None:
    processor = rig.processors[0]
    make_known(rig, version, 4)
    for connection in range(4):
        processor.send_frames([frame(version, number=100 + connection)], connection=connection)
    answers = processor.answers()
    assert processor.bulk_sizes == [4]
    assert offsets(answers, version) == [(c, 1, 0, 4 + c) for c in range(4)]
    correlations = [int.from_bytes(answer.frame[4:8], "big") for answer in answers]
    assert correlations == [100, 101, 102, 103]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_has_the_bytes_of_the_general_way(rig: HandlerRig, version: int) -> None:
    make_known(rig, version, 2)
    rig.processors[0].send_frames([frame(version)], connection=0)
    rig.processors[0].send_frames([frame(version)], connection=1)
    known = rig.processors[0].answers()
    assert rig.processors[0].bulk_sizes == [2]
    rig.processors[0].send_frames([frame(version)], connection=9)
    (general,) = rig.processors[0].answers()
    at = general.frame.index((4).to_bytes(8, "big"))
    assert known[0].frame == general.frame[:at] + (2).to_bytes(8, "big") + general.frame[at + 8 :]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_refused_one_in_the_middle_is_answered_alone(rig: HandlerRig, version: int) -> None:
    processor = rig.processors[0]
    make_known(rig, version, 3)
    processor.send_frames([frame(version)], connection=0)
    processor.send_frames([damaged(version)], connection=1)
    processor.send_frames([frame(version)], connection=2)
    error = int(ErrorCode.CORRUPT_MESSAGE)
    assert offsets(processor.answers(), version) == [(0, 1, 0, 3), (1, 1, error, -1), (2, 1, 0, 4)]
    assert processor.bulk_sizes == [2]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_an_unknown_one_among_known_ones(rig: HandlerRig, position: int) -> None:
    processor = rig.processors[0]
    make_known(rig, 9, 2)
    connections = [0, 1]
    connections.insert(position, 8)  # This one is new.
    for connection in connections:
        processor.send_frames([frame(9)], connection=connection)
    expected = {connection: 2 + at for at, connection in enumerate(connections)}
    assert {row[0]: row[3] for row in offsets(processor.answers(), 9)} == expected


def test_versions_and_partitions_may_differ_in_one_pass(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    kinds = [(7, 0), (9, 0), (9, 1), (8, 0)]
    for _ in range(2):
        for connection, (version, partition) in enumerate(kinds):
            processor.send_frames([frame(version, partition=partition)], connection=connection)
        answers = {answer.connection_id: answer for answer in processor.answers()}
    rows = [offsets([answers[number]], version)[0] for number, (version, _) in enumerate(kinds)]
    assert rows == [(0, 1, 0, 3), (1, 1, 0, 4), (2, 1, 0, 1), (3, 1, 0, 5)]


def test_acks_0_is_never_sent_an_answer(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    for _ in range(2):
        for connection in range(3):
            processor.send_frames([frame(9, acks=0)], connection=connection)
        assert [answer.kind for answer in processor.answers()] == [NO_OP] * 3
    assert rig.open("t").log.state.end_offset == 6


def test_produce_of_another_length_is_repeated_too(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    make_known(rig, 9, 2)
    for turn in range(4):
        for connection in range(2):
            processor.send_frames([frame(9, value=b"longer value")], connection=connection)
        assert len(offsets(processor.answers(), 9)) == 2
        assert len(processor.bulk_sizes) == turn + 1
    assert rig.open("t").log.state.end_offset == 10


def test_several_frames_of_one_read_are_answered_in_order(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    make_known(rig, 9, 1)
    processor.send_frames([frame(9)] * 3, connection=0)
    answers = processor.answers()
    assert [answer.sequence for answer in answers] == [1, 2, 3]
    assert offsets(answers, 9) == [(0, 1, 0, 1), (0, 2, 0, 2), (0, 3, 0, 3)]


def test_timed_produce_is_answered_separately(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    make_known(rig, 9, 1)
    processor.outbox.push(REQUEST, HEAD.pack(0, 1, 0, FLAG_TIMED), frame(9))
    processor.outbox.flush()
    rig.settle()
    kinds = [kind for kind, _ in processor.inbox.poll(10)]
    assert len(kinds) == 2, "its times, then its answer"
    assert kinds[1] == SEND


def test_acks_all_with_group_commit_waits_for_the_disk(start: Callable[..., HandlerRig]) -> None:
    rig = start(settings={"kproc.flush": "group"})
    rig.create_topic("t")
    processor, syncer = rig.processors[0], rig.syncers[0]
    for turn in range(2):
        for connection in range(2):
            processor.send_frames([frame(9, acks=-1)], connection=connection)
        assert processor.answers() == []
        syncer.end_round()
        assert [row[3] for row in offsets(processor.answers(), 9)] == [2 * turn, 2 * turn + 1]
    assert processor.bulk_sizes == []


def test_flush_messages_makes_known_ones_wait(start: Callable[..., HandlerRig]) -> None:
    rig = start()
    rig.create_topic("t", flush_messages="4")
    processor = rig.processors[0]
    make_known(rig, 9, 2)
    for connection in range(2):
        processor.send_frames([frame(9)], connection=connection)
    assert processor.answers() == []
    rig.syncers[0].end_round()
    assert [row[3] for row in offsets(processor.answers(), 9)] == [2, 3]


def test_every_one_is_in_the_request_log_while_it_is_on(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    make_known(rig, 9, 3)
    for mode, logged, bulks in (("all", 6, []), ("off", 6, [3])):
        switch(rig, mode)
        for _ in range(2):  # The metadata changed: the first turn goes the general way in any case.
            for connection in range(3):
                processor.send_frames([frame(9)], connection=connection)
            assert len(processor.answers()) == 3
        assert (len(lines(rig)), processor.bulk_sizes) == (logged, bulks)


def test_own_and_forwarded_produce_requests_in_one_run(start: Callable[..., HandlerRig]) -> None:
    rig = start(handlers=2)
    rig.create_topic("t", partitions=2)
    processor = rig.processors[0]
    own = next(index for index in range(2) if rig.owner("t", index) == 0)
    frames = [frame(9, partition=own), frame(9, partition=1 - own)]
    for turn in range(3):
        for connection in range(4):
            processor.send_frames([frames[connection % 2]], connection=connection)
        assert offsets(processor.answers(), 9) == [
            (connection, turn, 0, 2 * turn + connection // 2) for connection in range(4)
        ]
    assert processor.bulk_sizes == [2, 2], "the first turn went the general way"


def test_produce_before_move_out_is_answered_before_moved(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    make_known(rig, 9, 2)
    fetch = fetch_fields([("t", bytes(16), [(0, 2)])], max_wait_ms=500, min_bytes=1 << 20)
    processor.send(ApiKey.FETCH, 12, fetch, connection=1)
    assert processor.answers() == [], "it parks"
    for connection in range(2):
        processor.outbox.push(REQUEST, HEAD.pack(connection, 1 + connection, 0, 0), frame(9))
    processor.outbox.push(MOVE_OUT, HEAD.pack(1, 1, 0, 0))
    processor.outbox.flush()
    rig.settle()
    assert [kind for kind, _ in processor.inbox.poll(10)] == [SENDS, MOVED]
    processor.inbox.release()
    processor.outbox.push(DISCONNECTED, HEAD.pack(1, 0, 0, FLAG_MOVED))
    processor.outbox.flush()
    rig.settle()
    assert list(rig.fast_paths()) == [0]
