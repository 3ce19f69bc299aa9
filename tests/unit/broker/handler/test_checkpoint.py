"""A Handler uses the cleaner's checkpoints by topic id, whatever the clock says."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from kproc.broker.handler.checkpoint import Checkpoint, KnownOffsets
from kproc.broker.role.partition_table import ROW_WORDS
from kproc.broker.storage import checkpoints
from kproc.broker.storage.log_start import write_start_mark
from kproc.broker.storage.offset_checkpoints import by_id_path, write_offset_checkpoint
from kproc.broker.storage.os_fs import OsFs
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.handler_rig import HandlerRig
from tests.support.partition_requests import directories, fetch, produce

Start = Callable[..., HandlerRig]
FILES = (checkpoints.RECOVERY_POINT_FILE, checkpoints.LOG_START_FILE)
LATER_NS = 2**62


def write(
    rig: HandlerRig, name: str, topic_id: bytes, *, recovery_point: int = 0, log_start: int = 0
) -> None:
    """Write both checkpoints with one entry, for partition 0."""
    for file_name, offset in zip(FILES, (recovery_point, log_start), strict=True):
        write_offset_checkpoint(OsFs(), rig.directory, file_name, {(topic_id, 0): offset}, {topic_id: name})
        for path in (rig.directory / file_name, by_id_path(rig.directory / file_name)):
            os.utime(path, ns=(LATER_NS, LATER_NS))  # Newer than everything, as after the clock was set back.


def restart_broker(rig: HandlerRig, name: str = "t") -> None:
    """All roles are killed, and start again."""
    rig.kill(0)
    rig.table.writer(rig.image_of(name).slot).publish((0,) * 8)
    rig.start_handler(0)


def id_of(rig: HandlerRig, name: str = "t") -> bytes:
    return rig.cluster.image.topics_by_name[name].topic_id


@pytest.mark.parametrize("ends", ["handler", "broker"])
def test_checkpoint_of_a_deleted_namesake_is_ignored(start: Start, ends: str) -> None:
    """Neither deletes records nor takes the log offline, though the files are newer than the directory."""
    rig = start()
    rig.create_topic("t")
    assert produce(rig, "t", b"new") == (0, 0)
    write(rig, "t", b"o" * 16, recovery_point=100, log_start=100)
    if ends == "broker":
        restart_broker(rig)
    else:
        rig.kill(0)
        rig.start_handler(0, is_restart=True)
    assert fetch(rig, "t") == (0, [b"new"])
    log = rig.open("t").log
    assert (log.state.start_offset, log.state.recovery_point) == (0, 0), "nothing counts as synced"
    assert directories(rig) == ["t-0"]


def test_log_start_by_id_is_used_though_the_clock_was_set(start: Start) -> None:
    """The directory seems to be younger than the checkpoint: a DeleteRecords that was answered stays."""
    rig = start()
    rig.create_topic("t")
    assert produce(rig, "t", b"a", b"b", b"c") == (0, 0)
    write(rig, "t", id_of(rig), recovery_point=3, log_start=2)
    os.utime(rig.directory / "t-0" / "partition.metadata", ns=(LATER_NS, LATER_NS + 1))
    restart_broker(rig)
    log = rig.open("t").log
    assert (log.state.start_offset, log.state.recovery_point) == (2, 3)


def test_log_start_of_an_older_kproc_is_kept(start: Start) -> None:
    """Its checkpoints have no ids; a DeleteRecords has cut the leader epochs, which confirm the entry."""
    rig = start()
    rig.create_topic("t")
    assert produce(rig, "t", b"a", b"b", b"c") == (0, 0)
    rig.open("t").log.retention.advance_start(2)
    checkpoints.write_offsets(OsFs(), rig.directory / checkpoints.LOG_START_FILE, {("t", 0): 2})
    restart_broker(rig)
    assert rig.open("t").log.state.start_offset == 2


def test_log_start_without_id_and_without_epochs_is_ignored(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    assert produce(rig, "t", b"a", b"b", b"c") == (0, 0)
    checkpoints.write_offsets(OsFs(), rig.directory / checkpoints.LOG_START_FILE, {("t", 0): 2})
    restart_broker(rig)
    assert rig.open("t").log.state.start_offset == 0


def test_offsets_of_a_row_count_where_they_are_larger(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    rig.open("t")
    write(rig, "t", id_of(rig), recovery_point=5, log_start=1)
    row = rig.table.read(rig.image_of("t"))
    assert row is not None
    checkpoint = Checkpoint(OsFs(), rig.directory)
    topic = rig.cluster.image.topics_by_name["t"]
    directory = rig.directory / "t-0"
    later = row._replace(recovery_point=4, start_offset=3)
    assert checkpoint.offsets_of(topic, 0, directory, later) == KnownOffsets(5, 3, 1)
    assert checkpoint.offsets_of(topic, 1, directory, None) == KnownOffsets(0, 0, None)


def test_directory_mark_counts_without_an_entry_in_checkpoint(start: Start) -> None:
    """Both files of log starts are lost: the mark of the same topic id has the start of an answered DeleteRecords."""
    rig = start()
    rig.create_topic("t")
    assert produce(rig, "t", b"a", b"b", b"c") == (0, 0)
    directory = rig.directory / "t-0"
    write_start_mark(OsFs(), directory, b"o" * 16, 2)
    restart_broker(rig)
    assert rig.open("t").log.state.start_offset == 0, "the mark is of another topic"
    write_start_mark(OsFs(), directory, id_of(rig), 2)
    restart_broker(rig)
    assert rig.open("t").log.state.start_offset == 2
    write(rig, "t", id_of(rig), log_start=1)
    restart_broker(rig)
    assert rig.open("t").log.state.start_offset == 1, "of a restored data directory the checkpoint counts"


@pytest.mark.parametrize(("mark", "start_offset"), [(0, 2), (1, 2), (3, 3)])
def test_larger_of_entry_and_mark_counts_for_a_torn_row(start: Start, mark: int, start_offset: int) -> None:
    rig = start()
    rig.create_topic("t")
    rig.open("t")
    write(rig, "t", id_of(rig), log_start=2)
    directory = rig.directory / "t-0"
    if mark:
        write_start_mark(OsFs(), directory, id_of(rig), mark)
    topic = rig.cluster.image.topics_by_name["t"]
    checkpoint = Checkpoint(OsFs(), rig.directory)
    assert checkpoint.offsets_of(topic, 0, directory) == KnownOffsets(0, 2, 2)
    assert checkpoint.offsets_of(topic, 0, directory, is_row_torn=True) == KnownOffsets(0, start_offset, 2)


def test_deleted_records_stay_deleted_with_a_torn_row(start: Start) -> None:
    """The partition moves to a Handler that started, and read its entry, before the DeleteRecords was answered."""
    rig = start(handlers=2)
    rig.create_topic("t", partitions=2)
    index = next(each for each in range(2) if rig.owner("t", each) == 1)
    assert produce(rig, "t", b"a", b"b", b"c", partition=index) == (0, 0)
    write_offset_checkpoint(
        OsFs(), rig.directory, checkpoints.LOG_START_FILE, {(id_of(rig), index): 1}, {id_of(rig): "t"}
    )
    rig.kill(0)
    rig.start_handler(0)
    owned = rig.open("t", index)
    owned.log.retention.advance_start(2)
    owned.after_start_moved()
    owned.log.retention.mark_start(2)
    rig.kill(1)
    # The owner was killed inside RowWriter.publish: the version is odd while words are being stored.
    rig.table._words[rig.image_of("t", index).slot * ROW_WORDS] += 1
    assert rig.table.read(rig.image_of("t", index)) is None
    rig.set_handler_count(1)
    assert rig.open("t", index).log.state.start_offset == 2


def test_log_that_ends_below_its_start_is_set_aside(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """A power loss took records that a DeleteRecords had deleted. What is left of them stays on the disk."""
    rig = start()
    rig.create_topic("t")
    assert produce(rig, "t", b"a", b"b") == (0, 0)
    write(rig, "t", id_of(rig), log_start=9)
    restart_broker(rig)
    assert produce(rig, "t", b"c") == (0, 9)
    (first, second) = directories(rig)
    assert first == "t-0"
    assert second.startswith("t-0.")
    assert second.endswith("-stray")
    (kept,) = (rig.directory / second).glob("*.log")
    assert kept.read_bytes()[61:].count(b"a"), "the records are there"
    assert f"{second}: the log ends at offset 2" in caplog.text
    restart_broker(rig)
    assert fetch(rig, "t", 9) == (0, [b"c"])


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("segment", "no segment from offset 0 on, but one was stored"),
        ("directory", "records below offset 2 were stored"),
    ],
)
def test_log_that_ends_below_its_recovery_point_is_offline(
    start: Start, caplog: pytest.LogCaptureFixture, what: str, reason: str
) -> None:
    """And only this partition; after its files were restored it is served again."""
    rig = start(was_clean=True)
    for name in ("t", "u"):
        rig.create_topic(name)
        assert produce(rig, name, b"a", b"b") == (0, 0)
        rig.open(name).log.durability.sync()
    write(rig, "t", id_of(rig), recovery_point=2)
    lost = rig.directory / "t-0" / f"{0:020d}.log" if what == "segment" else rig.directory / "t-0"
    kept = rig.directory / "kept"
    lost.rename(kept)
    for _ in range(2):
        restart_broker(rig)
        with pytest.raises(KafkaError) as refused:
            rig.open("t")
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert fetch(rig, "u") == (0, [b"a", b"b"])
        assert lost.exists() is False
    assert reason in caplog.text
    rig.advance_ms(1_100)
    assert "files are missing or truncated" in rig.partitions().offline["t", 0]
    kept.rename(lost)
    restart_broker(rig)
    assert fetch(rig, "t") == (0, [b"a", b"b"])


def test_damaged_partition_that_moved_away_is_not_offline_here(start: Start) -> None:
    """Its new owner reports it. If it comes back, it is opened from its files."""
    rig = start(handlers=2)
    rig.create_topic("t", partitions=2)
    index = next(each for each in range(2) if rig.owner("t", each) == 1)
    write_offset_checkpoint(
        OsFs(), rig.directory, checkpoints.RECOVERY_POINT_FILE, {(id_of(rig), index): 5}, {id_of(rig): "t"}
    )
    rig.kill(1)
    rig.start_handler(1)
    with pytest.raises(KafkaError):
        rig.partitions(1).get("t", rig.image_of("t", index))
    rig.advance_ms(1_100)
    assert ("t", index) in rig.partitions(1).offline
    rig.cluster.do("set_handler_count", count=1)
    rig.tell()
    rig.advance_ms(1_100)
    assert ("t", index) not in rig.partitions(1).offline
