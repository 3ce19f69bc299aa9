"""DeletedDirectories: directories of deleted topics are removed after their delay, never before they may be."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kproc.broker.role.roles import handler_id
from kproc.broker.storage import checkpoints
from kproc.broker.storage.fs import StorageFailure
from kproc.broker.storage.os_fs import OsFs
from tests.support.cleaner_rig import CHECK_MS, CleanerRig

DELAY_MS = 60_000  # Kafka's default of file.delete.delay.ms.


def doomed_directory(data: Path, name: str = "t-0") -> Path:
    path = data / f"{name}.{'a' * 32}-delete"
    path.mkdir()
    (path / "0.log").write_bytes(b"x")
    return path


def test_deleted_topic_directory_is_removed_after_delay(rig: CleanerRig) -> None:
    """Until then a Processor may open and send what is in it."""
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000)
    rig.create("t")
    kept = rig.directory / "t-1"
    kept.mkdir()
    doomed = doomed_directory(rig.directory)
    rig.delete("t")
    rig.advance_ms(DELAY_MS // 2)
    assert doomed.exists()
    for _ in range(3):
        rig.advance_ms(DELAY_MS)
    assert not doomed.exists()
    assert kept.exists()


def test_directory_is_removed_although_the_clock_was_set_back(rig: CleanerRig) -> None:
    rig.create("t")
    rig.delete("t")
    doomed = doomed_directory(rig.directory)
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000 - 3_600_000)
    rig.advance_ms(DELAY_MS)
    assert not doomed.exists()


def test_deleted_directory_of_earlier_run_is_removed(
    tmp_path: Path, start: Callable[..., CleanerRig]
) -> None:
    doomed = doomed_directory(tmp_path)
    rig = start()
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000 + 2 * DELAY_MS)
    for _ in range(3):
        rig.advance_ms(DELAY_MS)
    assert not doomed.exists()


def test_failed_removal_of_directory_is_tried_again(
    tmp_path: Path, start: Callable[..., CleanerRig], caplog: pytest.LogCaptureFixture
) -> None:
    class StubbornFs(OsFs):
        """Removes nothing until it is told that it may."""

        is_stubborn = True

        def remove_tree(self, path: Path) -> None:
            if self.is_stubborn:
                raise StorageFailure(errno.EACCES, f"remove {path}")
            super().remove_tree(path)

    fs = StubbornFs()
    doomed = doomed_directory(tmp_path)
    rig = start(fs=fs)
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000 + 2 * DELAY_MS)
    rig.advance_ms(DELAY_MS)
    assert doomed.exists()
    assert "cannot remove" in caplog.text
    fs.is_stubborn = False
    for _ in range(3):
        rig.advance_ms(DELAY_MS)
    assert not doomed.exists()


def test_stop_removes_what_still_waits(rig: CleanerRig) -> None:
    doomed = doomed_directory(rig.directory)
    rig.cleaner.finish(is_clean=True)
    assert not doomed.exists()


@pytest.mark.parametrize("ends", ["knows", "dies"])
def test_deleted_topic_files_are_removed_when_handlers_released(rig: CleanerRig, *, ends: str) -> None:
    """A Handler that is busy or stopped for longer than file.delete.delay.ms still has the log open."""
    rig.create("t")
    path = rig.directory / "t-0"
    path.mkdir()
    checkpoints.write_partition_metadata(OsFs(), path, rig.cluster.image.topics_by_name["t"].topic_id)
    rig.delete("t")
    for _ in range(3):
        rig.advance_ms(DELAY_MS)
    assert path.exists()
    if ends == "dies":
        for index in range(2):
            rig.cleaner.detach(handler_id(index))
        rig.step()
    else:
        assert set(rig.asked()) == {(0, "", 0), (1, "", 0)}
    assert not path.exists()


def test_directory_of_topic_recreated_during_removal_stays(
    tmp_path: Path, start: Callable[..., CleanerRig]
) -> None:
    """Removing the first directory of a deleted topic takes long. Meanwhile the second one becomes a new topic's."""
    first, second, new_id = tmp_path / "t-0", tmp_path / "t-1", b"n" * 16

    class RacingFs(OsFs):
        def _recreate(self) -> None:
            checkpoints.write_partition_metadata(OsFs(), second, new_id)

        def rename(self, source: Path, target: Path) -> bool:
            if source == first:
                self._recreate()
            return super().rename(source, target)

        def remove_tree(self, path: Path) -> None:
            if path == first:
                self._recreate()
            super().remove_tree(path)

    rig = start(fs=RacingFs())
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000)
    rig.create("t", 2)
    for path in (first, second):
        path.mkdir()
        checkpoints.write_partition_metadata(OsFs(), path, rig.cluster.image.topics_by_name["t"].topic_id)
    rig.delete("t")
    for index in range(2):
        rig.cleaner.detach(handler_id(index))
    for _ in range(3):
        rig.advance_ms(CHECK_MS + DELAY_MS)
    # The metadata of this test lack the new topic, so that its directory is set aside in the end.
    (kept,) = (each for each in tmp_path.iterdir() if each.is_dir())
    assert checkpoints.read_partition_metadata(OsFs(), kept) == new_id


def test_topic_whose_directories_cannot_be_renamed_waits_once(
    tmp_path: Path, start: Callable[..., CleanerRig]
) -> None:
    """Otherwise the topic would wait three times as often after each round."""

    class RejectingFs(OsFs):
        def rename(self, source: Path, target: Path) -> bool:
            if source.name in names:
                raise StorageFailure(errno.EACCES, f"rename {source}")
            return super().rename(source, target)

    names = [f"t-{index}" for index in range(3)]
    rig = start(fs=RejectingFs())
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000)
    rig.create("t", 3)
    for name in names:
        (tmp_path / name).mkdir()
        topic_id = rig.cluster.image.topics_by_name["t"].topic_id
        checkpoints.write_partition_metadata(OsFs(), tmp_path / name, topic_id)
    rig.delete("t")
    for index in range(2):
        rig.cleaner.detach(handler_id(index))
    for _ in range(3):
        rig.advance_ms(CHECK_MS + DELAY_MS)
        assert len(rig.cleaner._deleted._topics) == 1
    assert rig.cleaner._deleted.remove(at_once=True)  # A stop tries once more and does not wait.
    assert len(rig.cleaner._deleted._topics) == 1
    names.clear()
    for _ in range(3):
        rig.advance_ms(CHECK_MS + DELAY_MS)
    assert not rig.cleaner._deleted._topics
    assert not list(tmp_path.glob("t-*"))


def test_deleted_directory_of_an_existing_topic_stays(rig: CleanerRig) -> None:
    """The metadata were restored from a copy that is older than the deletion."""
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000)
    rig.create("t")
    kept, gone = doomed_directory(rig.directory), doomed_directory(rig.directory, "u-0")
    topic_id = rig.cluster.image.topics_by_name["t"].topic_id
    checkpoints.write_partition_metadata(OsFs(), kept, topic_id)
    for _ in range(3):
        rig.advance_ms(CHECK_MS + DELAY_MS)
    assert not gone.exists()
    assert kept.exists()
    rig.cluster.do("delete_topics", topics=[{"name": "t", "topic_id": bytes(16)}])
    rig.tell()
    for _ in range(3):
        rig.advance_ms(CHECK_MS + DELAY_MS)
    assert not kept.exists()


def test_deleted_directories_stay_until_the_metadata_come(
    tmp_path: Path, start: Callable[..., CleanerRig]
) -> None:
    """A cleaner that starts, or stops, before the controller has sent them knows no topic."""
    kept = doomed_directory(tmp_path)
    rig = start(has_metadata=False)
    rig.clock.set_wall_ms(time.time_ns() // 1_000_000 + 2 * DELAY_MS)
    rig.advance_ms(DELAY_MS)
    assert kept.exists()
    rig.cleaner.finish(is_clean=True)
    assert kept.exists()
    assert not (tmp_path / checkpoints.CLEAN_SHUTDOWN_FILE).exists(), "nobody has looked at the rows"
