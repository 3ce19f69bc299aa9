"""Clients read records that were sent with acks=all when these are synced, whoever answers and however they ask."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.fetch.delayed_fetch import DelayedFetch
from kproc.broker.role.partition_table import ROW_WORDS
from kproc.broker.storage.fs import DiskFailed, Shortage
from kproc.broker.storage.log_durability import LogDurability
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import Answer, Fields, HandlerRig, parts_of
from tests.support.logs import NOW_MS, batch, sequenced
from tests.support.parked_fetches import is_of_fast_path
from tests.support.raw import fetch_fields, list_offsets_fields, produce_fields, values_of
from tests.support.transactions import in_transaction, put

Start = Callable[..., HandlerRig]
GROUP = {"kproc.flush": "group"}
LATEST, MAX_TIMESTAMP = -1, -3
READER, WRITER = 1, 2  # Connections.
NO_ID = bytes(16)


@pytest.fixture
def rig(start: Start) -> HandlerRig:
    made = start(settings=GROUP)
    made.create_topic("t")
    return made


def send(rig: HandlerRig, value: bytes = b"v", *, acks: int = -1, at: int = 0, view: Any = None) -> None:
    """Produce, without a look at the answer."""
    fields = produce_fields([("t", NO_ID, [(0, view or batch(value))])], acks=acks)
    rig.processors[at].send(ApiKey.PRODUCE, 9, fields, connection=WRITER)
    rig.settle()


def answers_to(rig: HandlerRig, connection: int, at: int = 0) -> list[Answer]:
    return [each for each in rig.processors[at].answers() if each.connection_id == connection]


def fetch(
    rig: HandlerRig, offset: int, *, wait_ms: int = 0, isolation: int = 0, at: int = 0
) -> Fields | None:
    """Fetch once; None if the request is parked."""
    fields = fetch_fields([("t", NO_ID, [(0, offset)])], max_wait_ms=wait_ms)
    fields["isolation_level"] = isolation
    rig.processors[at].send(ApiKey.FETCH, 12, fields, connection=READER)
    return fetched(rig, at)


def fetched(rig: HandlerRig, at: int = 0) -> Fields | None:
    found = answers_to(rig, READER, at)
    if not found:
        return None
    (answer,) = found
    row: Fields = answer.fields(ApiKey.FETCH, 12)["responses"][0]["partitions"][0]
    return row


def seen(row: Fields | None) -> tuple[int, list[bytes | None]]:
    """The high watermark and the records of an answer."""
    assert row is not None
    assert row["error_code"] == 0
    return row["high_watermark"], [value for _, value in values_of(row["records"])]


def offset_of(rig: HandlerRig, timestamp: int, *, isolation: int = 0) -> int | None:
    fields = list_offsets_fields("t", [(0, timestamp)])
    fields["isolation_level"] = isolation
    rig.processors[0].send(ApiKey.LIST_OFFSETS, 7, fields, connection=READER)
    found = answers_to(rig, READER)
    if not found:
        return None
    row = found[0].fields(ApiKey.LIST_OFFSETS, 7)["topics"][0]["partitions"][0]
    assert row["error_code"] == 0
    return int(row["offset"])


def fail_sync_points(patch: pytest.MonkeyPatch, error: OSError) -> None:
    """Let no round of syncs start."""

    def fail(_durability: LogDurability, *, closes: bool = False) -> None:
        del closes
        raise error

    patch.setattr(LogDurability, "sync_point", fail)


def end_round(rig: HandlerRig, at: int = 0) -> None:
    rig.syncers[at].end_round()
    rig.settle()


@pytest.mark.parametrize("isolation", [0, 1])
def test_fetch_and_list_offsets_see_acks_all_after_its_sync(rig: HandlerRig, isolation: int) -> None:
    send(rig, b"one", acks=1)
    send(rig, b"all")
    assert seen(fetch(rig, 0, isolation=isolation)) == (1, [b"one"])
    assert seen(fetch(rig, 1, isolation=isolation)) == (1, [])
    assert offset_of(rig, LATEST, isolation=isolation) == 1
    assert offset_of(rig, NOW_MS, isolation=isolation) == 0
    end_round(rig)
    assert seen(fetch(rig, 1, isolation=isolation)) == (2, [b"all"])
    assert offset_of(rig, LATEST, isolation=isolation) == 2


def test_list_offsets_by_time_finds_no_hidden_record(rig: HandlerRig) -> None:
    send(rig, view=batch(b"later", timestamp=NOW_MS + 5))
    assert (offset_of(rig, NOW_MS + 1), offset_of(rig, MAX_TIMESTAMP)) == (-1, -1)
    end_round(rig)
    assert (offset_of(rig, NOW_MS + 1), offset_of(rig, MAX_TIMESTAMP)) == (0, 0)


def test_acks_1_is_visible_unless_acks_all_precedes_it(rig: HandlerRig) -> None:
    send(rig, b"a", acks=1)
    assert seen(fetch(rig, 0)) == (1, [b"a"])
    send(rig, b"b")
    send(rig, b"c", acks=1)
    send(rig, b"d", acks=0)
    assert seen(fetch(rig, 0)) == (1, [b"a"])
    end_round(rig)
    assert seen(fetch(rig, 0)) == (4, [b"a", b"b", b"c", b"d"])


def test_acks_all_is_visible_at_append_with_flush_none(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    send(rig, b"all")
    assert seen(fetch(rig, 0)) == (1, [b"all"])


@pytest.mark.parametrize("is_known", [False, True], ids=["general path", "fast path"])
def test_parked_fetch_wakes_when_the_high_watermark_moves(rig: HandlerRig, *, is_known: bool) -> None:
    send(rig, b"a")
    end_round(rig)
    rig.processors[0].answers()
    if is_known:
        assert fetch(rig, 0, wait_ms=500) is not None
    tries = 0
    assert fetch(rig, 1, wait_ms=500) is None
    (parked,) = parts_of(rig.handler()).purgatory.deadlines
    assert isinstance(parked, DelayedFetch)
    assert is_of_fast_path(parked) == is_known
    kind, try_complete = type(parked), type(parked).try_complete

    def counted(operation: Any) -> bool:
        nonlocal tries
        tries += 1
        return bool(try_complete(operation))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "try_complete", counted)
        send(rig, b"b")
        send(rig, b"c")
        assert (fetched(rig), tries) == (None, 0), "the log's end moved, and nobody can read more"
        end_round(rig)
        assert seen(fetched(rig)) == (2, [b"b"]), "the round covers the first of the two"
        assert tries == 1


def test_fetch_by_another_handler_wakes_with_the_sync(start: Start) -> None:
    rig = start(handlers=2, settings=GROUP)
    rig.create_topic("t")
    owner = rig.owner("t")
    send(rig, b"a", at=owner)
    assert fetch(rig, 0, wait_ms=500, at=1 - owner) is None
    end_round(rig, owner)
    assert seen(fetched(rig, 1 - owner)) == (1, [b"a"])


def test_duplicate_is_answered_after_the_sync_of_its_original(rig: HandlerRig) -> None:
    send(rig, view=sequenced(7, 0))
    send(rig, view=sequenced(7, 0))
    assert answers_to(rig, WRITER) == []
    end_round(rig)
    rows = [
        each.fields(ApiKey.PRODUCE, 9)["responses"][0]["partition_responses"][0]
        for each in answers_to(rig, WRITER)
    ]
    assert [(row["error_code"], row["base_offset"]) for row in rows] == [(0, 0), (0, 0)]


def test_delete_records_to_high_watermark_keeps_hidden(rig: HandlerRig) -> None:
    send(rig, b"a", acks=1)
    send(rig, b"b")
    for offset in (-1, 2):
        fields = {
            "topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": offset}]}],
            "timeout": 1000,
        }
        rig.processors[0].send(ApiKey.DELETE_RECORDS, 2, fields, connection=WRITER)
        rig.settle()
    end_round(rig)
    assert rig.open("t").log.state.start_offset == 1
    assert seen(fetch(rig, 1)) == (2, [b"b"])


def test_successor_shows_what_was_visible_and_syncs_the_rest(rig: HandlerRig) -> None:
    """Records of acks=1 that clients have read stay visible; a record of acks=all stays hidden until it is synced."""
    send(rig, b"a", acks=1)
    send(rig, b"b")
    rig.kill(0)
    rig.start_handler(0, is_restart=True)
    assert seen(fetch(rig, 0)) == (1, [b"a"])
    assert offset_of(rig, LATEST) == 1
    assert fetch(rig, 1, wait_ms=500) is None
    end_round(rig)
    assert seen(fetched(rig)) == (2, [b"b"])


def test_successor_ends_transaction_after_marker_is_synced(rig: HandlerRig) -> None:
    """A power loss could take the marker, and the last stable offset would go back below what clients have read."""
    owned = rig.open("t")
    put(owned.log, in_transaction(7, b"v"))
    owned.log.durability.sync()
    owned.log.appender.append_marker(7, 0, 0, is_commit=True, transaction_version=1, is_hidden=True)
    owned.after_append()
    assert (owned.log.state.high_watermark, owned.log.state.last_stable_offset) == (1, 0)
    rig.kill(0)
    rig.start_handler(0, is_restart=True)
    assert fetch(rig, 0, isolation=1) is None
    end_round(rig)
    high_watermark, (value, _marker) = seen(fetched(rig))
    assert (high_watermark, value) == (2, b"v")
    assert offset_of(rig, LATEST, isolation=1) == 2


@pytest.mark.parametrize("death", ["broker", "owner inside its row", "owner before its first sync"])
def test_readers_wait_for_the_first_sync_after_a_recovery(start: Start, death: str) -> None:
    """Nobody knows the high watermark that clients saw, and it must not seem to go back."""
    rig = start(settings=GROUP)
    rig.create_topic("t")
    send(rig, b"a", acks=1)
    send(rig, b"b")
    end_round(rig)
    rig.processors[0].answers()
    send(rig, b"c", acks=1)
    rig.kill(0)
    writer = rig.table.writer(rig.image_of("t").slot)
    if death == "owner inside its row":
        rig.table._words[rig.image_of("t").slot * ROW_WORDS] += 1
    else:
        writer.publish((0,) * 8)
    rig.start_handler(0, is_restart=True)
    if death == "owner before its first sync":
        assert fetch(rig, 0) is None
        rig.kill(0)
        rig.start_handler(0, is_restart=True)
    assert fetch(rig, 0) is None
    fields = list_offsets_fields("t", [(0, LATEST)])
    rig.processors[0].send(ApiKey.LIST_OFFSETS, 7, fields, connection=WRITER)
    assert answers_to(rig, WRITER) == []
    end_round(rig)
    answers = {each.connection_id: each for each in rig.processors[0].answers()}
    row = answers[READER].fields(ApiKey.FETCH, 12)["responses"][0]["partitions"][0]
    assert seen(row) == (3, [b"a", b"b", b"c"])
    assert answers[WRITER].fields(ApiKey.LIST_OFFSETS, 7)["topics"][0]["partitions"][0]["offset"] == 3


def test_successor_trusts_the_row_again_after_the_first_sync(rig: HandlerRig) -> None:
    send(rig, b"a", acks=1)
    rig.kill(0)
    rig.table.writer(rig.image_of("t").slot).publish((0,) * 8)
    rig.start_handler(0, is_restart=True)
    assert fetch(rig, 0) is None
    end_round(rig)
    assert seen(fetched(rig)) == (1, [b"a"])
    send(rig, b"b", acks=1)
    rig.kill(0)
    rig.start_handler(0, is_restart=True)
    assert seen(fetch(rig, 0)) == (2, [b"a", b"b"])


def test_readers_get_error_of_first_sync_after_recovery(rig: HandlerRig) -> None:
    send(rig, b"a", acks=1)
    rig.kill(0)
    rig.table.writer(rig.image_of("t").slot).publish((0,) * 8)
    rig.start_handler(0, is_restart=True)
    assert fetch(rig, 0) is None
    fields = list_offsets_fields("t", [(0, LATEST)])
    rig.processors[0].send(ApiKey.LIST_OFFSETS, 7, fields, connection=WRITER)
    rig.settle()
    rig.syncers[0].end_round(OSError(errno.EIO, "Input/output error"))
    rig.settle()
    answers = {each.connection_id: each for each in rig.processors[0].answers()}
    assert answers[READER].fields(ApiKey.FETCH, 12)["responses"][0]["partitions"][0]["error_code"] == (
        ErrorCode.KAFKA_STORAGE_ERROR
    )
    row = answers[WRITER].fields(ApiKey.LIST_OFFSETS, 7)["topics"][0]["partitions"][0]
    assert row["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR


def test_delete_records_waits_for_first_sync_after_recovery(rig: HandlerRig) -> None:
    """Before that sync the high watermark is 0. Up to it nothing would be deleted, and 1 would be out of range."""
    send(rig, b"a", acks=1)
    rig.kill(0)
    rig.table.writer(rig.image_of("t").slot).publish((0,) * 8)
    rig.start_handler(0, is_restart=True)
    assert fetch(rig, 0) is None
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": -1}]}]
    rig.processors[0].send(ApiKey.DELETE_RECORDS, 2, {"topics": topics, "timeout": 1_000}, connection=WRITER)
    assert answers_to(rig, WRITER) == []
    end_round(rig)
    assert rig.open("t").log.state.start_offset == 1


def test_list_offsets_after_recovery_gets_a_syncs_shortage(
    rig: HandlerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shortage leaves the log open, so a request that waited again would wait for ever."""
    send(rig, b"a", acks=1)
    rig.kill(0)
    rig.table.writer(rig.image_of("t").slot).publish((0,) * 8)
    rig.start_handler(0, is_restart=True)

    with monkeypatch.context() as short:
        fail_sync_points(short, Shortage(errno.EMFILE, "Too many open files"))
        fields = list_offsets_fields("t", [(0, LATEST)])
        rig.processors[0].send(ApiKey.LIST_OFFSETS, 7, fields, connection=WRITER)
        rig.settle()
    (answer,) = answers_to(rig, WRITER)
    row = answer.fields(ApiKey.LIST_OFFSETS, 7)["topics"][0]["partitions"][0]
    assert row["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR
    rig.advance_ms(1000)
    rig.settle()
    end_round(rig)
    assert offset_of(rig, LATEST) == 1


def test_waiter_that_waits_again_is_not_answered_twice(rig: HandlerRig) -> None:
    """A failed round answers the waiters that it found, and ends."""
    send(rig, acks=1)
    owned = parts_of(rig.handler()).partitions.get("t", rig.image_of("t"))
    codes: list[int] = []

    def wait_again(code: int) -> None:
        codes.append(code)
        if len(codes) < 3:
            owned.when_synced(1, wait_again)

    owned.when_synced(1, wait_again)
    owned.on_synced(OSError(errno.EIO, "Input/output error"))
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert owned.is_waited_for


def test_transfer_waits_until_hidden_records_are_synced(start: Start) -> None:
    """Nobody waits for the first sync after a crash, and the next owner must not show what it has not confirmed."""
    rig = start(handlers=2, settings=GROUP)
    rig.create_topic("t", partitions=4)
    index = next(each for each in range(4) if rig.owner("t", each) == 1)
    rig.set_handler_count(1)
    fields = produce_fields([("t", NO_ID, [(index, batch(b"a"))])], acks=1)
    rig.processors[0].ask(ApiKey.PRODUCE, 9, fields)
    rig.kill(0)
    rig.table.writer(rig.image_of("t", index).slot).publish((0,) * 8)
    rig.start_handler(0, is_restart=True)
    assert rig.open("t", index).log.state.high_watermark == 0
    rig.settle()
    rig.set_handler_count(2)
    assert rig.partitions(0).find(("t", index)) is not None
    end_round(rig)
    log = rig.open("t", index).log
    assert (rig.partitions(0).find(("t", index)), log.state.high_watermark, log.state.end_offset) == (
        None,
        1,
        1,
    )


def test_transfer_ends_when_its_last_sync_cannot_start(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log goes offline between two rounds, so no end of a round closes it."""
    rig = start(handlers=2, settings=GROUP)
    rig.create_topic("t", partitions=4)
    index = next(each for each in range(4) if rig.owner("t", each) == 1)
    rig.set_handler_count(1)
    other = next(each for each in range(4) if each != index)
    # The first round runs without the second record, which waits for the next round.
    for partition, connection in ((other, READER), (index, WRITER)):
        fields = produce_fields([("t", NO_ID, [(partition, batch(b"v"))])], acks=-1)
        rig.processors[0].send(ApiKey.PRODUCE, 9, fields, connection=connection)
        rig.settle()
    log = rig.open("t", index).log
    rig.set_handler_count(2)
    assert rig.partitions(0).find(("t", index)) is not None
    with monkeypatch.context() as failing:
        fail_sync_points(failing, DiskFailed(errno.EIO, "Input/output error"))
        end_round(rig)
    assert log.state.is_offline
    rig.advance_ms(1000)
    rig.settle()
    assert rig.partitions(0).find(("t", index)) is None
