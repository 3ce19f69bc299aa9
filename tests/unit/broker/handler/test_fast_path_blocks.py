"""Produce requests in arena blocks by the fast path: as the general way places and answers them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.broker.transport.envelope import BLOCK, FLAG_TIMED, HEAD, NO_OP, REQUEST_BLOCK, SEND, TIMES
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.fast_path_answers import VERSIONS, offsets
from tests.support.handler_rig import HandlerRig
from tests.support.raw import batch, fetch_fields, produce_fields
from tests.support.request_log import lines, switch

Start = Callable[..., HandlerRig]
LARGE = 40_000


@pytest.fixture
def rig(start: Start) -> HandlerRig:
    made = start(link_kind="ring")
    made.create_topic("t", partitions=2)
    return made


def frame(
    version: int, *, size: int = LARGE, partition: int = 0, acks: int = 1, client_id: str = "test"
) -> bytes:
    fields = produce_fields([("t", bytes(16), [(partition, batch(bytes(size)))])], acks=acks)
    return codec.encode_request(ApiKey.PRODUCE, version, size & 0x7FFF, client_id, fields)


def send(rig: HandlerRig, sent: bytes, *, connection: int = 1) -> tuple[list[tuple[int, int, int, int]], int]:
    """Its answers, and how many Produce requests needed no decoding."""
    before = rig.taken()
    rig.processors[0].send_block(sent[4:], connection)
    version = int.from_bytes(sent[6:8], "big")
    answers = rig.processors[0].answers()
    assert [int.from_bytes(each.frame[4:8], "big") for each in answers] == [int.from_bytes(sent[8:12], "big")]
    return offsets(answers, version), rig.taken() - before


@pytest.mark.parametrize("version", VERSIONS)
def test_the_second_of_a_shape_is_known_whatever_its_length(rig: HandlerRig, version: int) -> None:
    sizes = [LARGE, LARGE, LARGE + 1, 1_000_000, 17_000, LARGE]
    found = [send(rig, frame(version, size=size)) for size in sizes]
    assert [rows for rows, _ in found] == [[(1, number, 0, number)] for number in range(6)]
    assert [known for _, known in found] == [0, 1, 1, 1, 1, 1]
    log = rig.open("t").log
    assert log.state.end_offset == 6
    assert log.state.active.size == sum(len(batch(bytes(size))) for size in sizes)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_has_the_bytes_of_the_general_way(rig: HandlerRig, version: int) -> None:
    processor = rig.processors[0]
    answers = []
    for connection in (1, 1, 2):  # The last one is new there.
        processor.send_block(frame(version)[4:], connection)
        answers += processor.answers()
    assert rig.taken() == 1
    first, second, third = (each.frame for each in answers)
    last = next(at for at in range(len(first)) if third[at] != second[at])  # Of the base offset, this byte.
    at = last - 7
    assert [each[at : at + 8] for each in (first, second, third)] == [n.to_bytes(8, "big") for n in range(3)]
    assert first[:at] == second[:at] == third[:at]
    assert first[at + 8 :] == second[at + 8 :] == third[at + 8 :]


@pytest.mark.parametrize("version", VERSIONS)
def test_small_and_large_frames_of_a_connection_share_a_shape(rig: HandlerRig, version: int) -> None:
    processor = rig.processors[0]
    assert send(rig, frame(version))[1] == 0
    for _ in range(4):
        processor.send_frames([frame(version, size=100)])
        processor.answers()
    assert rig.taken() == 4
    assert send(rig, frame(version))[1] == 1
    assert rig.open("t").log.state.end_offset == 6


@pytest.mark.parametrize("version", VERSIONS)
def test_different_produce_in_block_uses_the_general_path(rig: HandlerRig, version: int) -> None:
    send(rig, frame(version))
    for other in (
        frame(version, partition=1),
        frame(version, client_id="else"),
        frame(version, acks=-1),
        frame(7 if version == 9 else 9),
    ):
        ((row,), known) = send(rig, other)
        assert (row[2], known) == (0, 0)
        assert send(rig, frame(version))[1] == 1, "the shape stays"
    assert (rig.open("t", 0).log.state.end_offset, rig.open("t", 1).log.state.end_offset) == (8, 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_damage_is_refused_and_the_next_one_is_taken(rig: HandlerRig, version: int) -> None:
    send(rig, frame(version))
    broken = bytearray(frame(version))
    broken[len(broken) // 2] ^= 1
    rows, known = send(rig, bytes(broken))
    assert (rows[0][2:], known) == ((int(ErrorCode.CORRUPT_MESSAGE), -1), 1)
    assert send(rig, frame(version)) == ([(1, 2, 0, 1)], 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_records_that_do_not_fill_the_frame_are_refused_as_ever(rig: HandlerRig, version: int) -> None:
    send(rig, frame(version))
    processor = rig.processors[0]
    for broken in (frame(version)[4:-1], frame(version)[4:] + b"\1", frame(version)[4:20]):
        before = rig.taken()
        processor.send_block(broken, 1)
        processor.answers()
        assert rig.taken() == before
    assert (
        rig.open("t").log.state.end_offset <= 2
    )  # A frame with bytes behind its end is read as if it had none.


def test_acks_0_gives_the_block_back_without_an_answer(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    for _ in range(3):
        processor.send_block(frame(9, acks=0)[4:], 1)
        (answer,) = processor.answers()
        assert answer.kind == NO_OP
    assert rig.taken() == 2
    assert rig.arena.lent_count() == 0
    assert rig.open("t").log.state.end_offset == 3


def test_acks_all_waits_for_the_disk(start: Start) -> None:
    rig = start(settings={"kproc.flush": "group"}, link_kind="ring")
    rig.create_topic("t")
    processor = rig.processors[0]
    for expected in (0, 1):
        processor.send_block(frame(9, acks=-1)[4:], 1)
        assert processor.answers() == []
        rig.syncers[0].end_round()
        (answer,) = processor.answers()
        assert offsets([answer], 9)[0][2:] == (0, expected)
    assert rig.taken() == 1


def test_timed_produce_in_block_reports_its_times(rig: HandlerRig) -> None:
    send(rig, frame(9))
    processor, arena, sent = rig.processors[0], rig.arena, frame(9)[4:]
    offset = arena.allocate(len(sent))
    assert offset is not None
    with arena.view(offset, len(sent)) as view:
        view[:] = sent
    processor.outbox.push(REQUEST_BLOCK, HEAD.pack(1, 1, 0, FLAG_TIMED), BLOCK.pack(offset, len(sent)))
    processor.outbox.flush()
    rig.settle()
    assert [kind for kind, _ in processor.inbox.poll(10)] == [TIMES, SEND]
    processor.inbox.release()
    arena.free(offset)
    assert rig.taken() == 0, "it goes the general way"


def test_logged_produce_in_block_uses_the_general_path(rig: HandlerRig) -> None:
    send(rig, frame(9))
    switch(rig, "all")
    before = len(lines(rig))
    assert [send(rig, frame(9))[1] for _ in range(2)] == [0, 0]
    assert len(lines(rig)) == before + 2


def test_a_large_frame_of_another_api_keeps_the_shape(rig: HandlerRig) -> None:
    send(rig, frame(9))
    fields = fetch_fields([("t" * 200, bytes(16), [(number, 0) for number in range(2000)])])
    rig.processors[0].send_block(codec.encode_request(ApiKey.FETCH, 11, 1, "test", fields)[4:], 1)
    assert len(rig.processors[0].answers()) == 1
    assert send(rig, frame(9))[1] == 1


def test_blocks_of_other_partition_keep_shape_of_small_frames(rig: HandlerRig) -> None:
    processor = rig.processors[0]
    for number in range(6):
        processor.send_frames([frame(9, size=100)])
        processor.answers()
        assert rig.taken() == number
        assert send(rig, frame(9, partition=1))[1] == 0
