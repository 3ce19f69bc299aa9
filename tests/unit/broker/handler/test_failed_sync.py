"""Failed syncs: no successor trusts the page cache, and the next start writes the records again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from kproc.broker.role import partition_table
from kproc.broker.storage.fs import DiskFailed
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.partition_requests import NO_ID, fetch, produce
from tests.support.raw import batch, produce_fields

Start = Callable[..., HandlerRig]
STORAGE_ERROR = int(ErrorCode.KAFKA_STORAGE_ERROR)


# -- failed syncs ----------------------------------------------------------------------------------------------


def _no_sync(_descriptor: int) -> None:
    raise OSError(errno.EIO, "Input/output error")


def fail_a_sync(rig: HandlerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One record on the disk, and another that the disk did not take, though it can be read."""
    for value, problem in ((b"synced", None), (b"lost", DiskFailed(errno.EIO, "fdatasync"))):
        fields = produce_fields([("t", NO_ID, [(0, batch(value))])], acks=-1)
        rig.processors[0].send(ApiKey.PRODUCE, 9, fields)
        rig.settle()
        with monkeypatch.context() as failing:
            if problem is not None:
                failing.setattr(os, "fdatasync", _no_sync)
                (log, point), *_ = rig.syncers[0].rounds[0]
                with pytest.raises(DiskFailed):
                    log.durability.run_sync(point)
            rig.syncers[0].end_round(problem)
        rig.settle()
    rig.processors[0].answers()


def test_successor_distrusts_page_cache_after_failed_sync(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages count as clean: its own syncs would succeed, and bring nothing to the disk."""
    rig = start(settings={"kproc.flush": "group"})
    rig.create_topic("t")
    fail_a_sync(rig, monkeypatch)
    assert fetch(rig, "t")[0] == STORAGE_ERROR
    rig.kill(0)
    (rig.directory / "t-0" / "sync-failed").unlink()  # It could not be left: the row says it all the same.
    rig.start_handler(0, is_restart=True)
    assert produce(rig, "t") == (STORAGE_ERROR, -1)
    assert fetch(rig, "t")[0] == STORAGE_ERROR
    assert rig.partitions().unknown_log() == "t-0", "a stop now is not clean"


def test_a_stop_whose_last_round_fails_is_not_clean(start: Start) -> None:
    """The time to drain was over: the round was in work when the Handler was told to close."""
    rig = start(settings={"kproc.flush": "group"})
    rig.create_topic("t")
    fields = produce_fields([("t", NO_ID, [(0, batch(b"value"))])], acks=-1)
    rig.processors[0].send(ApiKey.PRODUCE, 9, fields)
    rig.settle()
    handler = rig.handler()
    rig.syncers[0].end_round(DiskFailed(errno.EIO, "fdatasync"))
    rig.handlers[0] = None
    assert handler.close() == "t-0"


def test_stop_is_clean_for_closed_and_unopened_logs(start: Start) -> None:
    """The metadata of another Handler may not name the killed owner."""
    rig = start(settings={"kproc.flush": "group"})
    rig.create_topic("t")
    assert rig.table.unclosed(parts_of(rig.handler()).services.image) is None, "nobody had it open"
    rig.open("t")
    assert rig.table.unclosed(parts_of(rig.handler()).services.image) == "t-0"
    image = parts_of(rig.handler()).services.image
    rig.kill(0)
    assert rig.table.unclosed(image) == "t-0"
    rig.start_handler(0, is_restart=True)
    rig.open("t")
    handler, rig.handlers[0] = rig.handler(), None
    assert handler.close() is None
    assert rig.table.unclosed(image) is None
    rig.start_handler(0, is_restart=True)
    rig.open("t")
    assert rig.table.unclosed(image) == "t-0"


def test_a_round_behind_one_that_failed_confirms_nothing(start: Start) -> None:
    """It succeeds, without the pages that the first one lost: the next start must write them again."""
    rig = start(settings={"kproc.flush": "group"})
    rig.create_topic("t")
    for value in (b"lost", b"behind"):
        fields = produce_fields([("t", NO_ID, [(0, batch(value))])], acks=-1)
        rig.processors[0].send(ApiKey.PRODUCE, 9, fields)
        rig.settle()
    rig.syncers[0].end_round(DiskFailed(errno.EIO, "fdatasync"))
    rig.settle()
    rig.syncers[0].end_round()
    rig.settle()
    row = rig.table.read(rig.image_of("t"))
    assert row is not None
    assert (row.end_offset, row.recovery_point) == (2, 0)
    answers = [answer.fields(ApiKey.PRODUCE, 9) for answer in rig.processors[0].answers()]
    codes = [each["responses"][0]["partition_responses"][0]["error_code"] for each in answers]
    assert codes == [STORAGE_ERROR] * 2


def test_a_failed_sync_says_nothing_of_a_namesake(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = start(settings={"kproc.flush": "group"})
    rig.create_topic("t")
    fail_a_sync(rig, monkeypatch)
    rig.delete_topic("t")
    rig.create_topic("t")
    assert not rig.open("t").log.state.is_offline
    row = rig.table.read(rig.image_of("t"))
    assert row is not None
    assert not row.has_failed


def test_the_next_start_writes_again_what_a_failed_sync_left(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start(settings={"kproc.flush": "group"})
    rig.create_topic("t")
    fail_a_sync(rig, monkeypatch)
    rig.kill(0)
    rig.table.writer(rig.image_of("t").slot).publish((0,) * 8)  # Another run of the broker.
    rig.start_handler(0, is_restart=True)
    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", _no_sync)
        assert produce(rig, "t") == (STORAGE_ERROR, -1), "what it wrote again cannot be synced either"
    rig.kill(0)
    rig.start_handler(0, is_restart=True)
    assert fetch(rig, "t") == (0, [b"synced", b"lost"])
    assert rig.open("t").log.state.recovery_point == 2
    assert not (rig.directory / "t-0" / "sync-failed").exists()


def test_a_failed_sync_goes_with_the_log_to_its_next_owner(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start(settings={"kproc.flush": "group"})
    rig.create_topic("t")
    fail_a_sync(rig, monkeypatch)
    partitions, topic = rig.partitions(), rig.partitions()._image().topics_by_name["t"]
    state = partitions.export(("t", 0), topic.topic_id)
    assert state
    partitions.import_state(topic, rig.image_of("t"), state)
    row = rig.table.read(rig.image_of("t"))
    assert row is not None
    assert row.has_failed
    partitions.export(("t", 0), topic.topic_id)
    partitions.disown(rig.image_of("t"))
    row = rig.table.read(rig.image_of("t"))
    assert row is not None
    assert (row.holder, row.has_failed) == (partition_table.NOBODY, True)
