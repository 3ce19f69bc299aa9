"""Fetches by the fast path: the same answers as the general way, byte by byte, and that way wherever they end."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.cluster.client_quotas import CONSUMER_BYTE_RATE
from kproc.broker.fetch import fetch_fast_path
from kproc.broker.metrics.requests import REQUESTS
from kproc.broker.transport.envelope import FLAG_TIMED, HEAD, REQUEST, SEND_PARTS, TIMES
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey
from kproc.wire.hot import locate_fetch_offset
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.compaction import compact
from tests.support.fetch_frames import (
    KNOWN,
    LIMIT,
    SOME,
    VERSIONS,
    Asker,
    Start,
    fill,
    filled,
    frame,
    id_of,
    make_small_segments,
)
from tests.support.handler_quotas import set_quota
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.logs import NOW_MS, LogRig, batch, records_in
from tests.support.raw import fetch_fields, produce_fields
from tests.support.request_log import lines, switch


@pytest.fixture
def rig(start: Start) -> HandlerRig:
    return filled(start)


@pytest.mark.parametrize(
    ("version", "name_bytes", "isolation"),
    [
        *((version, 16, version % 2) for version in SOME),
        *(pytest.param(version, 16, 1 - version % 2, marks=pytest.mark.long) for version in VERSIONS),
        *(pytest.param(version, size, 0, marks=pytest.mark.long) for version in SOME for size in (1, 200)),
    ],
)
def test_random_requests_get_the_bytes_of_the_general_way(
    rig: HandlerRig, version: int, name_bytes: int, isolation: int
) -> None:
    name = "n" * name_bytes
    rig.create_topic(name, partitions=1)
    make_small_segments(rig, name, 20_000)
    fill(rig, 60, name)
    assert rig.open(name).log.state.segment_count > 2
    ask, chance, known = Asker(rig), random.Random(version), 0
    for size in (LIMIT, 1, 0, 30_000):
        more = {"name": name, "partition_max_bytes": size, "isolation_level": isolation}
        for _ in range(20):
            offset = chance.choice((chance.randint(-2, 183), chance.randint(0, 179), 180, 2**40))
            known += ask.same(frame(rig, version, offset, **more))
    assert (known > 10) == (version in KNOWN), known


@pytest.mark.parametrize("version", SOME)
def test_a_consumer_reads_everything_by_one_shape(rig: HandlerRig, version: int) -> None:
    ask = Asker(rig)
    offset, fetches = 0, 0
    while offset < 120:
        (answer,) = ask.one(frame(rig, version, offset))
        row = answer.fields(ApiKey.FETCH, version)["responses"][0]["partitions"][0]
        offset = records_in(bytes(row["records"]))[-1].offset + 1
        fetches += 1
    assert ask.known == fetches - 1  # The first is learned from.
    parts = parts_of(rig.handler())
    parts.requests.count()
    assert parts.services.counts.get(REQUESTS, ApiKey.FETCH, version) == fetches


@pytest.mark.parametrize("version", SOME)
def test_a_change_of_any_byte_is_answered_as_ever(rig: HandlerRig, version: int) -> None:
    """But for length, API key and version, which are other requests."""
    ask = Asker(rig)
    good = frame(rig, version, 30, max_wait_ms=0)
    assert [ask.same(good) for _ in range(2)] == [False, True]
    for at in range(8, len(good)):
        for change in (0x01, 0x80):
            damaged = bytearray(good)
            damaged[at] ^= change
            ask.same(bytes(damaged))
            ask.same(good)


@pytest.mark.parametrize("version", SOME)
def test_longer_and_shorter_frames_are_answered_as_ever(rig: HandlerRig, version: int) -> None:
    ask = Asker(rig)
    good = frame(rig, version, 30)
    ask.one(good)
    for cut in (*range(8, len(good)), -1):
        other = good[:cut] if cut > 0 else good + b"\0"
        ask.same((len(other) - 4).to_bytes(4, "big") + other[4:])
        ask.one(good)


@pytest.mark.parametrize("version", SOME)
def test_two_frames_of_one_read_are_answered_in_order(rig: HandlerRig, version: int) -> None:
    ask = Asker(rig)
    one, two = frame(rig, version, 30), frame(rig, version, 60)
    ask.one(one)
    rig.processors[0].send_frames([one, two])
    answers = rig.processors[0].answers()
    assert [each.parts for each in answers] == [
        each.parts for sent in (one, two) for each in ask.general(sent)
    ]


@pytest.mark.parametrize("version", SOME)
def test_namesake_and_other_topic_are_distinguished(rig: HandlerRig, version: int) -> None:
    ask = Asker(rig)
    old = frame(rig, version, 30)
    assert [ask.same(old) for _ in range(2)] == [False, True]
    rig.delete_topic("t")
    assert not ask.same(old)
    rig.create_topic("t", partitions=2)
    fill(rig, 30)
    assert not ask.same(old)
    assert [ask.same(frame(rig, version, 33)) for _ in range(3)][-1]


def test_another_partition_is_learned_in_its_turn(rig: HandlerRig) -> None:
    fill(rig, 20, partition=1)
    ask = Asker(rig)
    for partition in (0, 1, 0, 1):
        sent = frame(rig, 11, 30, partition=partition)
        assert [ask.same(sent) for _ in range(5)][-2:] == [True, True]


def test_shapes_that_take_turns_are_not_learned_again_and_again(
    rig: HandlerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def count(version: int, body: memoryview) -> Any:
        looks.append(version)
        return locate_fetch_offset(version, body)

    monkeypatch.setattr(fetch_fast_path, "locate_fetch_offset", count)
    fill(rig, 20, partition=1)
    ask = Asker(rig)
    for number in range(300):
        ask.one(frame(rig, 11, 30, partition=number % 3 // 2))
    assert len(looks) < 25
    both = fetch_fields([("t", id_of(rig, "t"), [(0, 3), (1, 6)])])  # It never has a shape.
    looks.clear()
    for _ in range(300):
        ask.one(codec.encode_request(ApiKey.FETCH, 11, 1, "test", both), connection=3)
    assert len(looks) < 12


@pytest.mark.parametrize("version", SOME)
def test_deleted_records_are_out_of_range_with_new_start(rig: HandlerRig, version: int) -> None:
    ask = Asker(rig)
    assert [ask.same(frame(rig, version, 30)) for _ in range(2)] == [False, True]
    rig.open("t").log.retention.advance_start(40)
    assert not ask.same(frame(rig, version, 30))
    assert ask.same(frame(rig, version, 40))
    (answer,) = ask.one(frame(rig, version, 30))
    row = answer.fields(ApiKey.FETCH, version)["responses"][0]["partitions"][0]
    assert row["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    (answer,) = ask.one(frame(rig, version, 60))
    assert answer.fields(ApiKey.FETCH, version)["responses"][0]["partitions"][0]["log_start_offset"] == 40


@pytest.mark.parametrize("version", SOME)
def test_a_compacted_segment_is_read_from_its_new_file(rig: HandlerRig, version: int) -> None:
    rig.create_topic("c", partitions=1, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    log = make_small_segments(rig, "c", 3000)
    for number in range(40):
        keyed = [Record(b"k%d" % (number % 4), bytes(200), NOW_MS), Record(b"own%d" % number, b"v", NOW_MS)]
        log.append([memoryview(encode_batch(keyed))])
    ask = Asker(rig)
    asked = [frame(rig, version, offset, name="c", partition_max_bytes=400) for offset in range(80)]
    assert sum(ask.same(sent) for sent in asked) > 40
    before = [inode for _, _, inode in log.compaction.segment_identities()]
    compact(LogRig(log.state.directory), log)
    assert before != [inode for _, _, inode in log.compaction.segment_identities()]
    assert sum(ask.same(sent) for sent in asked) > 40
    for sent in asked:
        (answer,) = ask.one(sent)
        assert answer.frame  # The rig compares inodes.


@pytest.mark.parametrize("version", SOME)
def test_a_log_that_was_cut_and_written_anew_is_read_as_it_is(tmp_path: Path, version: int) -> None:
    """Its Handler died, and its successor found less: nothing that was remembered is used for what came then."""
    with HandlerRig(tmp_path) as rig:
        rig.create_topic("t", partitions=1)
        fill(rig, 40)
        ask = Asker(rig)
        assert [ask.same(frame(rig, version, 90)) for _ in range(2)] == [False, True]
        path = rig.open("t").log.state.active.path(".log")
        rig.kill(0)
        size = path.stat().st_size
        with open(path, "r+b") as file:
            file.truncate(size - 500)
        rig.start_handler(0, is_restart=True)
        fill(rig, 5)
        ask = Asker(rig)
        for offset in range(90, rig.open("t").log.state.end_offset):
            ask.same(frame(rig, version, offset))
        assert ask.known > 5


def test_fetch_at_log_end_waits_and_next_append_wakes(rig: HandlerRig) -> None:
    ask = Asker(rig)
    assert [ask.same(frame(rig, 11, 30, max_wait_ms=500)) for _ in range(2)] == [False, True]
    assert ask.one(frame(rig, 11, 120, max_wait_ms=500)) == []
    assert ask.known == 2
    rig.processors[0].send(
        ApiKey.PRODUCE, 7, produce_fields([("t", bytes(16), [(0, batch(b"x"))])]), connection=5
    )
    answers = {each.connection_id: each for each in rig.processors[0].answers()}
    row = answers[1].fields(ApiKey.FETCH, 11)["responses"][0]["partitions"][0]
    assert (row["high_watermark"], [each.offset for each in records_in(bytes(row["records"]))]) == (
        121,
        [120],
    )


def test_less_than_min_bytes_waits(rig: HandlerRig) -> None:
    ask = Asker(rig)
    assert [ask.same(frame(rig, 11, 30, max_wait_ms=500, min_bytes=1500)) for _ in range(2)] == [False, True]
    assert ask.one(frame(rig, 11, 119, max_wait_ms=500, min_bytes=1500)) == []
    rig.advance_ms(501)
    assert len(rig.processors[0].answers()) == 1
    assert ask.same(frame(rig, 11, 30, max_wait_ms=500, min_bytes=1500))


def test_a_produce_of_the_same_pass_is_seen(rig: HandlerRig) -> None:
    ask = Asker(rig)
    ask.one(frame(rig, 11, 30))
    rig.processors[0].send(
        ApiKey.PRODUCE, 7, produce_fields([("t", bytes(16), [(0, batch(b"x"))])]), connection=5
    )
    rig.processors[0].send_frames([frame(rig, 11, 33)])
    answers = {each.connection_id: each for each in rig.processors[0].answers()}
    assert answers[1].fields(ApiKey.FETCH, 11)["responses"][0]["partitions"][0]["high_watermark"] == 121
    assert ask.known == 1


@pytest.mark.parametrize("version", [7, 11, 12, 17])
def test_sessions_and_several_partitions_go_the_general_way(rig: HandlerRig, version: int) -> None:
    ask = Asker(rig)
    fill(rig, 10, partition=1)
    made = ask.one(frame(rig, version, 30, session=(0, 0)))
    session_id = made[0].fields(ApiKey.FETCH, version)["session_id"]
    assert session_id
    for epoch in (1, 2, 3):
        (answer,) = ask.one(frame(rig, version, 30, session=(session_id, epoch)))
        assert answer.fields(ApiKey.FETCH, version)["error_code"] == 0
    (answer,) = ask.one(frame(rig, version, 30, session=(session_id, 9)))
    assert answer.fields(ApiKey.FETCH, version)["error_code"] == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    both = fetch_fields([("t", id_of(rig, "t"), [(0, 3), (1, 6)])])
    for _ in range(3):
        assert not ask.same(codec.encode_request(ApiKey.FETCH, version, 1, "test", both))
    assert ask.known == 0


@pytest.mark.parametrize("version", SOME)
def test_leader_epochs_are_compared(rig: HandlerRig, version: int) -> None:
    ask = Asker(rig)
    epoch = rig.image_of("t").leader_epoch
    for wanted in (epoch, epoch + 1, -1):
        for _ in range(3):
            ask.same(frame(rig, version, 30, current_leader_epoch=wanted))
    assert ask.known == (4 if version >= 9 else 8)


def test_fetch_with_quota_uses_the_general_path(rig: HandlerRig) -> None:
    ask = Asker(rig)
    assert [ask.same(frame(rig, 11, 30)) for _ in range(2)] == [False, True]
    set_quota(rig, CONSUMER_BYTE_RATE, 10_000_000)
    assert not any(ask.same(frame(rig, 11, 30)) for _ in range(4))


def test_logged_fetch_uses_the_general_path(rig: HandlerRig) -> None:
    ask = Asker(rig)
    assert [ask.same(frame(rig, 11, 30)) for _ in range(2)] == [False, True]
    switch(rig, "all")
    before = len(lines(rig))
    for _ in range(3):
        ask.one(frame(rig, 11, 30))
    assert ask.known == 1
    assert len(lines(rig)) == before + 3


def test_a_timed_request_gets_its_times(rig: HandlerRig) -> None:
    ask = Asker(rig)
    ask.one(frame(rig, 11, 30))
    processor = rig.processors[0]
    processor.outbox.push(REQUEST, HEAD.pack(1, 1, 0, FLAG_TIMED), frame(rig, 11, 33))
    processor.outbox.flush()
    rig.settle()
    assert [kind for kind, _ in processor.inbox.poll(10)] == [TIMES, SEND_PARTS]
    processor.inbox.release()
    assert ask.known == 0


def test_an_offline_log_is_refused(rig: HandlerRig) -> None:
    ask = Asker(rig)
    assert [ask.same(frame(rig, 11, 30)) for _ in range(2)] == [False, True]
    rig.open("t").log.state.set_offline("a test says so")
    assert not ask.same(frame(rig, 11, 30))
    (answer,) = ask.one(frame(rig, 11, 30))
    row = answer.fields(ApiKey.FETCH, 11)["responses"][0]["partitions"][0]
    assert row["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_partition_that_another_handler_took_is_asked_of_it(start: Start) -> None:
    rig = start(handlers=2)
    rig.set_handler_count(1)
    rig.create_topic("t", partitions=4)
    for partition in range(4):
        fill(rig, 20, partition=partition)
    ask = Asker(rig)
    sent = [frame(rig, 11, 30, partition=partition) for partition in range(4)]
    before = []
    for number, each in enumerate(sent):
        ask.one(each, connection=number)
        before += ask.one(each, connection=number)
    assert ask.known == 4
    rig.set_handler_count(2)
    assert {rig.owner("t", partition) for partition in range(4)} == {0, 1}
    after = [answer for number, each in enumerate(sent) for answer in ask.one(each, connection=number)]
    assert [each.frame for each in after] == [each.frame for each in before]
