"""Fetch and ListOffsets with read_committed: they end at the last stable offset and name aborted transactions."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kproc.broker.cluster.image import PartitionImage, TopicImage
from kproc.broker.fetch.fetch_read import read_partition
from kproc.broker.request.context import PartitionMoving
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from kproc.wire.hot import FetchPartition
from tests.support.fetch_frames import (
    KNOWN,
    SOME,
    VERSIONS,
    Asker,
    frame,
    id_of,
    make_small_segments,
    plain_versions,
)
from tests.support.handler_rig import Fields, HandlerRig, parts_of
from tests.support.links import LINK_PARAMS
from tests.support.logs import NOW_MS, batch
from tests.support.parked_fetches import answers_alike, park
from tests.support.raw import fetch_fields, list_offsets_fields, values_of
from tests.support.transactions import in_transaction, marker, put, read_committed

Start = Callable[..., HandlerRig]
WAIT_MS = 500
UNCOMMITTED, COMMITTED = 0, 1


@pytest.fixture
def rig(start: Start) -> HandlerRig:
    made = start(link_kind="ring")
    made.create_topic("t", partitions=2)
    return made


def append(rig: HandlerRig, *views: memoryview, partition: int = 0) -> None:
    """Each as an append of its own, of which the waiting are told."""
    owned = rig.open("t", partition)
    for view in views:
        put(owned.log, view)
        owned.after_append()


def row_of(rig: HandlerRig, version: int, offset: int, isolation: int, **more: Any) -> Fields:
    """The only partition's answer of a general Fetch."""
    (answer,) = Asker(rig).general(frame(rig, version, offset, isolation_level=isolation, **more))
    row: Fields = answer.fields(ApiKey.FETCH, version)["responses"][0]["partitions"][0]
    return row


def seen_in(row: Fields) -> list[int]:
    """The offsets of an answer's records."""
    return [offset for offset, _ in values_of(row["records"])]


def aborted_in(row: Fields) -> list[tuple[int, int]] | None:
    named = row["aborted_transactions"]
    return None if named is None else [(each["producer_id"], each["first_offset"]) for each in named]


# -- one partition -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", plain_versions(VERSIONS))
def test_committed_fetch_ends_at_last_stable_offset(
    rig: HandlerRig, version: int
) -> None:
    append(rig, batch("before"), in_transaction(7, b"open"), batch("after"))
    row = row_of(rig, version, 0, COMMITTED)
    assert (row["high_watermark"], row["last_stable_offset"]) == (3, 1)
    assert (seen_in(row), aborted_in(row)) == ([0], [])
    row = row_of(rig, version, 0, UNCOMMITTED)
    assert (row["high_watermark"], row["last_stable_offset"]) == (3, 1)
    assert (seen_in(row), aborted_in(row)) == ([0, 1, 2], None)
    append(rig, marker(7, commit=False))
    row = row_of(rig, version, 0, COMMITTED)
    assert (row["high_watermark"], row["last_stable_offset"]) == (4, 4)
    assert (seen_in(row), aborted_in(row)) == ([0, 1, 2, 3], [(7, 1)])
    row = row_of(rig, version, 0, UNCOMMITTED)
    assert (seen_in(row), aborted_in(row)) == ([0, 1, 2, 3], None)
    assert aborted_in(row_of(rig, version, 4, COMMITTED)) == []
    assert aborted_in(row_of(rig, version, 4, UNCOMMITTED)) is None


def test_fetch_between_stable_offset_and_end_is_empty(rig: HandlerRig) -> None:
    append(rig, in_transaction(7, b"open"), batch("after"))
    for offset in (0, 1, 2):
        row = row_of(rig, 12, offset, COMMITTED)
        assert (row["error_code"], row["records"], row["last_stable_offset"]) == (0, b"", 0)
    assert row_of(rig, 12, 3, COMMITTED)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("version", plain_versions(KNOWN))
def test_committed_fetch_uses_fast_path_without_aborts(rig: HandlerRig, version: int) -> None:
    make_small_segments(rig, "t", 3000)
    append(rig, *(batch(bytes(200)) for _ in range(20)))
    append(rig, in_transaction(7, b"never"), marker(7, commit=False))
    append(rig, *(batch(bytes(200)) for _ in range(20)))
    append(rig, in_transaction(8, b"open"), batch(bytes(200)))
    ask = Asker(rig)
    assert not ask.same(frame(rig, version, 0, isolation_level=COMMITTED, partition_max_bytes=600))
    taken = [
        ask.same(frame(rig, version, offset, isolation_level=COMMITTED, partition_max_bytes=600))
        for offset in (2, 3, 20, 21, 25, 30, 41)
    ]
    # What overlaps the transaction, and the last one, at the last stable offset, go the general way.
    assert taken == [True, True, False, False, True, True, True]
    assert not ask.same(frame(rig, version, 42, isolation_level=COMMITTED, partition_max_bytes=600))


@pytest.mark.parametrize("seed", range(6))
def test_known_and_general_fetches_give_the_committed_records(rig: HandlerRig, seed: int) -> None:
    """Whatever the history of the log; and both answer with the same bytes."""
    chance, ask = random.Random(seed), Asker(rig)
    version = chance.choice(KNOWN)
    log = make_small_segments(rig, "t", 2000)
    opened: dict[int, list[bytes]] = {}
    committed: list[bytes] = []
    for number in range(120):
        producer, value = chance.randrange(3), b"%03d" % number + bytes(chance.choice((0, 100)))
        what = chance.choice(("plain", "data", "data", "end"))
        if what == "plain":
            append(rig, batch(value))
            committed.append(value)
        elif what == "data":
            append(rig, in_transaction(producer, value))
            opened.setdefault(producer, []).append(value)
        else:
            commit = chance.random() < 0.5
            append(rig, marker(producer, commit=commit))
            ended = opened.pop(producer, [])
            committed += ended if commit else []
    for producer in list(opened):
        append(rig, marker(producer, commit=True))
        committed += opened.pop(producer)
    assert log.state.last_stable_offset == log.state.end_offset

    def fetch(offset: int) -> tuple[bytes, list[tuple[int, int]]]:
        more = {"isolation_level": COMMITTED, "partition_max_bytes": chance.choice((1, 300, 900))}
        sent = frame(rig, version, offset, **more)
        ask.same(sent)
        (answer,) = ask.one(sent)
        (row,) = answer.fields(ApiKey.FETCH, version)["responses"][0]["partitions"]
        return row["records"], aborted_in(row) or []

    seen, stop = read_committed(fetch, 0)
    assert stop == log.state.end_offset
    assert sorted(value or b"" for _, value in seen) == sorted(committed)
    assert seen == sorted(seen)


# -- waiting -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", SOME)
def test_marker_wakes_read_committed_fetch(rig: HandlerRig, version: int, commit: bool) -> None:
    append(rig, *(batch(bytes(200)) for _ in range(40)))
    park(rig, version, 40, isolation_level=COMMITTED)
    append(rig, in_transaction(7, b"first"), batch("after"))
    assert answers_alike(rig, version) is None
    append(rig, marker(7, commit=commit))
    row = answers_alike(rig, version)
    assert row is not None
    assert (row["high_watermark"], row["last_stable_offset"], seen_in(row)) == (43, 43, [40, 41, 42])
    assert aborted_in(row) == ([] if commit else [(7, 40)])


def test_uncommitted_waiter_is_woken_by_open_transaction(rig: HandlerRig) -> None:
    append(rig, *(batch(bytes(200)) for _ in range(40)))
    park(rig, 12, 40, isolation_level=UNCOMMITTED)
    append(rig, in_transaction(7, b"first"))
    row = answers_alike(rig, 12)
    assert row is not None
    assert (row["last_stable_offset"], seen_in(row), aborted_in(row)) == (40, [40], None)


@pytest.mark.parametrize("version", SOME)
def test_deadline_ends_fetch_behind_an_open_transaction(rig: HandlerRig, version: int) -> None:
    append(rig, *(batch(bytes(200)) for _ in range(40)))
    park(rig, version, 40, isolation_level=COMMITTED)
    append(rig, in_transaction(7, b"first"))
    rig.advance_ms(WAIT_MS + 1)
    row = answers_alike(rig, version)
    assert row is not None
    assert (row["high_watermark"], row["last_stable_offset"], row["records"]) == (41, 40, b"")


def test_min_bytes_count_up_to_the_last_stable_offset_only(rig: HandlerRig) -> None:
    append(rig, *(batch(bytes(200)) for _ in range(40)))
    park(rig, 12, 40, isolation_level=COMMITTED, min_bytes=1000)
    append(rig, batch(bytes(200)), in_transaction(7, bytes(1500)))
    assert answers_alike(rig, 12) is None
    append(rig, marker(7, commit=True))
    row = answers_alike(rig, 12)
    assert row is not None
    assert seen_in(row) == [40, 41, 42]


def test_delete_records_under_open_transaction_wakes_fetch(rig: HandlerRig) -> None:
    append(rig, *(batch(bytes(200)) for _ in range(40)))
    park(rig, 12, 40, isolation_level=COMMITTED)
    append(rig, in_transaction(7, b"first"), batch("after"))
    owned = rig.open("t")
    owned.log.retention.advance_start(42)
    owned.after_append()
    row = answers_alike(rig, 12)
    assert row is not None
    assert row["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    row = row_of(rig, 12, 42, COMMITTED)
    assert (row["log_start_offset"], row["last_stable_offset"], row["high_watermark"]) == (42, 42, 42)
    append(rig, batch("later"))
    row = row_of(rig, 12, 42, COMMITTED)
    assert (row["last_stable_offset"], row["high_watermark"], row["records"]) == (42, 43, b"")
    append(rig, marker(7, commit=False))
    row = row_of(rig, 12, 42, COMMITTED)
    assert (row["last_stable_offset"], seen_in(row), aborted_in(row)) == (44, [42, 43], [(7, 40)])


# -- sessions, several owners --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [7, 12, 16])
def test_session_reports_partition_when_stable_offset_moves(
    rig: HandlerRig, version: int
) -> None:
    append(rig, in_transaction(7, b"open"), partition=1)
    fields = fetch_fields([("t", id_of(rig, "t"), [(0, 0), (1, 0)])], session=(0, 0))
    fields["isolation_level"] = COMMITTED

    def ask() -> dict[int, tuple[int, list[int]]]:
        answer = rig.processors[0].ask(ApiKey.FETCH, version, fields)
        assert answer["error_code"] == 0
        fields.update(session_id=answer["session_id"], session_epoch=fields["session_epoch"] + 1, topics=[])
        return {
            row["partition_index"]: (row["last_stable_offset"], seen_in(row))
            for topic in answer["responses"]
            for row in topic["partitions"]
        }

    assert ask() == {0: (0, []), 1: (0, [])}
    assert ask() == {}
    append(rig, in_transaction(7, b"more"), partition=1)
    assert ask() == {1: (0, [])}  # Its end has moved.
    append(rig, marker(7, commit=True), partition=1)
    assert ask() == {1: (3, [0, 1, 2])}
    assert ask() == {1: (3, [0, 1, 2])}  # The client has not moved on.


def test_session_tells_of_a_stable_offset_that_moves_alone(rig: HandlerRig) -> None:
    """As it would where the owner could not tell it at first."""
    append(rig, batch("x"))
    fields = fetch_fields([("t", id_of(rig, "t"), [(0, 1)])], session=(0, 0))
    answer = rig.processors[0].ask(ApiKey.FETCH, 12, fields)
    sessions = parts_of(rig.handler()).services.owner.session_cache._sessions
    (target,) = sessions[answer["session_id"]].targets.values()
    assert target.last_offsets == (0, 1, 1)
    target.last_offsets = (0, 1, -1)
    fields.update(session_id=answer["session_id"], session_epoch=1, topics=[])
    answer = rig.processors[0].ask(ApiKey.FETCH, 12, fields)
    assert answer["responses"][0]["partitions"][0]["last_stable_offset"] == 1


@pytest.fixture(params=LINK_PARAMS)
def several(request: pytest.FixtureRequest, start: Start) -> HandlerRig:
    made = start(handlers=2, link_kind=request.param)
    made.create_topic("t", partitions=4)
    return made


def test_committed_fetch_over_owners_waits_for_markers(several: HandlerRig) -> None:
    rig = several
    there = next(index for index in range(4) if rig.owner("t", index) == 1)
    append(rig, batch("plain"), in_transaction(7, b"never"), marker(7, commit=False), partition=there)
    fields = fetch_fields([("t", id_of(rig, "t"), [(0, 0), (1, 0), (2, 0), (3, 0)])])
    fields["isolation_level"] = COMMITTED
    answer = rig.processors[0].ask(ApiKey.FETCH, 12, fields)
    rows = {row["partition_index"]: row for row in answer["responses"][0]["partitions"]}
    assert aborted_in(rows[there]) == [(7, 1)]
    assert [aborted_in(rows[index]) for index in range(4) if index != there] == [[]] * 3
    assert (rows[there]["last_stable_offset"], seen_in(rows[there])) == (3, [0, 1, 2])

    append(rig, in_transaction(8, b"open"), partition=there)
    fields["max_wait"] = WAIT_MS
    for row in fields["topics"][0]["partitions"]:
        row["fetch_offset"] = 3 if row["partition"] == there else 0
    rig.processors[0].send(ApiKey.FETCH, 12, fields)
    assert rig.processors[0].answers() == []
    append(rig, batch("after"), partition=there)
    assert rig.processors[0].answers() == []
    append(rig, marker(8, commit=True), partition=there)
    (woken,) = rig.processors[0].answers()
    rows = {
        row["partition_index"]: row for row in woken.fields(ApiKey.FETCH, 12)["responses"][0]["partitions"]
    }
    assert (rows[there]["last_stable_offset"], seen_in(rows[there])) == (6, [3, 4, 5])
    assert aborted_in(rows[there]) == []


def wait_for(rig: HandlerRig, partition: int, offset: int) -> None:
    """A reader of committed records at the first Handler waits for a partition."""
    fields = fetch_fields([("t", id_of(rig, "t"), [(partition, offset)])], max_wait_ms=WAIT_MS)
    fields["isolation_level"] = COMMITTED
    rig.processors[0].send(ApiKey.FETCH, 12, fields)
    assert rig.processors[0].answers() == []


def test_appends_in_open_transactions_notify_no_handler(several: HandlerRig) -> None:
    rig = several
    there = next(index for index in range(4) if rig.owner("t", index) == 1)
    wait_for(rig, there, 0)
    append(rig, in_transaction(7, b"first"), partition=there)
    rig.settle()
    (watch,) = parts_of(rig.handler(1)).purgatory.watchers["t", there]
    append(rig, in_transaction(7, b"second"), batch("after"), partition=there)
    rig.settle()
    assert list(parts_of(rig.handler(1)).purgatory.watchers["t", there]) == [watch]
    append(rig, marker(7, commit=True), partition=there)
    (answer,) = rig.processors[0].answers()
    (row,) = answer.fields(ApiKey.FETCH, 12)["responses"][0]["partitions"]
    assert seen_in(row) == [0, 1, 2, 3]
    assert len(parts_of(rig.handler(1)).purgatory) == 0


def test_watch_of_a_reader_that_leaves_ends_before_any_marker(several: HandlerRig) -> None:
    rig = several
    there = next(index for index in range(4) if rig.owner("t", index) == 1)
    append(rig, in_transaction(7, b"first"), partition=there)
    wait_for(rig, there, 0)
    assert len(parts_of(rig.handler(1)).purgatory) == 1
    rig.processors[0].disconnect()
    rig.settle()
    assert len(parts_of(rig.handler(1)).purgatory) == len(parts_of(rig.handler(0)).purgatory) == 0


def test_remote_reader_is_notified_of_deletion_up_to_end(
    several: HandlerRig,
) -> None:
    rig = several
    there = next(index for index in range(4) if rig.owner("t", index) == 1)
    append(rig, in_transaction(7, b"first"), batch("after"), partition=there)
    wait_for(rig, there, 0)
    owned = rig.open("t", there)
    owned.log.retention.advance_start(2)
    owned.after_append()
    (answer,) = rig.processors[0].answers()
    (row,) = answer.fields(ApiKey.FETCH, 12)["responses"][0]["partitions"]
    assert row["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE


def test_last_stable_offset_is_unknown_during_transfer() -> None:
    def moving(*_: Any) -> Any:
        raise PartitionMoving(("t", 0), 2, 5)

    partitions: Any = SimpleNamespace(get=moving)
    partition = PartitionImage(index=0, slot=0, slot_generation=0, owner=0, leader_epoch=0)
    topic = TopicImage("t", bytes(16), [partition], {}, [0])
    wanted = FetchPartition(0, -1, 3, -1, -1, 1000)
    read = read_partition(partitions, (topic, partition), wanted, 1000, minimum_one=True, committed=True)
    assert (read.error, read.start, read.end, read.stable) == (0, 2, 5, -1)


# -- ListOffsets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 12))
def test_committed_list_offsets_ends_at_last_stable_offset(
    several: HandlerRig, version: int
) -> None:
    rig = several
    for index in range(4):
        append(
            rig,
            batch("before", timestamp=NOW_MS),
            in_transaction(7, b"open", timestamp=NOW_MS + 10),
            batch("after", timestamp=NOW_MS + 20),
            partition=index,
        )

    def ask(timestamp: int, isolation: int) -> set[tuple[int, int]]:
        fields = list_offsets_fields("t", [(index, timestamp) for index in range(4)])
        fields["isolation_level"] = isolation
        answer = rig.processors[0].ask(ApiKey.LIST_OFFSETS, version, fields)
        rows = answer["topics"][0]["partitions"]
        assert not any(row["error_code"] for row in rows)
        return {(row["offset"], row["timestamp"]) for row in rows}

    has_isolation = version >= 2
    for isolation in (UNCOMMITTED, COMMITTED):
        is_limited = has_isolation and isolation == COMMITTED
        assert ask(-1, isolation) == {(1, -1) if is_limited else (3, -1)}
        assert ask(-2, isolation) == {(0, -1)}
        assert ask(NOW_MS, isolation) == {(0, NOW_MS)}
        assert ask(NOW_MS + 5, isolation) == {(-1, -1) if is_limited else (1, NOW_MS + 10)}
        if version >= 7:
            assert ask(-3, isolation) == {(-1, -1) if is_limited else (2, NOW_MS + 20)}
    for index in range(4):
        append(rig, marker(7, commit=True, timestamp=NOW_MS + 15), partition=index)
    assert ask(-1, COMMITTED) == {(4, -1)}
    assert ask(NOW_MS + 5, COMMITTED) == {(1, NOW_MS + 10)}


def test_committed_latest_offset_has_leaders_epoch(rig: HandlerRig) -> None:
    """As in Kafka, also where that offset was written in an earlier one."""
    append(rig, in_transaction(7, b"open"))
    log = rig.open("t").log
    fields = list_offsets_fields("t", [(0, -1)])
    fields["isolation_level"] = COMMITTED
    log.state.leader_epoch = 5
    (row,) = rig.processors[0].ask(ApiKey.LIST_OFFSETS, 9, fields)["topics"][0]["partitions"]
    assert (row["offset"], row["leader_epoch"]) == (0, 5)
