"""Opening a log after every way it can have ended. Rows of STORIES are crash stories."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kproc.broker.storage.format import LOG_SUFFIX, segment_file_name
from kproc.broker.storage.log import EndsBelowStart, LogConfig
from kproc.broker.storage.os_fs import OsFs
from kproc.common.errors import Corrupt
from tests.support.logs import NOW_MS, TOPIC_ID, LogRig, append_one, batch, write_log

LOG = f"{0:020d}.log"


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0", config=LogConfig(index_interval_bytes=200))


def write_synced_mark(path: Path, size: int | None = None) -> None:
    """Mark a file as a round of sync does, by default all of it."""
    fs = OsFs()
    descriptor = fs.open(path)
    fs.write_synced_mark(descriptor, path.stat().st_size if size is None else size)
    fs.close(descriptor)


def read_synced_mark(path: Path) -> int:
    fs = OsFs()
    descriptor = fs.open(path)
    size = fs.read_synced_mark(descriptor)
    fs.close(descriptor)
    return size


def test_another_topics_directory_is_refused(rig: LogRig) -> None:
    write_log(rig, 1)
    with pytest.raises(Corrupt, match="topic id"):
        rig.open(topic_id=TOPIC_ID[::-1])


def test_a_clean_stop_is_opened_without_reading_batches(rig: LogRig) -> None:
    positions = write_log(rig, clean=True)
    content = bytearray((rig.directory / LOG).read_bytes())
    content[positions[3] + 70] ^= 1
    (rig.directory / LOG).write_bytes(content)
    log = rig.open(clean=True, recovery_point=40)
    assert (log.state.end_offset, log.state.recovery_point) == (40, 40)
    log.close()


def test_open_log_that_ends_below_its_start_changes_nothing(rig: LogRig) -> None:
    """The caller sets the directory aside: whatever is in it may be wanted."""
    write_log(rig, 3)
    before = rig.files
    with pytest.raises(
        EndsBelowStart, match=r"ends at offset 6, but a DeleteRecords has moved its start to 50"
    ):
        rig.open(start_offset=50)
    assert rig.files == before


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("what", ["newest segment is empty", "newest segment is gone", "directory is gone"])
def test_open_log_that_ends_below_what_was_synced_is_refused(
    rig: LogRig, what: str, *, is_clean: bool
) -> None:
    log = rig.open()
    append_one(log, batch("a", "b"))
    log.state.roll(log.state.end_offset, NOW_MS)
    append_one(log, batch("c"))
    log.close()
    newest = rig.directory / segment_file_name(2, LOG_SUFFIX)
    if what == "newest segment is empty":
        os.truncate(newest, 0)
    elif what == "newest segment is gone":
        newest.unlink()
    else:
        shutil.rmtree(rig.directory)
    with pytest.raises(Corrupt, match=r"(stored|synced): files are missing or truncated; restore them"):
        rig.open(clean=is_clean, recovery_point=3)
    assert rig.directory.exists() == (what != "directory is gone"), "and it is not made anew"


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_lost_newest_segment_is_noticed_without_a_checkpoint(
    rig: LogRig, count: int, *, is_clean: bool
) -> None:
    """The checkpoint can be emptied together with the segment. A refused log keeps its files."""
    log = rig.open()
    append_one(log, batch("a", "b"))
    for _ in range(count - 1):
        log.state.roll(log.state.end_offset, NOW_MS)
        append_one(log, batch("c"))
    log.durability.sync()
    end_offset = log.state.end_offset
    log.close(clean=is_clean)
    newest = log.state.active.path(LOG_SUFFIX)
    away = newest.rename(rig.directory.with_name("away.log"))
    before = rig.files
    with pytest.raises(Corrupt, match=r"no segment from offset \d on, but one was stored: files are missing"):
        rig.open(clean=is_clean)
    assert rig.files == before
    away.rename(newest)
    again = rig.open(clean=is_clean)
    assert again.state.end_offset == end_offset
    again.close()


@pytest.mark.parametrize("is_clean", [True, False])
def test_lost_end_is_noticed_without_a_recovery_point(rig: LogRig, *, is_clean: bool) -> None:
    """The checkpoint is lost together with the last batch, or all of them: the close has marked the whole file."""
    positions = write_log(rig, 3, clean=True)
    for size in (positions[-1], 0):
        os.truncate(rig.directory / LOG, size)
        with pytest.raises(Corrupt, match="had been synced: files are missing or truncated"):
            rig.open(clean=is_clean)


@pytest.mark.parametrize("is_removed_first", [False, True])
def test_backup_is_restored_after_the_directory_was_removed(rig: LogRig, *, is_removed_first: bool) -> None:
    """OPERATING.md, 'Backup and restore': a directory that stays keeps the mark of its newest segment."""
    write_log(rig, 3, clean=True)
    backup = {path.name: path.read_bytes() for path in rig.directory.iterdir()}
    log = rig.open(clean=True)
    log.state.roll(log.state.end_offset, NOW_MS)
    append_one(log, batch("c"))
    log.close()
    if is_removed_first:
        shutil.rmtree(rig.directory)
        rig.directory.mkdir()
    for path in rig.directory.iterdir():
        path.unlink()
    for name, content in backup.items():
        (rig.directory / name).write_bytes(content)
    if is_removed_first:
        again = rig.open(clean=True, recovery_point=6)
        assert again.state.end_offset == 6
        again.close()
    else:
        with pytest.raises(Corrupt, match="Partitions that are refused"):
            rig.open(clean=True, recovery_point=6)


def test_newest_segment_whose_name_was_not_synced_may_be_lost(rig: LogRig) -> None:
    log = rig.open()
    append_one(log, batch("a", "b"))
    log.durability.sync()
    log.state.roll(log.state.end_offset, NOW_MS)
    append_one(log, batch("c"))
    log.close(clean=False)
    log.state.active.path(LOG_SUFFIX).unlink()
    again = rig.open()
    assert again.state.end_offset == 2
    again.close()


def test_deletion_of_all_segments_explains_a_lost_newest_segment(rig: LogRig) -> None:
    """The names may reach the disk in any order: here the new segment's name does not."""
    log = rig.open()
    append_one(log, batch("a", "b"))
    log.durability.sync()
    log.retention.advance_start(2)
    log.close(clean=False)
    log.state.active.path(LOG_SUFFIX).unlink()
    again = rig.open(start_offset=2)
    assert (again.state.start_offset, again.state.end_offset) == (2, 2)
    again.close()


def test_damage_in_a_sealed_and_synced_segment_truncates_nothing(rig: LogRig) -> None:
    """The directory's mark is enough: a copy of the file may have lost its own mark of synced bytes."""
    log = rig.open()
    append_one(log, batch("a", "b"))
    log.state.roll(log.state.end_offset, NOW_MS)
    append_one(log, batch("c"))
    log.durability.sync()
    log.close(clean=False)
    content = bytearray((rig.directory / LOG).read_bytes())
    content[-1] ^= 1
    (rig.directory / LOG).write_bytes(content)
    write_synced_mark(rig.directory / LOG, 0)
    before = {path: path.read_bytes() for path in rig.directory.glob("*.log")}
    with pytest.raises(Corrupt, match="the whole segment had been synced"):
        rig.open()
    assert {path: path.read_bytes() for path in rig.directory.glob("*.log")} == before


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("harm", ["removed", "cut", "empty"])
def test_open_log_with_a_damaged_middle_segment_is_refused(rig: LogRig, harm: str, *, is_clean: bool) -> None:
    """The log's end is right, and a reader would skip what is missing."""
    log = rig.open()
    for number in range(3):
        first = append_one(log, batch("a", "b"))
        append_one(log, batch("c"))
        if number < 2:
            log.state.roll(log.state.end_offset, NOW_MS)
    assert first.error_code == 0
    log.close()
    middle = rig.directory / segment_file_name(3, LOG_SUFFIX)
    if harm == "removed":
        middle.unlink()
    else:
        os.truncate(middle, middle.stat().st_size // 2 if harm == "cut" else 0)
    with pytest.raises(Corrupt):
        rig.open(clean=is_clean, recovery_point=9)


def test_open_log_cut_below_its_mark_is_refused(rig: LogRig) -> None:
    """Nothing else knows where it ended: there is no recovery point."""
    positions = write_log(rig)
    write_synced_mark(rig.directory / LOG, positions[-1])
    os.truncate(rig.directory / LOG, positions[3])
    with pytest.raises(Corrupt, match=f"{positions[-1]} had been synced"):
        rig.open()


@pytest.mark.parametrize("known_by", ["recovery point", "mark"])
def test_open_synced_log_without_partition_metadata_is_refused(rig: LogRig, known_by: str) -> None:
    """A power loss takes the file only if no sync has ever succeeded. Here it was damaged or removed."""
    write_log(rig, 3)
    (rig.directory / "partition.metadata").write_bytes(b"")
    if known_by == "mark":
        write_synced_mark(rig.directory / LOG)
    with pytest.raises(Corrupt, match=r"partition\.metadata is missing or damaged"):
        rig.open(recovery_point=6 if known_by == "recovery point" else 0)
    assert rig.directory.exists()


def test_missing_directory_of_deleted_records_opens_at_start(rig: LogRig) -> None:
    """All records were deleted before the directory vanished: nothing is missed."""
    log = rig.open(recovery_point=3, start_offset=3)
    assert (log.state.start_offset, log.state.end_offset) == (3, 3)
    log.close()


def test_open_raises_the_leader_epoch_above_the_records(rig: LogRig) -> None:
    """Another broker's files, or older metadata: batches and the checkpoint never go back to a lower epoch."""
    log = rig.open(leader_epoch=9)
    append_one(log, batch("a"))
    log.close()
    for given, expected in ((2, 10), (9, 9), (11, 11)):
        log = rig.open(leader_epoch=given)
        assert log.state.leader_epoch == expected
        log.close(clean=False)
    (rig.directory / "leader-epoch-checkpoint").unlink()
    log = rig.open(leader_epoch=2)
    append_one(log, batch("b"))
    assert log.state.epochs.entries() == [(9, 0), (10, 1)]
    log.close()


def test_open_leaves_the_largest_leader_epoch(rig: LogRig) -> None:
    log = rig.open(leader_epoch=2**31 - 1)
    append_one(log, batch("a"))
    log.close()
    log = rig.open(leader_epoch=2)
    assert log.state.leader_epoch == 2**31 - 1
    log.close()


def test_epochs_are_rebuilt_from_the_batches(rig: LogRig) -> None:
    rig.config = LogConfig(segment_bytes=400)
    for epoch in range(4):
        log = rig.open(leader_epoch=epoch)
        for _ in range(3):
            append_one(log, batch("x", "y"))
        log.close()
    (rig.directory / "leader-epoch-checkpoint").unlink()
    log = rig.open(leader_epoch=9)
    assert [log.reader.epoch_end_offset(epoch) for epoch in (0, 1, 2, 3, 5, 9, 10)] == [
        (0, 6), (1, 12), (2, 18), (3, 24), (3, 24), (9, 24), (-1, -1),
    ]  # fmt: skip
    log.close()


def test_an_epoch_beyond_a_torn_tail_is_forgotten(rig: LogRig) -> None:
    rig.leader_epoch = 1
    positions = write_log(rig, 5)
    log = rig.open(leader_epoch=2)
    append_one(log, batch("x"))
    log.close(clean=False)
    os.truncate(rig.directory / LOG, (rig.directory / LOG).stat().st_size - 1)
    log = rig.open(leader_epoch=3)
    assert (log.state.end_offset, log.reader.epoch_end_offset(2)) == (10, (1, 10))
    assert positions
    log.close()


@pytest.mark.parametrize("is_reopened", [False, True])
def test_lost_compacted_segment_is_noticed_after_one_round(rig: LogRig, *, is_reopened: bool) -> None:
    """A segment that is filled and sealed between two rounds is in one round only. Segments found by a scan count."""
    rig.config = LogConfig(segment_bytes=400)
    log = rig.open()
    for number in range(15):
        append_one(log, batch(f"a{number}", f"b{number}"))
    if is_reopened:
        log.close(clean=False)
        log = rig.open()
    log.durability.sync()
    log.close(clean=True)
    rig.config = LogConfig(cleanup_policy=frozenset({"compact"}))
    logs = sorted(rig.directory.glob("*.log"))
    assert len(logs) == 4
    assert [read_synced_mark(path) for path in logs[:-1]] == [path.stat().st_size for path in logs[:-1]]
    logs[2].unlink()
    with pytest.raises(Corrupt, match=r"ends at offset \d+, .*: a file is missing or"):
        rig.open(clean=True, recovery_point=30)


def test_segment_before_a_gap_of_kafkas_cleaner_is_not_marked(rig: LogRig) -> None:
    """The mark would turn the gap into a loss at the next opening."""
    rig.config = LogConfig(segment_bytes=400)
    write_log(rig, 15)
    rig.config = LogConfig(cleanup_policy=frozenset({"compact"}))
    logs = sorted(rig.directory.glob("*.log"))
    logs[2].unlink()
    log = rig.open()
    log.durability.sync()
    log.close()
    marks = [read_synced_mark(path) for path in logs[:2] + logs[3:-1]]
    assert [bool(mark) for mark in marks] == [True, False, *[True] * (len(marks) - 2)]
    again = rig.open(clean=True, recovery_point=30)
    assert again.state.end_offset == 30
    again.close()
