"""Opening a log after its owner died: what is trusted, read again, synced and cut."""

from __future__ import annotations

import errno
import itertools
import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.storage.fs import DiskFailed, DiskFull, sync_directory
from kproc.broker.storage.log import LogConfig, TrustedEnd
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.segment import LogSegment
from kproc.common.clock import ManualClock
from kproc.common.errors import Corrupt
from tests.powerloss.disk import RecordingFs
from tests.support.logs import NOW_MS, TOPIC_ID, LogRig, append_one, batch, read_all, sequenced
from tests.support.owner_deaths import Killed, ends_at

LOG = f"{0:020d}.log"
INDEX = f"{0:020d}.index"
TIME_INDEX = f"{0:020d}.timeindex"


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0", config=LogConfig(index_interval_bytes=200))


# -- a dead owner's successor


def published(rig: LogRig, count: int, beyond: int) -> TrustedEnd:
    """A log whose owner published after `count` batches, wrote `beyond` more and died."""
    log = rig.open()
    for number in range(count):
        append_one(log, sequenced(5, number, timestamp=NOW_MS + number))
    row = TrustedEnd(
        log.state.end_offset, log.state.active_base, log.state.active_bytes, log.state.start_offset
    )
    for number in range(beyond):
        append_one(log, sequenced(5, count + number, timestamp=NOW_MS + count + number))
    log.close(clean=False)
    return row


def test_whole_batches_beyond_the_published_end_are_kept(rig: LogRig) -> None:
    row = published(rig, 10, 3)
    log = rig.open(trusted=row)
    assert log.state.end_offset == 13
    assert append_one(log, sequenced(5, 12)).is_duplicate
    assert append_one(log, sequenced(5, 13)).base_offset == 13
    log.close()


@pytest.mark.parametrize(("recovery_point", "is_synced"), [(0, True), (1, False)])
def test_successor_syncs_names_dead_owner_left_unsynced(
    rig: LogRig, recovery_point: int, is_synced: bool
) -> None:
    row = published(rig, 3, 0)
    log = rig.open(trusted=row, recovery_point=recovery_point)
    point = log.durability.sync_point()
    inodes = {os.fstat(descriptor).st_ino for descriptor in point.fds}
    for path in (rig.directory, rig.directory.parent, rig.directory / "partition.metadata"):
        assert (path.stat().st_ino in inodes) == is_synced
    log.durability.mark_synced(point)
    log.close(clean=False)


@pytest.mark.parametrize("end", [Killed(), DiskFull(errno.ENOSPC, "no room")], ids=["killed", "no room"])
@pytest.mark.parametrize("clean", [True, False])
def test_records_in_half_created_log_survive_power_loss(clean: bool, end: BaseException) -> None:
    """Its maker ended at one of its changes. What a clean start said of the other logs holds for none made since."""
    for step in itertools.count(1):
        fs = RecordingFs(ManualClock(wall_ms=NOW_MS))
        fs.make_directory(Path("/data"))
        sync_directory(fs, Path("/"))
        rig = LogRig(Path("/data/t-0"), fs=fs)
        if not ends_at(fs, step, end, partial(rig.open, clean=clean)):
            break
        assert isinstance(end, Killed) or not fs._open, "it goes on, and needs its descriptors"
        log = rig.open(clean=clean)
        append_one(log, batch("x"))
        log.durability.sync()
        left = fs.crash(random.Random(step), contents="synced", names="synced")
        log = LogRig(rig.directory, fs=left).open()
        assert (step, log.state.end_offset, log.state.topic_id) == (step, 1, TOPIC_ID)
    assert step > 8, "a directory, a segment's files, the topic's id and the epochs"


class FsWithFewDescriptors(RecordingFs):
    """An open may fail, too."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        self.on_change()
        return super().open(path, create=create, writable=writable)


@pytest.mark.parametrize("are_whole", [True, False], ids=["whole", "without indexes"])
def test_an_opening_that_fails_leaves_no_descriptor_open(are_whole: bool) -> None:
    """The host was short of something, so that every request for the log tries it again."""
    for step in itertools.count(1):
        fs = FsWithFewDescriptors(ManualClock(wall_ms=NOW_MS))
        fs.make_directory(Path("/data"))
        rig = LogRig(Path("/data/t-0"), config=LogConfig(segment_bytes=300, index_interval_bytes=100), fs=fs)
        log = rig.open()
        for number in range(8):
            append_one(log, sequenced(5, number))
        log.close(clean=False)
        for name in () if are_whole else (INDEX, TIME_INDEX):
            fs.unlink(rig.directory / name)
        failed = ends_at(fs, step, DiskFailed(errno.EMFILE, "no descriptor"), rig.open)
        if not failed:
            break
        assert (step, fs._open) == (step, {})
        assert rig.open().state.end_offset == 8
    assert step > 8


def test_a_torn_batch_beyond_the_published_end_is_cut_off(rig: LogRig) -> None:
    row = published(rig, 10, 3)
    os.truncate(rig.directory / LOG, (rig.directory / LOG).stat().st_size - 1)
    log = rig.open(trusted=row)
    assert log.state.end_offset == 12
    assert append_one(log, sequenced(5, 12)).base_offset == 12
    log.close()


def test_open_trusts_bytes_below_the_published_row(rig: LogRig) -> None:
    row = published(rig, 10, 0)
    content = bytearray((rig.directory / LOG).read_bytes())
    content[65] ^= 1
    (rig.directory / LOG).write_bytes(content)
    log = rig.open(trusted=row)
    assert log.state.end_offset == 10
    log.close()


class CountingFs(OsFs):
    """Notes which operations are asked for."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name != "calls" and not name.startswith("_"):
            self.calls.append(name)
        return found


def test_a_dead_owners_small_log_is_opened_with_few_operations(rig: LogRig) -> None:
    """Its successor does this for each of its partitions, while their clients wait."""
    rig.config = LogConfig()  # No index entry is due.
    row = published(rig, 10, 0)
    rig.fs = fs = CountingFs()
    log = rig.open(trusted=row)
    assert log.state.end_offset == 10
    assert fs.calls == [
        *("read_file", "list_directory"),  # Whose it is, and what is there;
        *("open", "facts", "facts_at", "facts_at"),  # the segment, how large its indexes are;
        "read_file",  # the epochs;
        *("read", "read"),  # the batches: for the end, for the producers.
    ]
    log.close(clean=False)


def test_a_file_shorter_than_published_is_loud(rig: LogRig) -> None:
    row = published(rig, 10, 0)
    os.truncate(rig.directory / LOG, row.position - 1)
    with pytest.raises(Corrupt, match="published"):
        rig.open(trusted=row)


def test_an_owner_that_died_after_a_roll(rig: LogRig) -> None:
    rig.config = LogConfig(segment_bytes=500)
    row = published(rig, 4, 20)
    log = rig.open(trusted=row)
    assert (log.state.end_offset, log.state.segment_count > 3) == (24, True)
    assert [offset for offset, _ in read_all(log)] == list(range(24))
    log.close()


def test_an_owner_that_died_after_it_had_deleted_everything(rig: LogRig) -> None:
    """Deleting the active segment rolls, renames, and is published last."""
    row = published(rig, 10, 0)
    log = rig.open(trusted=row)
    assert log.retention.advance_start(log.state.end_offset) == 10
    log.close(clean=False)
    log = rig.open(trusted=row)
    assert (log.state.start_offset, log.state.end_offset, log.state.size_bytes) == (10, 10, 0)
    assert append_one(log, sequenced(5, 10)).base_offset == 10
    log.close()


def test_a_segment_that_is_missing_is_loud(rig: LogRig) -> None:
    row = published(rig, 10, 0)
    (rig.directory / LOG).unlink()
    LogSegment.create(OsFs(), rig.directory, 9, now_ms=0).close()
    with pytest.raises(Corrupt, match="begins at offset 9, but its recorded start is 0"):
        rig.open(trusted=row)


def test_the_published_start_counts(rig: LogRig) -> None:
    row = published(rig, 10, 0)._replace(start_offset=7)
    log = rig.open(trusted=row)
    assert log.state.start_offset == 7
    log.close()
