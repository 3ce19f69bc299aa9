"""OwnedPartition: acks=all with kproc.flush=group is answered after the sync. One fdatasync serves many requests."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from kproc.broker.storage.fs import DiskFailed, Shortage
from kproc.broker.storage.log import SyncPoint
from kproc.broker.storage.log_durability import LogDurability
from kproc.broker.transport.envelope import NO_OP, SEND
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey
from tests.support.handler_rig import Answer, HandlerRig
from tests.support.raw import batch, produce_fields

VERSION = 9
EIO = OSError(errno.EIO, "Input/output error")


@pytest.fixture
def rig(start: Callable[..., HandlerRig]) -> HandlerRig:
    made = start(settings={"kproc.flush": "group"})
    made.create_topic("t", partitions=3)
    return made


def send(rig: HandlerRig, partition: int = 0, *, acks: int = -1, connection: int = 1) -> None:
    fields = produce_fields([("t", bytes(16), [(partition, batch(b"value"))])], acks=acks)
    rig.processors[0].send(ApiKey.PRODUCE, VERSION, fields, connection=connection)


def results(answers: list[Answer]) -> list[tuple[int, int, int]]:
    """(connection, error code, base offset) of each answer."""
    found = []
    for answer in answers:
        (row,) = answer.fields(ApiKey.PRODUCE, VERSION)["responses"][0]["partition_responses"]
        found.append((answer.connection_id, row["error_code"], row["base_offset"]))
    return found


def test_answer_waits_for_the_sync_and_acks_1_does_not(rig: HandlerRig) -> None:
    processor, syncer = rig.processors[0], rig.syncers[0]
    send(rig, connection=1)
    send(rig, connection=2, acks=1)
    assert results(processor.answers()) == [(2, 0, 1)]
    assert syncer.sizes == [1]
    syncer.end_round()
    assert results(processor.answers()) == [(1, 0, 0)]
    assert rig.open("t").log.state.recovery_point == 2
    assert syncer.sizes == [1], "nothing is left to sync"


def test_waiters_that_come_while_a_round_runs_share_the_next_one(rig: HandlerRig) -> None:
    processor, syncer = rig.processors[0], rig.syncers[0]
    send(rig, connection=1)
    rig.settle()
    for connection in range(2, 12):
        send(rig, connection=connection)
        rig.settle()
    assert syncer.sizes == [1], "one round at a time"
    syncer.end_round()
    assert results(processor.answers()) == [(1, 0, 0)], "a round covers what was there at its start"
    assert syncer.sizes == [1, 1]
    syncer.end_round()
    assert results(processor.answers()) == [(number, 0, number - 1) for number in range(2, 12)]
    assert syncer.sizes == [1, 1]


def test_one_round_syncs_all_logs_with_waiting_requests(rig: HandlerRig) -> None:
    for partition in range(3):
        send(rig, partition, connection=partition)
    rig.settle()
    assert rig.syncers[0].sizes == [3]
    rig.syncers[0].end_round()
    assert results(rig.processors[0].answers()) == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]


def test_failed_sync_answers_all_and_takes_partition_offline(rig: HandlerRig) -> None:
    """The kernel may have dropped what it could not write: a second fdatasync that succeeds proves nothing."""
    processor, syncer = rig.processors[0], rig.syncers[0]
    send(rig, 0, connection=1)
    send(rig, 1, connection=2)
    rig.settle()
    send(rig, 0, connection=3)  # Waits for the next round.
    rig.settle()
    (first, second) = syncer.rounds.popleft()
    second[0].durability.run_sync(second[1])
    syncer._done += [(*first, EIO), (*second, None)]
    failed = int(ErrorCode.KAFKA_STORAGE_ERROR)
    assert results(processor.answers()) == [(1, failed, -1), (3, failed, -1), (2, 0, 0)]
    send(rig, 0, acks=1)
    send(rig, 1, acks=1)
    assert [(code, offset) for _, code, offset in results(processor.answers())] == [(failed, -1), (0, 1)]


def test_unsyncable_log_does_not_block_syncs_of_others(
    rig: HandlerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor, syncer = rig.processors[0], rig.syncers[0]
    for partition in (0, 1):  # Opened before anything fails.
        send(rig, partition, acks=1)
    assert len(processor.answers()) == 2
    broken = next(each for each in rig.partitions().opened() if each.key[1] == 0).log

    original = LogDurability.sync_point

    def sync_point(durability: LogDurability) -> SyncPoint:
        if durability is broken.durability:
            raise EIO
        return original(durability)

    monkeypatch.setattr(LogDurability, "sync_point", sync_point)
    send(rig, 0, connection=1)
    send(rig, 1, connection=2)
    rig.settle()
    assert syncer.sizes == [1]
    syncer.end_round()
    failed = int(ErrorCode.KAFKA_STORAGE_ERROR)
    assert results(processor.answers()) == [(1, failed, -1), (2, 0, 1)]
    assert broken.state.is_offline


def test_topic_deletion_during_round_answers_waiters_at_once(rig: HandlerRig) -> None:
    processor, syncer = rig.processors[0], rig.syncers[0]
    send(rig)
    rig.settle()
    rig.delete_topic("t")
    assert results(processor.answers()) == [(1, int(ErrorCode.KAFKA_STORAGE_ERROR), -1)]
    syncer.end_round()
    assert processor.answers() == []
    assert not rig.partitions().group_commit.syncing


def test_recreated_topic_is_untouched_by_round_of_old_one(rig: HandlerRig) -> None:
    processor, syncer = rig.processors[0], rig.syncers[0]
    send(rig)
    rig.settle()
    rig.delete_topic("t")
    rig.create_topic("t")
    processor.answers()
    send(rig, connection=2)
    assert processor.answers() == []
    syncer.end_round()
    assert processor.answers() == [], "that round was about another file"
    row = rig.table.read(rig.image_of("t"))  # It has its namesake's slot.
    assert row is not None
    assert row.end_offset == 1
    syncer.end_round()
    assert results(processor.answers()) == [(2, 0, 0)]


def test_failed_round_of_deleted_topic_keeps_namesake_online(rig: HandlerRig) -> None:
    processor, syncer = rig.processors[0], rig.syncers[0]
    send(rig)
    rig.settle()
    rig.delete_topic("t")
    rig.create_topic("t")
    processor.answers()
    syncer.end_round(EIO)
    send(rig, acks=1)
    assert results(processor.answers()) == [(1, 0, 0)]


def test_handler_is_not_drained_during_round_or_with_waiters(rig: HandlerRig) -> None:
    syncer = rig.syncers[0]
    send(rig, connection=1)
    rig.settle()
    send(rig, connection=2)
    rig.settle()
    rig.handler().drain()
    assert not rig.handler().is_drained()
    syncer.end_round()
    rig.settle()
    assert not rig.handler().is_drained()
    syncer.end_round()
    assert len(rig.processors[0].answers()) == 2
    assert rig.handler().is_drained()


def test_request_over_several_partitions_waits_for_all_of_them(rig: HandlerRig) -> None:
    fields = produce_fields([("t", bytes(16), [(0, batch(b"a")), (1, batch(b"b"))])])
    rig.processors[0].send(ApiKey.PRODUCE, VERSION, fields)
    assert rig.processors[0].answers() == []
    rig.syncers[0].end_round()
    (answer,) = rig.processors[0].answers()
    rows = answer.fields(ApiKey.PRODUCE, VERSION)["responses"][0]["partition_responses"]
    assert [(row["index"], row["error_code"], row["base_offset"]) for row in rows] == [(0, 0, 0), (1, 0, 0)]


def test_nothing_waits_without_group_commit(start: Callable[..., HandlerRig]) -> None:
    rig = start(settings={"kproc.flush": "none"})
    rig.create_topic("t")
    send(rig)
    assert results(rig.processors[0].answers()) == [(1, 0, 0)]
    assert rig.syncers[0].sizes == []


def test_acks_0_is_not_answered_and_not_synced(rig: HandlerRig) -> None:
    send(rig, acks=0)
    (answer,) = rig.processors[0].answers()
    assert answer.kind == NO_OP
    assert rig.syncers[0].sizes == []
    assert rig.open("t").log.state.end_offset == 1


def test_duplicate_of_something_not_yet_synced_waits_too(rig: HandlerRig) -> None:
    """An idempotent producer that sends again must not be told "written" before it is."""
    records = batch(b"once", producer_id=1, producer_epoch=0, base_sequence=0)
    for connection in (1, 2):
        fields = produce_fields([("t", bytes(16), [(0, records)])])
        rig.processors[0].send(ApiKey.PRODUCE, VERSION, fields, connection=connection)
        assert rig.processors[0].answers() == []
    rig.syncers[0].end_round()
    assert results(rig.processors[0].answers()) == [(1, 0, 0), (2, 0, 0)]
    assert rig.open("t").log.state.end_offset == 1


def test_kinds_of_answers_are_sends(rig: HandlerRig) -> None:
    send(rig)
    rig.settle()
    rig.syncers[0].end_round()
    assert [answer.kind for answer in rig.processors[0].answers()] == [SEND]


def test_shortage_at_a_sync_round_fails_its_requests_only(
    rig: HandlerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No free descriptor is an error of these requests. The records are synced a second later, and visible then."""
    processor, syncer = rig.processors[0], rig.syncers[0]
    log = rig.open("t").log

    def refuse(*_arguments: object, **_more: object) -> SyncPoint:
        raise Shortage(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as short:
        short.setattr(LogDurability, "sync_point", refuse)
        send(rig, connection=1)
        assert results(processor.answers()) == [(1, int(ErrorCode.KAFKA_STORAGE_ERROR), -1)]
        rig.advance_ms(1000)
    assert (log.state.is_offline, log.state.high_watermark, log.state.end_offset) == (False, 0, 1)
    rig.advance_ms(1000)
    syncer.end_round()
    rig.settle()
    assert (log.state.high_watermark, log.state.recovery_point) == (1, 1)
    send(rig, connection=2)
    rig.settle()
    syncer.end_round()
    assert results(processor.answers()) == [(2, 0, 1)]


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_log_that_a_shortage_left_half_changed_is_opened_again(
    rig: HandlerRig, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """A deletion or a swap of segments stopped half way: the next touch reads the files anew."""
    processor, syncer = rig.processors[0], rig.syncers[0]
    send(rig, connection=1)
    rig.settle()
    syncer.end_round()
    assert results(processor.answers()) == [(1, 0, 0)]
    log = rig.open("t").log
    with pytest.raises(Shortage), log.state.done_or_offline("a swap of segments"):
        raise Shortage(error, os.strerror(error))
    assert log.state.is_offline
    send(rig, connection=2)
    rig.settle()
    syncer.end_round()
    assert results(processor.answers()) == [(2, 0, 1)]
    assert rig.open("t").log is not log


def test_log_half_changed_by_damage_stays_offline_with_reason(rig: HandlerRig) -> None:
    send(rig, acks=1)
    rig.settle()
    log = rig.open("t").log
    with pytest.raises(DiskFailed), log.state.done_or_offline("a swap of segments"):
        raise DiskFailed(errno.EIO, "Input/output error")
    with pytest.raises(
        KafkaError, match=r"offline: a swap of segments was interrupted: .*Input/output error"
    ):
        rig.open("t")


def test_log_half_changed_by_shortage_opens_at_next_owner(
    start: Callable[..., HandlerRig],
) -> None:
    rig = start(handlers=2, settings={"kproc.flush": "group"})
    rig.create_topic("t", partitions=4)
    index = next(each for each in range(4) if rig.owner("t", each) == 1)
    rig.set_handler_count(1)
    fields = produce_fields([("t", bytes(16), [(index, batch(b"value"))])], acks=1)
    rig.processors[0].ask(ApiKey.PRODUCE, VERSION, fields)
    log = rig.open("t", index).log
    with pytest.raises(Shortage), log.state.done_or_offline("a swap of segments"):
        raise Shortage(errno.EMFILE, "Too many open files")
    rig.set_handler_count(2)
    answer = rig.processors[1].ask(ApiKey.PRODUCE, VERSION, fields)
    row = answer["responses"][0]["partition_responses"][0]
    assert (row["error_code"], row["base_offset"]) == (0, 1)


def test_reopened_log_is_open_when_its_waiters_get_the_error(rig: HandlerRig) -> None:
    """A waiter that uses the partition again must not open the log a second time."""
    send(rig, acks=1)
    rig.settle()
    owned = rig.open("t")
    opened: list[object] = []
    owned.when_synced(1, lambda _code: opened.append(rig.open("t")))
    with pytest.raises(Shortage), owned.log.state.done_or_offline("a swap of segments"):
        raise Shortage(errno.EMFILE, "Too many open files")
    found = rig.open("t")
    assert opened == [found]
    assert found is not owned
    assert rig.partitions().find(("t", 0)) is found


def test_export_of_an_interrupted_log_fails_waiters_that_get_it(start: Callable[..., HandlerRig]) -> None:
    """A waiter that gets the partition during the export must not open the log here."""
    rig = start(handlers=2, settings={"kproc.flush": "group"})
    rig.create_topic("t", partitions=4)
    index = next(each for each in range(4) if rig.owner("t", each) == 1)
    rig.set_handler_count(1)
    fields = produce_fields([("t", bytes(16), [(index, batch(b"value"))])], acks=1)
    rig.processors[0].ask(ApiKey.PRODUCE, VERSION, fields)
    owned = rig.open("t", index)
    codes: list[int] = []

    def get_again(code: int) -> None:
        codes.append(code)
        with pytest.raises(KafkaError) as raised:
            rig.partitions(0).get("t", rig.image_of("t", index))
        codes.append(raised.value.code)

    owned.when_synced(1, get_again)
    with pytest.raises(Shortage), owned.log.state.done_or_offline("a swap of segments"):
        raise Shortage(errno.EMFILE, "Too many open files")
    rig.set_handler_count(2)
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert rig.partitions(0).find(("t", index)) is None
    assert rig.open("t", index).log.state.end_offset == 1
