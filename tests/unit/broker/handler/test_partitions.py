"""The partitions of one Handler: opened at first use, trusted after a death, set aside when their topic is gone."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from kproc.broker.role import partition_table
from kproc.broker.storage import checkpoints
from kproc.broker.storage.fs import DiskFailed, DiskFull, Shortage
from kproc.broker.storage.log import Log
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.set_aside import list_set_aside
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig
from tests.support.in_memory_controller import changes
from tests.support.partition_requests import NO_ID, directories, fetch, produce
from tests.support.raw import batch, produce_fields

Start = Callable[..., HandlerRig]
STORAGE_ERROR = int(ErrorCode.KAFKA_STORAGE_ERROR)
TOPIC_RESOURCE = 2
SET = 0


def deleted(rig: HandlerRig) -> list[Path]:
    return [path for path in rig.directory.iterdir() if path.name.endswith("-delete")]


# -- opening -------------------------------------------------------------------------------------------------


def test_nothing_is_opened_or_made_before_it_is_touched(start: Start) -> None:
    rig = start()
    rig.create_topic("t", partitions=3)
    assert directories(rig) == []
    assert len(rig.partitions()) == 0
    produce(rig, "t", partition=1)
    assert directories(rig) == ["t-1"]
    assert [owned.key for owned in rig.partitions().opened()] == [("t", 1)]
    assert rig.partitions().find(("t", 0)) is None


def test_same_partition_is_opened_once(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    assert rig.open("t") is rig.open("t")
    assert rig.partitions().find(("t", 0)) is rig.open("t")


def test_partition_of_another_handler_is_refused(start: Start) -> None:
    rig = start(handlers=2)
    rig.create_topic("t", partitions=2)
    other = 1 - rig.owner("t")
    with pytest.raises(KafkaError) as refused:
        rig.partitions(other).get("t", rig.image_of("t"))
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert directories(rig) == []


def test_topics_own_settings_are_honoured(start: Start) -> None:
    rig = start(settings={"log.segment.bytes": 2 << 20})
    rig.create_topic("t", segment_bytes="1048576")
    rig.create_topic("plain")
    assert rig.open("t").log.state.config.segment_bytes == 1 << 20
    assert rig.open("plain").log.state.config.segment_bytes == 2 << 20


def test_changed_settings_reach_an_open_log_at_once(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    log = rig.open("t").log
    outcome = rig.cluster.alter(changes(TOPIC_RESOURCE, "t", ("retention.ms", SET, "1234")))
    assert outcome[0]["error_code"] == 0
    rig.tell()
    assert log.state.config.retention_ms == 1234


# -- deaths and stops ----------------------------------------------------------------------------------------


def test_successor_of_a_dead_handler_has_every_record(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    produce(rig, "t", b"a", b"b")
    produce(rig, "t", b"c")
    rig.kill(0)
    rig.start_handler(0, is_restart=True)
    assert fetch(rig, "t") == (0, [b"a", b"b", b"c"])
    assert produce(rig, "t", b"d") == (0, 3)


def test_unpublished_records_of_dead_handler_are_found(start: Start) -> None:
    """It was killed between the write and the store into the shared table: its client was told nothing."""
    rig = start()
    rig.create_topic("t")
    produce(rig, "t", b"published")
    row = rig.table.read(rig.image_of("t"))
    assert row is not None
    assert row.end_offset == 1
    rig.open("t").log.append([memoryview(bytearray(batch(b"unpublished")))])
    rig.kill(0)
    rig.start_handler(0, is_restart=True)
    assert fetch(rig, "t") == (0, [b"published", b"unpublished"])


def test_log_of_owner_that_died_publishing_is_not_clean(start: Start) -> None:
    rig = start(handlers=2, was_clean=True)
    rig.create_topic("t", partitions=2)
    (index,) = (each for each in range(2) if rig.owner("t", each) == 1)
    fields = produce_fields([("t", NO_ID, [(index, batch(b"v"))])], acks=1)
    rig.processors[1].ask(ApiKey.PRODUCE, 9, fields)
    rig.kill(1)
    partition = rig.image_of("t", index)
    # The version is odd while words are being stored.
    rig.table._words[partition.slot * partition_table.ROW_WORDS] += 1
    assert rig.table.read(partition) is None
    rig.set_handler_count(1)
    assert rig.partitions().unknown_log() == f"t-{index}", "a stop now is not clean"
    log = rig.open("t", index).log
    assert (log.state.end_offset, log.state.recovery_point) == (1, 0)


def test_row_says_whether_there_are_producers_to_look_for(start: Start) -> None:
    """A successor looks at every batch since the last snapshot for them; without any it need not."""
    rig = start()
    rig.create_topic("t")
    for more, has_producers in (
        ({}, False),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}, True),
    ):
        fields = produce_fields([("t", NO_ID, [(0, batch(b"v", **more))])])
        rig.processors[0].ask(ApiKey.PRODUCE, 9, fields)
        row = rig.table.read(rig.image_of("t"))
        assert row is not None
        assert row.has_producers is has_producers
        rig.kill(0)
        rig.start_handler(0, is_restart=True)
        log = rig.open("t").log
        assert bool(log.state.producers) is has_producers
        assert log.state.producers.end_offset == log.state.end_offset


def test_table_says_what_the_log_says(start: Start) -> None:
    rig = start(settings={"kproc.flush": "group"})
    rig.create_topic("t")
    rig.processors[0].send(
        ApiKey.PRODUCE, 9, produce_fields([("t", NO_ID, [(0, batch(b"a", b"b"))])], acks=-1)
    )
    rig.settle()
    row = rig.table.read(rig.image_of("t"))
    assert row is not None
    assert (row.start_offset, row.end_offset, row.recovery_point, row.high_watermark) == (0, 2, 0, 0)
    rig.syncers[0].end_round()
    rig.settle()
    row = rig.table.read(rig.image_of("t"))
    assert row is not None
    log = rig.open("t").log
    assert row[2:8] == (
        log.state.start_offset,
        log.state.end_offset,
        log.state.active_base,
        log.state.active_bytes,
        log.state.recovery_point,
        log.state.high_watermark,
    )
    assert not any((row.has_producers, row.has_failed, row.is_closed, row.is_recovering))
    assert (row.recovery_point, row.high_watermark) == (2, 2)


def test_row_of_a_deleted_namesake_is_not_trusted(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    produce(rig, "t", *[b"v"] * 10)
    old = rig.image_of("t")
    rig.delete_topic("t")
    rig.create_topic("t")
    new = rig.image_of("t")
    assert (new.slot, new.slot_generation) != (old.slot, old.slot_generation)
    assert rig.table.read(new) is None
    assert produce(rig, "t", b"fresh") == (0, 0)


def test_clean_stop_and_start_serve_the_same_records(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    produce(rig, "t", b"a", b"b")
    rig.handler().close()
    rig.handlers[0] = None
    rig.start_handler(0)
    assert fetch(rig, "t") == (0, [b"a", b"b"])
    assert produce(rig, "t", b"c") == (0, 2)


def test_unrecovered_log_since_unclean_start_is_reported(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    assert rig.partitions().unknown_log() is None, "there is nothing of it on the disk"
    produce(rig, "t", b"a")
    assert rig.partitions().unknown_log() is None
    rig.kill(0)
    rig.start_handler(0, is_restart=True)
    assert rig.partitions().unknown_log() == "t-0"
    assert fetch(rig, "t") == (0, [b"a"])
    assert rig.partitions().unknown_log() is None


# -- damage --------------------------------------------------------------------------------------------------


def test_damaged_partition_is_offline_and_the_others_are_served(start: Start) -> None:
    rig = start()
    rig.create_topic("bad")
    rig.create_topic("good")
    for _ in range(3):
        produce(rig, "bad", b"x" * 100)
    produce(rig, "good")
    (segment,) = (rig.directory / "bad-0").glob("*.log")
    rig.handler().close()
    rig.handlers[0] = None
    content = bytearray(segment.read_bytes())
    content[80] ^= 0xFF  # In the middle of the first of three batches.
    segment.write_bytes(content)
    fs = OsFs()
    descriptor = fs.open(segment)
    fs.write_synced_mark(descriptor, len(content))
    fs.close(descriptor)
    rig.table.writer(rig.image_of("bad").slot).publish(
        (0,) * 8
    )  # Another run of the broker: nothing is known.
    rig.start_handler(0, is_restart=True)
    assert produce(rig, "bad") == (STORAGE_ERROR, -1)
    assert fetch(rig, "bad")[0] == STORAGE_ERROR
    assert produce(rig, "good") == (0, 1)
    assert segment.read_bytes() == bytes(content), "nobody repairs it behind the operator's back"


def test_damage_is_looked_at_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = start()
    rig.create_topic("t")
    tries: list[int] = []

    def fail(*_args: object, **_parts: object) -> Log:
        tries.append(1)
        raise DiskFailed(errno.EIO, "read: Input/output error")

    monkeypatch.setattr(Log, "open", fail)
    assert [produce(rig, "t")[0] for _ in range(3)] == [STORAGE_ERROR] * 3
    assert len(tries) == 1, "recovery reads a whole log: not for every request"


def test_damaged_partition_can_be_deleted_and_made_anew(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start()
    rig.create_topic("t")
    with monkeypatch.context() as broken:
        broken.setattr(Log, "open", lambda *_a, **_k: _raise(DiskFailed(errno.EIO, "read")))
        assert produce(rig, "t") == (STORAGE_ERROR, -1)
    rig.delete_topic("t")
    rig.create_topic("t")
    assert produce(rig, "t") == (0, 0)


@pytest.mark.parametrize(
    "error",
    [DiskFull(errno.ENOSPC, "no space"), Shortage(errno.EMFILE, "too many open files")],
    ids=["disk full", "no descriptors"],
)
def test_partition_unopened_for_lack_of_space_is_retried(
    start: Start, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """A full disk passes; a partition that stays offline until the Handler's next start does not."""
    rig = start()
    rig.create_topic("t")
    with monkeypatch.context() as full:
        full.setattr(Log, "open", lambda *_a, **_k: _raise(error))
        assert produce(rig, "t") == (STORAGE_ERROR, -1)
    assert produce(rig, "t") == (0, 0)


def _raise(error: Exception) -> Log:
    raise error


def test_log_that_went_offline_is_refused_until_the_next_start(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    produce(rig, "t")
    rig.open("t").log.state.set_offline("fdatasync failed")
    assert produce(rig, "t") == (STORAGE_ERROR, -1)
    rig.kill(0)
    rig.start_handler(0, is_restart=True)
    assert produce(rig, "t") == (0, 1)


# -- deletion ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_open", [True, False])
def test_deleted_topic_is_set_aside_at_once(start: Start, *, is_open: bool) -> None:
    rig = start()
    rig.create_topic("t", partitions=2)
    for partition in range(2):
        produce(rig, "t", partition=partition)
    if not is_open:
        rig.handler().close()
        rig.handlers[0] = None
        rig.start_handler(0)
    rig.delete_topic("t")
    assert len(deleted(rig)) == 2
    assert directories(rig) == sorted(path.name for path in deleted(rig))
    assert len(rig.partitions()) == 0


def test_handlers_set_only_their_own_directories_aside(start: Start) -> None:
    rig = start(handlers=3)
    rig.create_topic("t", partitions=6)
    for partition in range(6):
        produce(rig, "t", partition=partition)
    owners = [rig.owner("t", index) for index in range(6)]
    rig.kill(1)
    rig.delete_topic("t")
    left = [name for name in directories(rig) if not name.endswith("-delete")]
    assert left == [f"t-{index}" for index in range(6) if owners[index] == 1]
    assert len(deleted(rig)) == 4


def test_topic_made_anew_begins_empty(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    produce(rig, "t", b"old", b"older")
    rig.delete_topic("t")
    rig.create_topic("t")
    assert fetch(rig, "t") == (0, [])
    assert produce(rig, "t", b"new") == (0, 0)
    assert fetch(rig, "t") == (0, [b"new"])


@pytest.mark.parametrize("is_deleted", [True, False])
def test_directory_of_another_topic_id_is_set_aside(
    start: Start, caplog: pytest.LogCaptureFixture, *, is_deleted: bool
) -> None:
    """Somebody put files of another topic id there. Only those of a deleted topic go."""
    rig = start()
    rig.create_topic("t")
    produce(rig, "t", b"old", b"older")
    rig.kill(0)
    rig.cluster.do("delete_topics", topics=[{"name": "t", "topic_id": NO_ID}])
    new_id = bytes(rig.create_topic("t"))
    if not is_deleted:
        checkpoints.write_partition_metadata(OsFs(), rig.directory / "t-0", b"f" * 16)
    rig.start_handler(0, is_restart=True)
    assert produce(rig, "t", b"new") == (0, 0)
    assert fetch(rig, "t") == (0, [b"new"])
    assert checkpoints.read_partition_metadata(OsFs(), rig.directory / "t-0") == new_id
    assert (len(deleted(rig)), len(list_set_aside(OsFs(), rig.directory))) == (
        (1, 0) if is_deleted else (0, 1)
    )
    assert ("set aside" in caplog.text) is not is_deleted


@pytest.mark.parametrize("left", [None, b"", b"version: 7\ntopic_id: AAAAAAAAAAAAAAAAAAAAAAAAAA"])
def test_deleted_topic_keeps_a_directory_without_topic_id(start: Start, left: bytes | None) -> None:
    """Nothing proves that the records are the deleted topic's, and it was not open."""
    rig = start()
    rig.create_topic("t", partitions=2)
    produce(rig, "t", b"whose?")
    assert not rig.open("t", 1).log.state.is_offline
    rig.kill(0)
    for index in range(2):
        metadata = rig.directory / f"t-{index}" / checkpoints.PARTITION_METADATA_FILE
        metadata.unlink()
        if left is not None:
            metadata.write_bytes(left)
    rig.start_handler(0, is_restart=True)
    rig.delete_topic("t")
    assert [each.path.name[:4] for each in list_set_aside(OsFs(), rig.directory)] == ["t-0."]
    assert [path.name[:4] for path in deleted(rig)] == ["t-1."], "it holds no record"


def test_delete_topic_survives_an_unreadable_directory(start: Start) -> None:
    """A file stands in place of one partition's directory. The others go, and the Handler lives."""
    rig = start()
    rig.create_topic("t", partitions=2)
    produce(rig, "t", partition=1)
    (rig.directory / "t-0").write_text("a file")
    rig.delete_topic("t")
    assert [path.name[:4] for path in deleted(rig)] == ["t-1."]
    assert (rig.directory / "t-0").read_text() == "a file"


@pytest.mark.parametrize("left", [None, b""], ids=["no file", "an empty one"])
def test_records_without_partition_metadata_are_set_aside(start: Start, left: bytes | None) -> None:
    """A power loss took partition.metadata, which the first sync covers: they may be of a deleted namesake."""
    rig = start()
    rig.create_topic("t")
    produce(rig, "t", b"whose?")
    rig.kill(0)
    metadata = rig.directory / "t-0" / checkpoints.PARTITION_METADATA_FILE
    metadata.unlink()
    if left is not None:
        metadata.write_bytes(left)
    rig.table.writer(rig.image_of("t").slot).publish((0,) * 8)
    rig.start_handler(0, is_restart=True)
    assert produce(rig, "t", b"new") == (0, 0)
    assert fetch(rig, "t") == (0, [b"new"])
    (aside,) = (path for path in rig.directory.iterdir() if path.name.endswith("-stray"))
    assert b"whose?" in (aside / f"{0:020d}.log").read_bytes()


def test_empty_directory_without_metadata_is_used(start: Start) -> None:
    """Its owner died between making it and saying whose it is."""
    rig = start()
    rig.create_topic("t")
    assert not rig.open("t").log.state.is_offline
    rig.kill(0)
    (rig.directory / "t-0" / checkpoints.PARTITION_METADATA_FILE).unlink()
    rig.table.writer(rig.image_of("t").slot).publish((0,) * 8)
    rig.start_handler(0, is_restart=True)
    assert produce(rig, "t", b"new") == (0, 0)
    assert directories(rig) == ["t-0"]


def test_topic_deleted_while_controller_was_away_is_set_aside(start: Start) -> None:
    """A whole image after the controller's restart: what happened in between was no delta."""
    rig = start()
    rig.create_topic("t")
    rig.create_topic("stays")
    produce(rig, "t")
    produce(rig, "stays")
    rig.cluster.do("delete_topics", topics=[{"name": "t", "topic_id": NO_ID}])
    rig.send_snapshot(0)
    assert len(deleted(rig)) == 1
    assert produce(rig, "stays") == (0, 1)


# -- now and then --------------------------------------------------------------------------------------------
