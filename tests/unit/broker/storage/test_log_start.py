"""The start of a log: an opening notices lost first segments, and takes no deletion for a loss."""

from __future__ import annotations

import errno
import logging
import os
import random
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from kproc.broker.storage.checkpoints import LEADER_EPOCH_FILE
from kproc.broker.storage.fs import DiskFull, failure, sync_directory
from kproc.broker.storage.log import Log, LogConfig, TrustedEnd
from kproc.broker.storage.log_start import read_start_mark, write_start_mark
from kproc.broker.storage.os_fs import OsFs
from kproc.common.clock import ManualClock
from kproc.common.errors import Corrupt
from tests.powerloss.disk import RecordingFs
from tests.support.failing_fs import FailingFs
from tests.support.log_fs import use_below
from tests.support.logs import NOW_MS, TOPIC_ID, LogRig, append_one, batch, read_all

CONFIG = LogConfig(segment_bytes=6_000, retention_bytes=8_000, file_delete_delay_ms=500)
COMPACTED = CONFIG.with_overrides({"cleanup.policy": "compact"})


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "t-0", config=CONFIG)


def write(log: Log, count: int = 6) -> None:
    """Append batches of one record, a segment for each, and sync them."""
    for _ in range(count):
        append_one(log, batch(bytes(5_000)))
        log.durability.sync()


def row_of(log: Log) -> TrustedEnd:
    return TrustedEnd(
        log.state.end_offset, log.state.active_base, log.state.active_bytes, log.state.start_offset
    )


def first_log(rig: LogRig) -> Path:
    return min(rig.directory.glob("*.log"))


def test_damaged_start_mark_is_ignored(tmp_path: Path) -> None:
    """A start that is too high would hide records, so the mark has a checksum over the topic id and the offset."""
    fs, topic_id = OsFs(), b"t" * 16
    assert read_start_mark(fs, tmp_path / "missing", topic_id) == 0
    assert read_start_mark(fs, tmp_path, topic_id) == 0
    write_start_mark(fs, tmp_path, topic_id, 7)
    assert (read_start_mark(fs, tmp_path, topic_id), read_start_mark(fs, tmp_path, b"u" * 16)) == (7, 0)
    whole = os.getxattr(tmp_path, "user.kproc.start")
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        os.setxattr(tmp_path, "user.kproc.start", flipped)
        assert read_start_mark(fs, tmp_path, topic_id) == 0, bytes(flipped)
    for damaged in (b"", b" ", b"7", whole[:-1], b"0" + whole, whole + b" ", b"9" * 5000):
        os.setxattr(tmp_path, "user.kproc.start", damaged[:3000])
        assert read_start_mark(fs, tmp_path, topic_id) == 0, damaged[:30]


def test_start_mark_is_written_by_owner_and_never_lowered(rig: LogRig) -> None:
    log = rig.open()
    write(log)
    log.retention.mark_start(3)
    log.retention.mark_start(2)
    assert read_start_mark(rig.fs, rig.directory, TOPIC_ID) == 3
    log.close(clean=False)
    log.retention.mark_start(4)
    assert read_start_mark(rig.fs, rig.directory, TOPIC_ID) == 3, "the log may have another owner by now"


def test_failed_start_mark_takes_log_offline(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark is in the directory's inode. An error of the disk there is one of the log; a shortage is none."""
    log = rig.open()
    write(log)
    for number, is_offline in ((errno.EMFILE, False), (errno.EIO, True)):
        problem = failure(OSError(number, "no"), "open")
        monkeypatch.setattr(OsFs, "open_directory", Mock(side_effect=problem))
        log.retention.mark_start(3)
        assert log.state.is_offline is is_offline
    monkeypatch.undo()
    log.close(clean=False)


@pytest.mark.parametrize("config", [CONFIG, COMPACTED], ids=["delete", "compact"])
@pytest.mark.parametrize("ended", ["clean", "killed", "handler"])
def test_lost_first_segment_is_refused(rig: LogRig, ended: str, config: LogConfig) -> None:
    """The files stay as they are, and the log opens as before when the segment is back."""
    log = rig.open()
    write(log)
    rig.config = config
    end = {"trusted": row_of(log)} if ended == "handler" else {"clean": ended == "clean", "recorded_start": 0}
    log.close(clean=ended == "clean")
    away = rig.directory.with_name("away.log")
    lost = first_log(rig).rename(away)
    before = sorted(rig.files)
    with pytest.raises(Corrupt, match=r"begins at offset 1, but its recorded start is 0: files are missing"):
        rig.open(**end)
    assert sorted(rig.files) == before
    lost.rename(rig.directory / f"{0:020d}.log")
    log = rig.open(**end)
    assert (log.state.start_offset, log.state.end_offset) == (0, 6)
    log.close()


def test_lost_first_segment_after_a_deletion_is_refused(rig: LogRig) -> None:
    log = rig.open()
    write(log)
    assert log.retention.enforce_retention(NOW_MS) == 4
    log.close()
    assert first_log(rig).name == f"{4:020d}.log"
    first_log(rig).unlink()
    with pytest.raises(Corrupt, match=r"begins at offset 5, but its recorded start is 4"):
        rig.open(clean=True, recorded_start=4)
    with pytest.raises(Corrupt, match=r"begins at offset 5, but its recorded start is 4"):
        rig.open(clean=True)


@pytest.mark.parametrize("clean", [True, False])
def test_lost_first_segment_without_epochs_is_rejected(
    rig: LogRig, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """After a crash the checkpoint may be older than a deletion, so only a warning is possible."""
    log = rig.open()
    write(log)
    log.close()
    first_log(rig).unlink()
    (rig.directory / LEADER_EPOCH_FILE).write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        if clean:
            with pytest.raises(
                Corrupt, match=r"begins at offset 1, the checkpoint says 0, .* files are missing"
            ):
                rig.open(clean=True, recorded_start=0)
            return
        log = rig.open(recorded_start=0)
    assert "the records in between, which were deleted, or whose files are missing" in caplog.text
    assert log.state.start_offset == 1
    log.close()


def test_log_of_another_broker_begins_at_its_first_segment(rig: LogRig) -> None:
    """No checkpoint has an entry for it, and its epochs are unknown."""
    log = rig.open()
    write(log)
    log.close()
    first_log(rig).unlink()
    (rig.directory / LEADER_EPOCH_FILE).unlink()
    log = rig.open(clean=True)
    assert [offset for offset, _ in read_all(log)] == [1, 2, 3, 4, 5]
    log.close()


def delete_by_retention(log: Log) -> None:
    assert log.retention.enforce_retention(NOW_MS)


def delete_records(log: Log) -> None:
    log.retention.advance_start(3)


def delete_everything(log: Log) -> None:
    log.retention.advance_start(log.state.end_offset)


class Crashes:
    """A disk, and an image of it from before each operation: what a power loss, or a crash of the broker, leaves."""

    def __init__(self, disk: RecordingFs, contents: str, names: str) -> None:
        self.images: list[RecordingFs] = []
        self._disk, self._contents, self._names = disk, contents, names
        disk.on_change = self.add

    def add(self) -> None:
        rng = random.Random(len(self.images))
        self.images.append(self._disk.crash(rng, contents=self._contents, names=self._names))

    def end(self) -> list[RecordingFs]:
        self._disk.on_change = lambda: None
        self.add()
        return self.images


@pytest.mark.long
@pytest.mark.parametrize("delete", [delete_by_retention, delete_records, delete_everything])
@pytest.mark.parametrize(
    ("contents", "names"),
    [("all", "all"), ("synced", "synced"), ("pages", "prefix")],
)
def test_deletion_that_a_crash_interrupts_is_no_loss(
    delete: Callable[[Log], None], contents: str, names: str
) -> None:
    """A crash comes before each operation of a deletion and of its unlinks, and another one in the opening after it.

    The checkpoint of the data directory knows only the old start. Names reach the disk in the order of their changes,
    as with ext4 and XFS.
    """
    clock = ManualClock(wall_ms=NOW_MS)
    disk = RecordingFs(clock)
    disk.make_directory(Path("/data"))
    sync_directory(disk, Path("/"))

    def opened(fs: RecordingFs) -> Log:
        log = LogRig(Path("/data/t-0"), config=CONFIG, clock=clock, fs=fs).open(recorded_start=0)
        assert log.state.end_offset >= 6
        return log

    log = LogRig(Path("/data/t-0"), config=CONFIG, clock=clock, fs=disk).open()
    write(log)
    crashes = Crashes(disk, contents, names)
    delete(log)
    append_one(log, batch("more"))
    log.retention.unlink_due(log.state.deletion_due_ms())
    assert not [name for name in disk.list_directory(log.state.directory) if name.endswith(".deleted")]
    images = crashes.end()
    assert len(images) > 10
    for number, image in enumerate(images):
        if number % 6:
            opened(image)
            continue
        second = Crashes(image, contents, names)
        opened(image)
        for again in second.end():
            opened(again)


def test_deleted_segments_stay_until_the_start_is_synced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fs = FailingFs()
    rig = LogRig(tmp_path / "t-0", config=CONFIG, fs=fs)
    log = rig.open()
    write(log)
    log.retention.enforce_retention(NOW_MS)
    fs.fail_sync()
    assert log.retention.unlink_due(log.state.deletion_due_ms()) == 0
    assert "keeps its deleted segments" in caplog.text
    assert log.retention.unlink_due(log.state.deletion_due_ms()) > 0
    assert not log.state.is_offline
    log.close()


class FullForEpochs(OsFs):
    """No room for another leader-epoch-checkpoint."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        if create and path.name.startswith(LEADER_EPOCH_FILE):
            raise DiskFull(errno.ENOSPC, "open")
        return super().open(path, create=create, writable=writable)


def test_deletion_on_a_full_disk_frees_it_and_is_no_loss(rig: LogRig) -> None:
    """There is no room to record the new start. The old record goes, and the next opening rebuilds the epochs."""
    log = rig.open()
    write(log)
    use_below(log, FullForEpochs())
    assert log.retention.enforce_retention(NOW_MS) == 4
    assert log.retention.unlink_due(log.state.deletion_due_ms()) > 0
    assert not (rig.directory / LEADER_EPOCH_FILE).exists()
    log.close(clean=False)
    log = rig.open(recorded_start=0)
    assert (log.state.start_offset, log.reader.epoch_of(4)) == (4, 0)
    log.close()


def test_start_that_only_the_checkpoint_knows_is_recorded_again(rig: LogRig) -> None:
    """Files of an older version, which wrote the epochs after it had renamed the segments."""
    log = rig.open()
    write(log)
    log.close()
    first_log(rig).unlink()
    rig.open(recorded_start=1, start_offset=1).close()
    assert (rig.directory / LEADER_EPOCH_FILE).read_bytes() == b"0\n1\n0 1\n"
